//! What the client says by itself, with nothing sent.

use std::time::Duration;

use super::*;
use crate::publish::Author;

fn github(lines: &str) -> GitHub {
    let text = format!(
        "[forge.main]\nkind = \"github\"\nurl = \"https://ghe.example:8443/\"\ntoken = {{ env = \"T\" }}\n\
         webhook_secrets = [{{ env = \"W\" }}]\nrepositories = [\"acme/app\"]\n{lines}"
    );
    let config = config::parse("hyla.toml".as_ref(), &text).unwrap();
    GitHub::new(&config.forges["main"], &Credential::Token("t0k3n".into())).unwrap()
}

#[test]
fn commits_bear_the_noreply_address_of_the_instance_unless_the_operator_names_one() {
    let bot = User { id: 41, login: "hyla[bot]".into() };
    let own = github("").email_of(&bot);
    assert_eq!(own.as_deref(), Some("41+hyla[bot]@users.noreply.ghe.example"));
    let public = github("public_url = \"https://code.example/\"\n").email_of(&bot);
    assert_eq!(public.as_deref(), Some("41+hyla[bot]@users.noreply.code.example"));

    let mut settings = config::Publish::default();
    let email =
        |settings: &config::Publish, own: Option<&str>| Author::new(settings, own, None).email;
    assert_eq!(email(&settings, own.as_deref()), "41+hyla[bot]@users.noreply.ghe.example");
    assert_eq!(email(&settings, None), "hyla@localhost");
    settings.author_email = Some("bot@acme.example".into());
    assert_eq!(email(&settings, own.as_deref()), "bot@acme.example");
}

#[test]
fn links_and_calls_lead_to_the_instance_and_not_to_the_public_github() {
    let repo: RepoName = "acme/app".parse().unwrap();
    let forge = github("");
    assert_eq!(forge.link(&repo, 7), "https://ghe.example:8443/acme/app/pull/7");
    assert_eq!(forge.web.as_str(), "https://ghe.example:8443/");
    let public = github("public_url = \"https://code.example/\"\n");
    assert_eq!(public.link(&repo, 7), "https://code.example/acme/app/pull/7");
}

#[test]
fn an_address_may_end_in_a_slash_and_in_the_api() {
    for (written, expected) in [
        ("https://h", "https://h/api/v3/a"),
        ("https://h/", "https://h/api/v3/a"),
        ("https://h/api/v3", "https://h/api/v3/a"),
        ("https://h/api/v3/", "https://h/api/v3/a"),
        ("https://h/git", "https://h/git/api/v3/a"),
        ("https://h/git/api/v3/", "https://h/git/api/v3/a"),
    ] {
        let url = join(&web(&written.parse().unwrap()), ["api", "v3", "a"]);
        assert_eq!(url.as_str(), expected, "{written}");
    }
}

#[test]
fn a_repository_without_drafts_is_told_from_other_refusals() {
    let declined = |status, message: &str| Error::Declined {
        call: "c".into(),
        status,
        message: message.into(),
    };
    let words = "Draft pull requests are not supported in this repository.";
    assert!(takes_no_drafts(&declined(422, &format!("Validation Failed; {words}"))));
    assert!(!takes_no_drafts(&declined(422, "A pull request already exists for a:b.")));
    assert!(!takes_no_drafts(&declined(409, words)));
}

/// No writes go out faster than this by default.
#[test]
fn one_write_a_second_is_the_default() {
    let text = "[forge.main]\nkind = \"github\"\nurl = \"https://h\"\ntoken = { env = \"T\" }\n\
                webhook_secrets = [{ env = \"W\" }]\nrepositories = [\"a/b\"]\n";
    let config: config::Config = config::parse(text.as_ref(), text).unwrap();
    assert_eq!(config.forges["main"].write_pause, Duration::from_secs(1));
}
