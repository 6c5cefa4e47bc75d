//! Check K: a forge below a path, behind a private authority and under another address for people, with its own word for a
//! draft, and with more labels and comments than one page holds.

use bot::job::Outcome;
use tests::house::{House, Place, Setup};
use tests::story::short;

/// More than a page of any forge holds.
const MANY: usize = 120;

#[tokio::test]
async fn check_k_below_a_path_and_behind_a_private_authority_there_is_a_draft() {
    if !tests::tls::is_there() {
        eprintln!("skipped: there is no openssl command");
        return;
    }
    for place in Place::ALL {
        let setup = Setup { sub_path: "/code", is_behind_tls: true, ..short() };
        let house = House::start(place.with(setup)).await;
        let issue = house.labelled_and_worked().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
        let comments = house.status_comments(issue);
        let link = "](https://localhost:";
        assert!(comments[0].contains(link) && comments[0].contains("/code/acme/hours/pull"));
        house.assert_one_of_each(issue, place).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_k_through_a_proxy_api_and_git_find_their_way() {
    if !tests::tls::is_there() {
        eprintln!("skipped: there is no openssl command");
        return;
    }
    for place in Place::ALL {
        let setup = Setup { is_behind_tls: true, is_behind_proxy: true, ..short() };
        let house = House::start(place.with(setup)).await;
        let issue = house.labelled_and_worked().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
        let asked = house.proxy.as_ref().expect("there is one").asked();
        let tunnel = "CONNECT forge.invalid:";
        assert!(
            !asked.is_empty() && asked.iter().all(|line| line.starts_with(tunnel)),
            "{asked:?}"
        );
        house.assert_one_of_each(issue, place).await;
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_k_an_authority_that_is_not_configured_is_not_trusted() {
    if !tests::tls::is_there() {
        eprintln!("skipped: there is no openssl command");
        return;
    }
    for place in [Place::GITEA, Place::GITHUB_APP, Place::GITHUB_USER] {
        let change = |config: &mut config::Config| {
            config.forges.values_mut().for_each(|forge| forge.ca_file = None);
        };
        let setup = Setup { is_behind_tls: true, change: Box::new(change), ..short() };
        let house = House::start(place.with(setup)).await;
        let issue = house.open_issue().await;
        house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
        house.work().await;
        assert!(house.forge.requests().is_empty(), "{place:?}: nothing was told to a stranger");
        house.forge.assert_clean();
    }
}

#[tokio::test]
async fn check_k_people_are_given_the_address_that_is_theirs() {
    for place in Place::ALL {
        let change = |config: &mut config::Config| {
            let url: url::Url = "https://code.example.org/all".parse().expect("it is an address");
            config.forges.values_mut().for_each(|forge| forge.public_url = Some(url.clone()));
        };
        let setup = Setup { change: Box::new(change), ..short() };
        let house = House::start(place.with(setup)).await;
        let issue = house.labelled_and_worked().await;
        let comment = house.status_comments(issue).join("\n");
        assert!(comment.contains("(https://code.example.org/all/acme/hours/pull"), "{comment}");
        let port = format!(":{}", house.forge.url().port().expect("it has one"));
        assert!(!comment.contains(&port), "{comment}");
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_k_the_forges_own_word_for_a_draft_is_used() {
    for place in [Place::GITEA, Place::FORGEJO] {
        let change = |config: &mut config::Config| {
            config.forges.values_mut().for_each(|forge| forge.draft_prefix = "Entwurf:".into());
        };
        let setup = Setup { change: Box::new(change), ..short() };
        let house = House::start(place.with(setup)).await;
        house.forge.set_draft_prefixes(&["Entwurf:"]);
        house.labelled_and_worked().await;
        let pull = house.forge.pulls(&house.repo).remove(0);
        assert!(pull.is_draft && pull.title.starts_with("Entwurf: "), "{}", pull.title);
        house.assert_clean().await;
    }
}

#[tokio::test]
async fn check_k_what_stands_on_a_later_page_counts() {
    for place in Place::ALL {
        let house = House::start(place.with(short())).await;
        let ann = house.forge.person("ann");
        let issue = house.open_issue().await;
        house.forge.hold_hooks(true);
        for number in 0..MANY {
            ann.add_label(&house.repo, issue, &format!("area/{number}")).await;
            ann.comment(&house.repo, issue, &format!("remark {number} of many")).await;
        }
        house.forge.hold_hooks(false);
        ann.add_label(&house.repo, issue, "hyla").await;
        house.work().await;
        let end = house.end().await;
        assert_eq!(end.outcome, Outcome::DraftPr, "{place:?}: {}", end.operator);
        let task = house.model.requests()[0].to_string();
        // The model is shown the newest thirty.
        for number in [MANY - 30, MANY - 1] {
            assert!(task.contains(&format!("remark {number} of many")), "{place:?}: {number}");
        }
        house.assert_one_of_each(issue, place).await;
        house.assert_clean().await;
    }
}
