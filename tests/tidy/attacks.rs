//! The list of attacks that the sandbox is tested with, T1 to T42: which of them have a test of their own.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// The ids of the list. What each stands for is told by the table in `bot/tests/sandbox/main.rs`.
pub(crate) const IDS: RangeInclusive<u32> = 1..=42;

/// The ids in the names of the tests in a file of Rust, such as 9 for `t09_calls_are_denied`. A test that covers a whole
/// range is none of any one of them.
pub(crate) fn ids(text: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[") {
            is_test |= ["#[test]", "#[tokio::test"].iter().any(|start| line.starts_with(start));
            is_ignored |= line.starts_with("#[ignore");
        } else if let Some(name) = line.trim_start_matches("async ").strip_prefix("fn ") {
            // Nobody runs one that is ignored.
            found.extend(id(name).filter(|_| is_test && !is_ignored));
            (is_test, is_ignored) = (false, false);
        }
    }
    found
}

/// The id that a name begins with.
fn id(name: &str) -> Option<u32> {
    let (number, rest) = name.strip_prefix('t')?.split_once('_')?;
    let is_number = number.len() == 2 && number.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number || rest.starts_with("to_t") {
        return None;
    }
    number.parse().ok()
}
