//! How many tests passed, failed and were skipped, as the usual runners print it. Pure, and only for people: whoever writes
//! the code under test can print any number.

use std::sync::OnceLock;

use regex::Regex;

/// What a runner says it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// How many passed.
    pub passed: u64,
    /// How many failed or broke.
    pub failed: u64,
    /// How many were skipped or ignored.
    pub skipped: u64,
    /// What is counted.
    pub unit: Unit,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Tests.
    Tests,
    /// Packages of tests: `go test` without `-v` tells no more.
    Packages,
}

/// Reads the counts out of a run's output, whichever runner it was.
pub(super) fn parse(output: &str) -> Option<Counts> {
    let readers =
        [cargo, pytest, unittest, jest, vitest, maven, go, mocha, node, rspec, phpunit, gradle];
    readers.iter().find_map(|read| read(output))
}

fn tests(passed: u64, failed: u64, skipped: u64) -> Option<Counts> {
    Some(Counts { passed, failed, skipped, unit: Unit::Tests })
}

/// `test result: FAILED. 3 passed; 1 failed; 2 ignored; ...`, once for each binary.
fn cargo(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line = pattern(&LINE, r"(?m)^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored");
    let found: Vec<[u64; 3]> = line.captures_iter(output).map(|hit| numbers(&hit)).collect();
    let sum = |which: usize| found.iter().fold(0_u64, |sum, line| sum.saturating_add(line[which]));
    if found.is_empty() { None } else { tests(sum(0), sum(1), sum(2)) }
}

/// `=== 1 failed, 2 passed, 1 skipped in 0.12s ===`, the last such line.
fn pytest(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line = pattern(&LINE, r"(?m)^=*\s*((?:\d+ [a-z]+,? ?)+)in [\d.]+s");
    let words = line.captures_iter(output).last()?.get(1)?.as_str();
    let failed = before(words, "failed")
        .saturating_add(before(words, "error"))
        .saturating_add(before(words, "errors"));
    let passed = before(words, "passed").saturating_add(before(words, "xpassed"));
    tests(passed, failed, before(words, "skipped").saturating_add(before(words, "xfailed")))
}

/// `Ran 5 tests in 0.1s`, then `OK (skipped=1)` or `FAILED (failures=1, errors=1)`.
fn unittest(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line = pattern(
        &LINE,
        r"(?m)^Ran (\d+) tests? in [\d.]+s\s+(?:OK|FAILED|NO TESTS RAN)(?: \((.*)\))?",
    );
    let hit = line.captures_iter(output).last()?;
    let ran = number(&hit, 1);
    let words = hit.get(2).map_or("", |words| words.as_str());
    let failed = after(words, "failures=").saturating_add(after(words, "errors="));
    let skipped = after(words, "skipped=").saturating_add(after(words, "expected failures="));
    tests(ran.saturating_sub(failed).saturating_sub(skipped), failed, skipped)
}

/// `Tests:       1 failed, 2 skipped, 3 passed, 6 total`.
fn jest(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line = pattern(&LINE, r"(?m)^Tests:\s+(.*\d+ total)");
    let words = line.captures_iter(output).last()?.get(1)?.as_str();
    let skipped = before(words, "skipped").saturating_add(before(words, "todo"));
    tests(before(words, "passed"), before(words, "failed"), skipped)
}

/// `      Tests  1 failed | 3 passed | 1 skipped (5)`.
fn vitest(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line = pattern(&LINE, r"(?m)^\s*Tests  (.*) \(\d+\)\s*$");
    let words = line.captures_iter(output).last()?.get(1)?.as_str();
    tests(before(words, "passed"), before(words, "failed"), before(words, "skipped"))
}

/// `Tests run: 5, Failures: 1, Errors: 0, Skipped: 1`, the summary and not the line of one class.
fn maven(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line =
        pattern(&LINE, r"(?m)Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+)\s*$");
    let hit = line.captures_iter(output).last()?;
    let failed = number(&hit, 2).saturating_add(number(&hit, 3));
    let skipped = number(&hit, 4);
    tests(number(&hit, 1).saturating_sub(failed).saturating_sub(skipped), failed, skipped)
}

/// `--- PASS: TestX` with `-v`; otherwise `ok  pkg  0.1s` and `FAIL  pkg  0.1s`.
fn go(output: &str) -> Option<Counts> {
    static TEST: OnceLock<Regex> = OnceLock::new();
    static PACKAGE: OnceLock<Regex> = OnceLock::new();
    let test = pattern(&TEST, r"(?m)^--- (PASS|FAIL|SKIP): ");
    let package = pattern(&PACKAGE, r"(?m)^(ok|FAIL) *\t");
    let count = |line: &Regex, word: &str| {
        line.captures_iter(output).filter(|hit| &hit[1] == word).count() as u64
    };
    if count(test, "PASS") > 0 {
        return tests(count(test, "PASS"), count(test, "FAIL"), count(test, "SKIP"));
    }
    let (passed, failed) = (count(package, "ok"), count(package, "FAIL"));
    let counts = Counts { passed, failed, skipped: 0, unit: Unit::Packages };
    (passed + failed > 0).then_some(counts)
}

/// `  3 passing (12ms)`, `  1 failing`, `  1 pending`.
fn mocha(output: &str) -> Option<Counts> {
    static PASSING: OnceLock<Regex> = OnceLock::new();
    static REST: OnceLock<Regex> = OnceLock::new();
    let passing = pattern(&PASSING, r"(?m)^\s+(\d+) passing \(");
    let rest = pattern(&REST, r"(?m)^\s+(\d+) (failing|pending)\s*$");
    let passed = number(&passing.captures_iter(output).last()?, 1);
    let named = |word: &str| {
        rest.captures_iter(output)
            .filter(|hit| &hit[2] == word)
            .last()
            .map_or(0, |hit| number(&hit, 1))
    };
    tests(passed, named("failing"), named("pending"))
}

/// `# pass 3`, `# fail 1`, `# skipped 0` of Node's own runner, or with an information sign for people.
fn node(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line = pattern(&LINE, r"(?m)^(?:#|ℹ) (pass|fail|skipped) (\d+)\s*$");
    let named = |word: &str| {
        line.captures_iter(output).filter(|hit| &hit[1] == word).last().map(|hit| number(&hit, 2))
    };
    tests(named("pass")?, named("fail")?, named("skipped").unwrap_or(0))
}

/// `10 examples, 2 failures, 1 pending`.
fn rspec(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line = pattern(&LINE, r"(?m)^(\d+) examples?, (\d+) failures?(?:, (\d+) pending)?");
    let [ran, failed, skipped] = numbers(&line.captures_iter(output).last()?);
    tests(ran.saturating_sub(failed).saturating_sub(skipped), failed, skipped)
}

/// `OK (3 tests, 4 assertions)` or `Tests: 3, Assertions: 4, Failures: 1.`
fn phpunit(output: &str) -> Option<Counts> {
    static GOOD: OnceLock<Regex> = OnceLock::new();
    static BAD: OnceLock<Regex> = OnceLock::new();
    let bad = pattern(&BAD, r"(?m)^Tests: (\d+), Assertions: \d+(.*)$");
    if let Some(hit) = bad.captures_iter(output).last() {
        let words = &hit[2];
        let failed = after(words, "Failures: ").saturating_add(after(words, "Errors: "));
        let skipped = after(words, "Skipped: ");
        return tests(
            number(&hit, 1).saturating_sub(failed).saturating_sub(skipped),
            failed,
            skipped,
        );
    }
    let good = pattern(&GOOD, r"(?m)^OK \((\d+) tests?, \d+ assertions?\)");
    tests(number(&good.captures_iter(output).last()?, 1), 0, 0)
}

/// `5 tests completed, 1 failed, 1 skipped`, which Gradle prints only when something failed.
fn gradle(output: &str) -> Option<Counts> {
    static LINE: OnceLock<Regex> = OnceLock::new();
    let line = pattern(&LINE, r"(?m)^(\d+) tests? completed, (\d+) failed(?:, (\d+) skipped)?");
    let [ran, failed, skipped] = numbers(&line.captures_iter(output).last()?);
    tests(ran.saturating_sub(failed).saturating_sub(skipped), failed, skipped)
}

fn pattern(cell: &'static OnceLock<Regex>, text: &str) -> &'static Regex {
    cell.get_or_init(|| Regex::new(text).expect("the patterns are literals, and each has a test"))
}

fn number(hit: &regex::Captures<'_>, group: usize) -> u64 {
    hit.get(group).and_then(|digits| digits.as_str().parse().ok()).unwrap_or(0)
}

fn numbers(hit: &regex::Captures<'_>) -> [u64; 3] {
    [number(hit, 1), number(hit, 2), number(hit, 3)]
}

/// The number before a word, as in `3 passed`.
fn before(words: &str, word: &str) -> u64 {
    let parts: Vec<&str> = words.split([' ', ',', '|']).filter(|part| !part.is_empty()).collect();
    let pair = parts.windows(2).find(|pair| pair[1] == word);
    pair.and_then(|pair| pair[0].parse().ok()).unwrap_or(0)
}

/// The number after a word, as in `failures=3`.
fn after(words: &str, word: &str) -> u64 {
    let found = words
        .match_indices(word)
        .find(|(at, _)| !words[..*at].ends_with("expected ") || word.starts_with("expected"));
    let rest = found.map_or("", |(at, _)| &words[at + word.len()..]);
    rest.split(|letter: char| !letter.is_ascii_digit())
        .next()
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_runners_are_understood() {
        let cases = [
            ("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\n", 3, 0, 1),
            (
                "test result: ok. 3 passed; 0 failed; 1 ignored\nx\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n",
                4,
                2,
                1,
            ),
            ("==== 1 failed, 2 passed, 1 skipped, 3 warnings in 0.12s ====\n", 2, 1, 1),
            ("5 passed in 1.00s\n", 5, 0, 0),
            ("======= 2 errors in 0.05s =======\n", 0, 2, 0),
            ("1 passed, 1 xfailed, 1 xpassed in 61.00s (0:01:01)\n", 2, 0, 1),
            ("Ran 5 tests in 0.001s\n\nOK\n", 5, 0, 0),
            ("Ran 5 tests in 0.001s\n\nOK (skipped=2)\n", 3, 0, 2),
            ("Ran 5 tests in 0.001s\n\nFAILED (failures=1, errors=2)\n", 2, 3, 0),
            ("Ran 5 tests in 0.001s\n\nOK (expected failures=1)\n", 4, 0, 1),
            ("Tests:       1 failed, 2 skipped, 3 passed, 6 total\n", 3, 1, 2),
            (" Test Files  1 failed (1)\n      Tests  1 failed | 3 passed (4)\n", 3, 1, 0),
            (
                "[INFO] Tests run: 2, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s - in A\n[ERROR] Tests run: 5, Failures: 1, Errors: 1, Skipped: 1\n",
                2,
                2,
                1,
            ),
            (
                "--- PASS: TestA (0.00s)\n--- FAIL: TestB (0.00s)\n--- SKIP: TestC (0.00s)\n",
                1,
                1,
                1,
            ),
            ("  3 passing (12ms)\n  1 pending\n  2 failing\n", 3, 2, 1),
            ("# tests 4\n# pass 3\n# fail 1\n# skipped 0\n", 3, 1, 0),
            ("ℹ pass 3\nℹ fail 0\n", 3, 0, 0),
            ("10 examples, 2 failures, 1 pending\n", 7, 2, 1),
            ("OK (3 tests, 4 assertions)\n", 3, 0, 0),
            ("Tests: 5, Assertions: 4, Errors: 1, Failures: 1, Skipped: 1.\n", 2, 2, 1),
            ("5 tests completed, 1 failed, 1 skipped\n", 3, 1, 1),
        ];
        for (output, passed, failed, skipped) in cases {
            assert_eq!(parse(output), tests(passed, failed, skipped), "{output}");
        }
    }

    #[test]
    fn go_without_details_counts_packages() {
        let output = "ok  \texample.org/a\t0.1s\nFAIL\texample.org/b\t0.2s\nFAIL\n";
        let counts = Counts { passed: 1, failed: 1, skipped: 0, unit: Unit::Packages };
        assert_eq!(parse(output), Some(counts));
    }

    #[test]
    fn other_output_has_no_counts() {
        for output in
            ["", "all good", "passed", "error in 3s", "Ran out of memory", "99999999999999999999 x"]
        {
            assert_eq!(parse(output), None, "{output}");
        }
        let huge = "test result: ok. 99999999999999999999 passed; 0 failed; 0 ignored\n";
        assert_eq!(parse(huge), tests(0, 0, 0));
    }
}
