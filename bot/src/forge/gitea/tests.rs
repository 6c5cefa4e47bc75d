//! Small facts of the client that need no server, and answers that real servers gave.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{starts_with, wire};
use crate::forge::http::join;
use crate::forge::{self, LabelChange};

const RECORDINGS: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/forges/recordings/forgejo-ogr");

#[test]
fn addresses_keep_their_sub_path_and_lose_nothing_of_a_name() {
    let table = [
        ("https://h", "https://h/api/v1/a"),
        ("https://h/", "https://h/api/v1/a"),
        ("https://h/git", "https://h/git/api/v1/a"),
        ("https://h/git/", "https://h/git/api/v1/a"),
    ];
    for (base, expected) in table {
        let url = join(&base.parse().unwrap(), ["api", "v1", "a"]);
        assert_eq!(url.as_str(), expected);
    }
    let url = join(&"https://h".parse().unwrap(), ["a/b", "c?d#e", "f%2Fg", "ä", "x[bot]"]);
    assert_eq!(url.as_str(), "https://h/a%2Fb/c%3Fd%23e/f%252Fg/%C3%A4/x%5Bbot%5D");
}

#[test]
fn a_prefix_is_compared_as_the_servers_do() {
    let table = [
        ("WIP: x", true),
        ("wip:x", true),
        ("WIP:", true),
        ("WIP x", false),
        ("Mend WIP: x", false),
        ("", false),
        ("äää", false),
    ];
    for (title, expected) in table {
        assert_eq!(starts_with(title, "WIP:"), expected, "{title}");
    }
}

fn timeline_entry(changes: Value) -> wire::TimelineEntry {
    let mut entry = json!({
        "id": 7,
        "type": "label",
        "body": "1",
        "user": { "id": 3, "login": "ada" },
        "label": { "id": 1, "name": "hyla" },
        "created_at": "2026-01-05T10:00:00+01:00",
    });
    for (key, value) in changes.as_object().unwrap() {
        entry[key] = value.clone();
    }
    serde_json::from_value(entry).unwrap()
}

#[test]
fn a_timeline_entry_is_a_label_event_only_if_it_is_about_that_label() {
    let event = |changes| timeline_entry(changes).label_event("hyla").unwrap();
    assert_eq!(event(json!({})).unwrap().change, LabelChange::Added);
    assert_eq!(event(json!({ "body": "" })).unwrap().change, LabelChange::Removed);
    assert_eq!(event(json!({ "body": null })).unwrap().change, LabelChange::Removed);
    assert!(event(json!({ "type": "comment" })).is_none());
    assert!(event(json!({ "label": null })).is_none());
    assert!(event(json!({ "label": { "name": "Hyla" } })).is_none());
    let added = event(json!({})).unwrap();
    assert_eq!(added.at.to_rfc3339(), "2026-01-05T09:00:00+00:00");
    assert_eq!((added.id, added.actor.login.as_str()), (7, "ada"));
    let nobody = event(json!({ "user": null })).unwrap();
    assert_eq!(nobody.actor, wire::ghost());
    timeline_entry(json!({ "body": "2" })).label_event("hyla").unwrap_err();
}

/// Answers of 2xx to requests whose path ends in a given way; `#` stands for a number.
fn recorded(method: &str, end: &str) -> Option<Vec<Value>> {
    let folder = std::fs::read_dir(Path::new(RECORDINGS)).ok()?;
    let mut bodies = Vec::new();
    for file in folder {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap();
        let exchanges: Vec<Value> = serde_json::from_str(&text).unwrap();
        for exchange in exchanges {
            let url: url::Url = exchange["url"].as_str().unwrap().parse().unwrap();
            let segments = url.path_segments().unwrap().map(|segment| {
                let is_number = !segment.is_empty() && segment.bytes().all(|b| b.is_ascii_digit());
                if is_number { "#" } else { segment }
            });
            let path = segments.skip(2).collect::<Vec<_>>().join("/");
            let is_fine = exchange["status"].as_u64().is_some_and(|s| (200..300).contains(&s));
            let is_meant = path
                .strip_prefix("repos/")
                .map_or(path == end, |rest| rest.splitn(3, '/').nth(2).unwrap_or_default() == end);
            if exchange["method"] == method && is_fine && is_meant {
                bodies.push(exchange["body"].clone());
            }
        }
    }
    Some(bodies)
}

fn parse_all<T: DeserializeOwned>(method: &str, end: &str) -> Vec<T> {
    let Some(bodies) = recorded(method, end) else {
        eprintln!("skipped: the recordings are not at hand");
        return vec![];
    };
    assert!(!bodies.is_empty(), "no recording of {method} {end}");
    let parse =
        |body| serde_json::from_value(body).unwrap_or_else(|e| panic!("{method} {end}: {e}"));
    bodies.into_iter().map(parse).collect()
}

#[test]
fn answers_of_a_real_server_are_understood() {
    parse_all::<wire::User>("GET", "user");
    parse_all::<wire::Repository>("GET", "");
    parse_all::<wire::Branch>("GET", "branches/master");
    parse_all::<wire::Issue>("GET", "issues/#");
    parse_all::<Vec<wire::Comment>>("GET", "issues/#/comments");
    parse_all::<wire::Id>("POST", "issues/#/comments");
    parse_all::<wire::CollaboratorPermission>("GET", "collaborators/mfocko/permission");
    for pull in parse_all::<wire::Pull>("POST", "pulls") {
        assert!(pull.is_open());
        assert!(pull.draft.is_some());
    }
    for pull in parse_all::<wire::Pull>("GET", "pulls/#") {
        let (base, head) = (pull.base.label.clone(), pull.head.label.clone());
        assert_eq!(pull.is_between(&base, &head), pull.base.repo_id == pull.head.repo_id);
    }
    for issue in parse_all::<wire::Issue>("GET", "issues/#") {
        let issue = forge::Issue::from(issue);
        assert!(issue.number > 0 && issue.author.id > 0);
    }
}
