//! Check D: the base moves, is force-pushed, is renamed; the branch is taken, grows or is replaced; people close the draft;
//! the token, the label or the whole repository goes. Nothing of anybody's is overwritten, and each end has its name.

use std::process::Command;
use std::time::Duration;

use bot::job::{Failure, Outcome, Rule, State};
use bot::reconcile::Memory;
use tests::forge::{Fault, Matcher};
use tests::house::House;
use tests::story::{TAKEN_AWAY, ask_again, hasty, meddled, short_house, swept, taken_away};

const HOUR: Duration = Duration::from_secs(3600);

/// The parent of a branch's last commit, as the forge has it.
fn parent(house: &House, branch: &str) -> String {
    let mut git = Command::new("git");
    git.arg("--git-dir").arg(house.forge.git_dir(&house.repo));
    let output = git.args(["rev-parse", &format!("refs/heads/{branch}^")]).output();
    let output = output.expect("git can be started");
    assert!(output.status.success(), "{branch} has no parent");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn head(house: &House, branch: &str) -> String {
    house.forge.branch_head(&house.repo, branch).unwrap_or_default()
}

/// A house whose jobs wait no longer than two hours for the forge.
async fn hasty_house() -> House {
    House::start(hasty()).await
}

/// The draft is refused once, after the push; the job waits.
async fn pushed_and_waiting(house: &House) -> u64 {
    let open = Matcher::new("POST", "/api/v1/repos/acme/hours/pulls");
    house.forge.fault(open, Fault::status(500, "down"), 1);
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    assert!(house.forge.pulls(&house.repo).is_empty());
    assert!(!head(house, "hyla/issue-1-1").is_empty());
    issue
}

#[tokio::test]
async fn check_d_a_base_that_moved_leads_to_a_draft_on_the_recorded_one() {
    let house = short_house().await;
    let before = head(&house, "main");
    let issue = meddled(&house, async |house, _| {
        // The same line, so that the draft conflicts.
        house.forge.person("ann").commit(&house.repo, "main", [("a.txt", "otherwise\n")]);
    })
    .await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_ne!(head(&house, "main"), before);
    assert_eq!(parent(&house, "hyla/issue-1-1"), before);
    let pull = house.forge.pulls(&house.repo).remove(0);
    assert!(pull.is_draft && pull.base == "main" && pull.body.contains(&before[..10]));
    assert_eq!(
        house.forge.file(&house.repo, &pull.head, "a.txt").as_deref(),
        Some(&b"better\n"[..])
    );
    assert!(house.status_comments(issue)[0].contains("The draft is ready"));
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_base_that_was_force_pushed_away_is_still_what_the_draft_stands_on() {
    let house = short_house().await;
    let before = head(&house, "main");
    meddled(&house, async |house, _| {
        house.forge.person("ann").force_push(&house.repo, "main", [("b.txt", "anew\n")]);
    })
    .await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_eq!(parent(&house, "hyla/issue-1-1"), before);
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    // The next job starts from what is there by then.
    let pull = house.forge.pulls(&house.repo)[0].number;
    house.forge.person("ann").close(&house.repo, pull).await;
    ask_again(&house, 1).await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_eq!(parent(&house, "hyla/issue-1-2"), head(&house, "main"));
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_branch_that_exists_is_left_alone() {
    for is_early in [true, false] {
        let house = short_house().await;
        let files = [("b.txt", "theirs\n")];
        let theirs = match is_early {
            true => house.forge.person("ann").commit(&house.repo, "hyla/issue-1-1", files),
            false => String::new(),
        };
        let issue = meddled(&house, async |house, _| {
            if !is_early {
                let files = [("b.txt", "theirs\n")];
                house.forge.person("ann").commit(&house.repo, "hyla/issue-1-1", files);
            }
        })
        .await;
        let pulls = house.forge.pulls(&house.repo);
        assert_eq!(pulls.len(), 1, "{}", house.status_comments(issue).join("\n"));
        assert_eq!(pulls[0].head, "hyla/issue-1-2");
        let there = head(&house, "hyla/issue-1-1");
        assert!(!there.is_empty() && (theirs.is_empty() || theirs == there));
        assert_eq!(house.forge.file(&house.repo, "hyla/issue-1-1", "b.txt").unwrap(), b"theirs\n");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_d_commits_of_people_on_the_branch_stay_and_are_told_of() {
    let house = short_house().await;
    let issue = pushed_and_waiting(&house).await;
    let theirs =
        house.forge.person("ann").commit(&house.repo, "hyla/issue-1-1", [("b.txt", "b\n")]);
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_eq!(head(&house, "hyla/issue-1-1"), theirs, "it is as ann left it");
    let heads: Vec<_> = house.forge.pulls(&house.repo).into_iter().map(|pull| pull.head).collect();
    assert_eq!(heads, ["hyla/issue-1-1"]);
    assert_eq!(house.forge.branches(&house.repo).len(), 2, "no second branch");
    let comment = house.status_comments(issue).join("\n");
    assert!(comment.contains("commits of others on top of mine"), "{comment}");
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_branch_that_people_replaced_is_theirs_and_the_work_goes_to_the_next() {
    let house = short_house().await;
    pushed_and_waiting(&house).await;
    let ann = house.forge.person("ann");
    let theirs = ann.force_push(&house.repo, "hyla/issue-1-1", [("b.txt", "b\n")]);
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_eq!(head(&house, "hyla/issue-1-1"), theirs);
    let heads: Vec<_> = house.forge.pulls(&house.repo).into_iter().map(|pull| pull.head).collect();
    assert_eq!(heads, ["hyla/issue-1-2"]);
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_draft_that_people_turned_to_another_branch_is_still_the_one() {
    let house = short_house().await;
    house.forge.person("ann").commit(&house.repo, "next", [("b.txt", "b\n")]);
    let issue = house.open_issue().await;
    // It is opened, and nobody says so.
    let pulls = "/api/v1/repos/acme/hours/pulls";
    let find = Matcher::new("GET", &format!("{pulls}/main/*"));
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    house.forge.fault(Matcher::new("POST", pulls), Fault::AfterEffect(502), 1);
    let breaking = async {
        while house.forge.pulls(&house.repo).is_empty() {
            tokio::task::yield_now().await;
        }
        house.forge.fault(find, Fault::down(503, "back soon"), usize::MAX);
    };
    tokio::join!(house.step(), breaking);
    let pull = house.forge.pulls(&house.repo).remove(0).number;
    house.forge.person("ann").retarget(&house.repo, pull, "next");
    house.forge.clear_faults();
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    assert!(house.status_comments(issue)[0].contains(&format!("pull request #{pull}")));
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_draft_that_people_close_stays_closed_until_asked_again() {
    let house = short_house().await;
    let last_words = Matcher::new("PATCH", "/api/v1/repos/acme/hours/issues/comments/*");
    house.forge.fault(last_words, Fault::down(503, "back soon"), usize::MAX);
    let issue = house.open_issue().await;
    let ann = house.forge.person("ann");
    ann.add_label(&house.repo, issue, "hyla").await;
    house.work().await;
    let pull = house.forge.pulls(&house.repo).remove(0);
    assert!(matches!(house.jobs().await[0].job.state, State::Queued), "it has a last word to say");
    ann.close(&house.repo, pull.number).await;
    house.forge.clear_faults();
    let mut memory = Memory::default();
    for _ in 0..2 {
        assert_eq!(swept(&house, &mut memory).await, 0);
        for delivered in house.forge.deliveries() {
            house.forge.redeliver(&delivered.id).await;
        }
        house.work_through_retries().await;
    }
    let pulls = house.forge.pulls(&house.repo);
    assert!(pulls.len() == 1 && !pulls[0].is_open, "closed is a no");
    assert_eq!(house.jobs().await.len(), 1);
    let told = house.status_comments(issue);
    assert!(told.len() == 1 && told[0].contains(&format!("pull request #{}", pull.number)));
    ask_again(&house, issue).await;
    let pulls = house.forge.pulls(&house.repo);
    assert!(pulls.len() == 2 && pulls[1].is_open && pulls[1].head == "hyla/issue-1-2");
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_label_removed_or_an_issue_edited_while_the_job_runs() {
    let house = short_house().await;
    let issue = meddled(&house, async |house, issue| {
        house.forge.person("ann").remove_label(&house.repo, issue, "hyla").await;
    })
    .await;
    assert_eq!(house.first_end().await.outcome, Outcome::Cancelled);
    assert!(house.forge.pulls(&house.repo).is_empty());
    assert_eq!(house.forge.branches(&house.repo).len(), 1, "nothing was pushed");
    assert!(house.status_comments(issue)[0].contains("label was taken off"));
    house.assert_clean().await;

    let house = short_house().await;
    meddled(&house, async |house, issue| {
        house.forge.person("ann").rewrite(&house.repo, issue, "Something else altogether.").await;
    })
    .await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    let asked = house.model.requests();
    assert!(asked.iter().all(|request| !request.to_string().contains("Something else")));
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_token_that_is_revoked_and_comes_back_costs_no_work() {
    let house = short_house().await;
    let issue = meddled(&house, async |house, _| house.forge.revoke(&house.token)).await;
    assert!(matches!(house.jobs().await[0].job.state, State::Queued), "it waits");
    assert_eq!(house.forge.branches(&house.repo).len(), 1);
    let asked = house.model.requests().len();
    house.work_for(HOUR).await;
    assert_eq!(house.jobs().await[0].job.attempt, 0, "waiting uses up no attempt");
    house.forge.restore(&house.token);
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
    assert_eq!(house.model.requests().len(), asked, "no second session");
    assert_eq!(house.status_comments(issue).len(), 1);
    assert_eq!(house.forge.pulls(&house.repo).len(), 1);
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_token_that_stays_revoked_is_told_of_once_there_is_another() {
    let house = hasty_house().await;
    let issue = meddled(&house, async |house, _| house.forge.revoke(&house.token)).await;
    house.work_for(4 * HOUR).await;
    house.forge.restore(&house.token);
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::Failed(Failure::ForgeAuth));
    let told = house.status_comments(issue);
    assert!(told.len() == 1 && told[0].contains("access token"), "{told:?}");
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_a_repository_that_is_renamed_archived_or_deleted_ends_the_job_by_name() {
    for case in TAKEN_AWAY {
        let what = case.0;
        let house = hasty_house().await;
        let end = taken_away(&house, case).await;
        assert!(!end.person.is_empty() && !end.next.is_empty(), "{what}");
        let (n_jobs, n_requests) = (house.jobs().await.len(), house.forge.requests().len());
        swept(&house, &mut Memory::default()).await;
        assert_eq!(house.jobs().await.len(), n_jobs, "{what}");
        assert!(house.forge.requests().len() - n_requests < 6, "{what}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_d_an_archived_repository_is_told_of_once_it_can_be() {
    let house = short_house().await;
    let issue = meddled(&house, async |house, _| house.forge.archive(&house.repo)).await;
    house.work_for(HOUR).await;
    house.forge.unarchive(&house.repo);
    house.work_through_retries().await;
    assert_eq!(house.end().await.outcome, Outcome::Refused(Rule::RepositoryArchived));
    let told = house.status_comments(issue);
    assert!(told.len() == 1 && told[0].contains("archived"), "{told:?}");
    assert!(house.forge.pulls(&house.repo).is_empty());
    house.assert_clean().await;
}

#[tokio::test]
async fn check_d_another_default_branch_keeps_the_base_and_a_renamed_one_is_followed() {
    for (is_renamed, expected) in [(false, "main"), (true, "trunk")] {
        let house = short_house().await;
        let before = head(&house, "main");
        meddled(&house, async |house, _| {
            let ann = house.forge.person("ann");
            if is_renamed {
                ann.rename_branch(&house.repo, "main", "trunk");
            } else {
                ann.commit(&house.repo, "trunk", [("b.txt", "b\n")]);
                house.forge.set_default_branch(&house.repo, "trunk");
            }
        })
        .await;
        assert_eq!(house.end().await.outcome, Outcome::DraftPr, "{}", house.end().await.operator);
        let pulls = house.forge.pulls(&house.repo);
        assert_eq!((pulls.len(), pulls[0].base.as_str()), (1, expected));
        assert_eq!(parent(&house, "hyla/issue-1-1"), before);
        house.assert_clean().await;
    }
}
