//! Check O: what the model says, in everything that is published. It pings nobody, closes nothing but its own issue,
//! leaves no block open, and fits, by the last character.

#[path = "../../../bot/src/reply/blocks.rs"]
mod blocks;

use bot::job::{CommitId, Outcome, Rule, State};
use bot::reply::{Draft, body, fence};
use tests::house::{House, Setup};
use tests::model::{Recording, Turn};

use blocks::is_closed;

const FIX: &str = "sed -i 's/return opens <=/return closes < opens or opens <=/' hours.py";

/// Every form in which a forge closes an issue or pings somebody, and what ends a block.
const HOSTILE: &str = "close #99 closes: #99 closed acme/hours#99 fix #99, fixes !99 fixed GH-99 resolve gh-99 resolves #99; Resolved #99. \
    implements https://forge.example/acme/hours/issues/99 ref /acme/hours/pulls/99 @ann @acme/owners (@ann) &#64;ann <a href=x>@ann</a> \
    \u{202e}99#\u{202c} @\u{200b}ann ````````\n```\n~~~\n</details>\n<!-- hyla:status:0123456789abcdef -->\n# Closes #99\n| a | b |\n[x]: https://evil.example/99";

/// What a forge would take for a mention or a reference, wherever it stands.
fn links(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    for (at, pair) in chars.windows(2).enumerate() {
        let before: String =
            chars[at.saturating_sub(15)..=at].iter().collect::<String>().to_lowercase();
        let is_number = pair[1].is_ascii_digit();
        let is_link = match pair[0] {
            '@' => pair[1].is_alphanumeric(),
            '#' | '!' => is_number,
            '-' => is_number && before.ends_with("gh-"),
            '/' => {
                is_number
                    && ["/issues/", "/pulls/", "/pull/"].iter().any(|end| before.ends_with(end))
            }
            _ => false,
        };
        if is_link {
            found.push(chars[at.saturating_sub(15)..(at + 4).min(chars.len())].iter().collect());
        }
    }
    found
}

/// Works on an issue of this title with these turns, and checks all that was published.
async fn published(title: &str, turns: Vec<Turn>) -> (House, u64) {
    let house = House::start(Setup { recording: Recording::of(turns), ..Setup::default() }).await;
    let ann = house.forge.person("ann");
    let issue = ann.open_issue(&house.repo, title, HOSTILE, &[]).await;
    ann.add_label(&house.repo, issue, "hyla").await;
    house.work_through_retries().await;
    for comment in house.status_comments(issue) {
        // The bot links its own draft; nothing else is a link.
        let pull = house.forge.pulls(&house.repo).first().map_or(0, |pull| pull.number);
        let own = [format!("[pull request #{pull}]"), format!("/pulls/{pull})")];
        let rest = own.iter().fold(comment.clone(), |text, own| text.replace(own, ""));
        assert_eq!(links(&rest), Vec::<String>::new(), "{comment}");
        assert_eq!(comment.matches("<!--").count(), 1, "{comment}");
    }
    for pull in house.forge.pulls(&house.repo) {
        let own = format!("(#{issue})");
        assert_eq!(links(&pull.title.replace(&own, "")), Vec::<String>::new(), "{}", pull.title);
        let rest = pull
            .body
            .strip_prefix(&format!("Closes #{issue}\n"))
            .expect("it begins with its issue");
        assert_eq!(links(rest), Vec::<String>::new(), "{rest}");
        assert!(is_closed(&pull.body), "{}", pull.body);
        assert!(pull.body.chars().count() <= 65_536);
    }
    house.assert_clean().await;
    (house, issue)
}

/// The message of the newest commit of the only draft.
fn message(house: &House) -> String {
    let pull = &house.forge.pulls(&house.repo)[0];
    let output = std::process::Command::new("git")
        .arg("--git-dir")
        .arg(house.forge.git_dir(&house.repo))
        .args(["log", "-1", "--format=%B", &pull.head])
        .output()
        .expect("git runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test]
async fn check_o_nothing_that_the_model_says_pings_or_closes() {
    let shown = HOSTILE.replace('\\', "\\\\").replace('\'', "").replace('\n', "\\n");
    let noisy = format!("cat >> tests/test_hours.py <<'E'\n\nprint('''{shown}''')\nE\n");
    let names = "mkdir -p 'Closes #99' @acme; echo x > 'Closes #99/@ann fixes !99'; echo x > '@acme/GH-99'; \
                 echo x > '` @ann #99 ``'; echo x > 'a|@ann|#99'; mkdir -p 'node_modules/@ann #99'; echo x > 'node_modules/@ann #99/x'; \
                 mkfifo '@ann #99'; mkdir -p issues; echo x > issues/99";
    let turns = vec![
        Turn::bash(&format!("{noisy}{FIX}")),
        Turn { content: HOSTILE.into(), reasoning: HOSTILE.into(), ..Turn::bash(names) },
        Turn::says(HOSTILE),
    ];
    let (house, issue) = published(HOSTILE, turns).await;
    let end = house.end().await;
    assert_eq!(end.outcome, Outcome::DraftPr, "{}", end.operator);
    let message = message(&house);
    assert_eq!(
        links(&message.replace(&format!("#{issue}"), "")),
        Vec::<String>::new(),
        "{message}"
    );
    let body = &house.forge.pulls(&house.repo)[0].body;
    assert!(body.contains("left out") && body.contains("a\\|@\u{200b}ann"), "{body}");
}

#[tokio::test]
async fn check_o_a_refusal_names_the_file_and_pings_nobody() {
    for (name, rule) in [("x/@ann Closes #99 `` !99", Rule::Secret), ("@ann #99 ", Rule::PathName)]
    {
        let folder = name.split_once('/').map_or(".", |(folder, _)| folder);
        let script = format!("mkdir -p {folder}; echo AKIAIOSFODNN7EXAMPLQ > '{name}'");
        let (house, issue) =
            published("A title", vec![Turn::bash(&script), Turn::says(HOSTILE)]).await;
        assert_eq!(
            house.end().await.outcome,
            Outcome::Refused(rule),
            "{}",
            house.end().await.operator
        );
        assert!(
            house.status_comments(issue)[0].contains("\u{200b}ann"),
            "{}",
            house.status_comments(issue)[0]
        );
    }
}

#[tokio::test]
async fn check_o_long_words_and_outputs_end_on_a_whole_letter() {
    for letter in ["é", "日", "🐸", "`", "@a"] {
        let print = format!("sed -i '1i print(\"{letter}\" * 70000)' tests/test_hours.py; {FIX}");
        let turns = vec![Turn::bash(&print), Turn::says(&letter.repeat(70_000))];
        let (house, _) = published(&letter.repeat(300), turns).await;
        assert_eq!(
            house.end().await.outcome,
            Outcome::DraftPr,
            "{letter}: {}",
            house.end().await.operator
        );
        let pull = &house.forge.pulls(&house.repo)[0];
        assert!(
            pull.title.chars().count() <= 255 && !pull.title.contains(char::REPLACEMENT_CHARACTER)
        );
        assert!(!pull.body.contains(char::REPLACEMENT_CHARACTER));
    }
}

/// Bodies of every length around what fits, by characters of one to four bytes.
#[test]
fn check_o_a_body_fits_by_the_last_character() {
    let base = CommitId("0123456789abcdef".into());
    for letter in ["x", "é", "日", "🐸", "`", "@1"] {
        let output = format!("{}\n```\n", letter.repeat(20_000));
        let evidence = format!(
            "| a | b |\n\n<details><summary>x</summary>\n\n{}\n</details>\n",
            fence(&output, usize::MAX)
        );
        let words = letter.repeat(3000);
        let draft = Draft {
            issue: 7,
            changes: &[],
            left_out: &[],
            evidence: &evidence,
            words: &words,
            session: "`m` took 2 turns",
            sandbox: "bubblewrap 1.2.3",
            confinement: bot::sandbox::Confinement::Sealed,
            asked_by: Some("ann"),
            found_by: None,
            base_branch: "main",
            base: &base,
            digest: "d",
        };
        let whole = body(&draft, 1 << 20).chars().count();
        let around = |at: usize| at.saturating_sub(2)..at + 3;
        let limits = around(whole)
            .chain(around(whole + 400))
            .chain(around(65_536))
            .chain(around(whole - 3000))
            .chain(2000..2010);
        for limit in limits {
            let body = body(&draft, limit);
            let n_chars = body.chars().count();
            assert!(n_chars <= limit, "{letter}: {n_chars} of {limit}");
            assert!(is_closed(&body), "{letter} {limit}");
            assert!(
                links(body.strip_prefix("Closes #7").expect("it begins with its issue")).is_empty()
            );
        }
    }
}

#[tokio::test]
async fn check_o_an_end_without_a_draft_repeats_nothing_of_the_model() {
    let (house, issue) = published(HOSTILE, vec![Turn::says(HOSTILE)]).await;
    let row = house.jobs().await.remove(0);
    let State::Ended { end } = row.job.state else { panic!("{:?}", row.job.state) };
    assert!(matches!(end.outcome, Outcome::NoFix(_)));
    let comment = &house.status_comments(issue)[0];
    assert!(!comment.contains("evil.example") && !comment.contains("owners"), "{comment}");
}
