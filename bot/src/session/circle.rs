//! Sees when a model goes round in circles: the same calls with the same answers, over and over.
//!
//! A step is a call, its arguments and what it was answered, so that a command whose output changes is another step each
//! time: whoever waits for something is in no circle. It compares; what comes of a circle is the session's business.

use std::collections::VecDeque;

use serde_json::Value;

use crate::input::digest;

/// Steps of the longest circle that is looked for. Small models that are stuck alternate between two or three calls; a
/// round of more is work that a change of one file makes differ.
const LONGEST: usize = 4;
/// How often one and the same step is a circle: twice may be a check, three times a retry.
const SAME_STEPS: usize = 4;
/// How often several steps in the same order are one.
const SAME_ROUNDS: usize = 3;

/// The last steps of a session.
#[derive(Debug, Default)]
pub(super) struct Steps {
    last: VecDeque<String>,
}

impl Steps {
    /// Notes a step.
    pub(super) fn note(&mut self, name: &str, arguments: &str, observation: &str) {
        // White space between the parts of JSON is no difference.
        let arguments = serde_json::from_str::<Value>(arguments)
            .map_or_else(|_| arguments.to_owned(), |value| value.to_string());
        self.last.push_front(digest(&[name, &arguments, observation]));
        self.last.truncate((LONGEST * SAME_ROUNDS).max(SAME_STEPS));
    }

    /// Whether the last steps are a circle.
    pub(super) fn is_circle(&self) -> bool {
        (1..=LONGEST).any(|length| {
            let rounds = if length == 1 { SAME_STEPS } else { SAME_ROUNDS };
            let n_steps = length * rounds;
            self.last.len() >= n_steps
                && (length..n_steps).all(|at| self.last[at] == self.last[at - length])
        })
    }

    /// Forgets the steps so far.
    pub(super) fn clear(&mut self) {
        self.last.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each letter is a step; digits in a letter's place are observations that change.
    fn is_circle(steps: &str) -> bool {
        let mut seen = Steps::default();
        for step in steps.chars() {
            seen.note("Bash", r#"{"command": "x"}"#, &step.to_string());
        }
        seen.is_circle()
    }

    #[test]
    fn the_same_steps_over_and_over_are_a_circle() {
        for steps in
            ["aaaa", "xaaaa", "ababab", "xyababab", "abcabcabc", "abcdabcdabcd", "aabaabaab"]
        {
            assert!(is_circle(steps), "{steps}");
        }
        for steps in [
            "",
            "a",
            "aaa",
            "abab",
            "aabb",
            "abcabc",
            "aaab",
            "0123456789",
            "a0a1a2a3",
            "abcdeabcdeabcde",
        ] {
            assert!(!is_circle(steps), "{steps}");
        }
    }

    #[test]
    fn white_space_between_arguments_is_no_difference_and_another_tool_is_one() {
        let mut seen = Steps::default();
        for arguments in [r#"{"a":1}"#, r#"{ "a": 1 }"#, "{\"a\":\n1}", r#"{"a" :1}"#] {
            seen.note("Read", arguments, "x");
        }
        assert!(seen.is_circle());
        seen.note("Glob", r#"{"a":1}"#, "x");
        assert!(!seen.is_circle());
        seen.clear();
        for _ in 0..SAME_STEPS {
            seen.note("Bash", "{\"command\": broken", "Error");
        }
        assert!(seen.is_circle(), "a broken call is a step too");
    }
}
