//! Whether the words of a pull request would close an issue once it is merged: one of GitHub's nine words, perhaps a colon,
//! and then the issue, as `#7`, as `owner/name#7` or by its address.

use std::sync::LazyLock;

use regex::Regex;

use crate::job::RepoName;

/// A closing word and what follows it.
static CLOSES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?i)\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?[ \t]+(?:https?://[^\s/]+/(?P<url>[\w.-]+/[\w.-]+)/issues/(?P<at>\d+)|(?P<repo>[\w.-]+/[\w.-]+)?#(?P<number>\d+))\b",
    )
    .expect("it is a pattern")
});

/// Whether a pull request of `from` with this text would close the issue.
pub(super) fn closes(text: &str, from: &RepoName, repo: &RepoName, number: u64) -> bool {
    CLOSES.captures_iter(text).any(|found| {
        let named = found.name("url").or_else(|| found.name("repo"));
        let is_same = named.map_or_else(
            || from.to_string().eq_ignore_ascii_case(&repo.to_string()),
            |named| named.as_str().eq_ignore_ascii_case(&repo.to_string()),
        );
        let digits = found.name("at").or_else(|| found.name("number"));
        is_same && digits.is_some_and(|digits| digits.as_str().parse() == Ok(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_that_close_an_issue_are_found_and_no_others() {
        let name = |text: &str| text.parse::<RepoName>().unwrap();
        let (app, other) = (name("acme/app"), name("acme/other"));
        for text in [
            "Closes #7",
            "It fixes: #7.",
            "RESOLVED #7",
            "close acme/app#7",
            "Fixes https://ghe.example/acme/app/issues/7",
            "Closes #1, closes #7",
        ] {
            assert!(closes(text, &app, &app, 7), "{text}");
        }
        for text in ["See #7", "Closes #70", "Closes#7", "discloses #7", "closes other/app#7", ""] {
            assert!(!closes(text, &app, &app, 7), "{text}");
        }
        assert!(!closes("Closes #7", &other, &app, 7));
        assert!(closes("Closes Acme/App#7", &other, &app, 7));
    }
}
