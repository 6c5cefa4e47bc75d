//! What passes and must be named: what a patch takes away from the tests that the base commit has, file by file, and that
//! it changes nothing else.
//!
//! It looks at paths and lines, not at what a test asks for: the test runs show that. Whether a change is honest is for
//! people to say.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use regex::bytes::Regex;

use crate::evidence::is_test;
use crate::patch::{Change, Kind, Patch};

/// Beginnings of a test case in one line, by their runners' documentation. The name, where there is one, is a group.
const CASES: &str = r#"(?m)^\s*(?:(?:async\s+)?def\s+(test\w*)|func\s+((?:Test|Fuzz|Benchmark)\w*)\s*\(|#\[(?:\w+::)*test\b.*|(?:it|test|specify)\s*(?:\.each\b.*?)?\(\s*(["'`].*)|@(?:Parameterized)?Test\b.*|\[(?:Test|Fact|Theory|TestMethod)\b.*|(?:public\s+)?function\s+(test\w*)|test\s+(["'].*)|TEST(?:_F|_P)?\s*\((.*))"#;

/// What keeps a test, or all but one, from being run, by the same.
const SKIPS: &str = r#"(?m)@(?:unittest\.)?(?:skip|skipIf|skipUnless|expectedFailure)\b|@pytest\.mark\.(?:skip|skipif|xfail)\b|\bpytest\.(?:skip|xfail|importorskip)\s*\(|pytestmark\s*=.*\b(?:skip|xfail)|\bself\.skipTest\s*\(|\bSkipTest\b|__test__\s*=\s*False|#\[ignore\b|#\[cfg_attr\(.*\bignore\b|\b[tb]\.Skip(?:f|Now)?\s*\(|\b(?:it|test|describe|context|suite)\.(?:skip|todo|only|failing|fixme)\b|^\s*(?:xit|xtest|xdescribe|xcontext|fit|fdescribe)\s*\(|@(?:Disabled|Ignore)\b|\[Ignore\b|\bSkip\s*=\s*"|\bmarkTest(?:Skipped|Incomplete)\s*\(|@tag\s+:?skip\b|\bXCTSkip|\bGTEST_SKIP\b|\bDISABLED_\w|^\s*(?:skip|pending)\b"#;

/// A test of the base commit that a patch takes something from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Its path.
    pub path: String,
    /// What is done to it, for people, such as `deleted`.
    pub what: String,
}

/// What a patch takes away from tests, in the order of its files.
pub fn remarks(patch: &Patch) -> Vec<Remark> {
    patch.changes.iter().filter_map(remark).collect()
}

fn remark(change: &Change) -> Option<Remark> {
    let in_tests = is_test(&change.path);
    let (removed, added) = (cases(&change.removed_bytes), cases(&change.added_bytes));
    // Rust has its tests inside of the source.
    let has_own = change.path.ends_with(".rs") && removed.len() + added.len() > 0;
    if !in_tests && !has_own {
        return None;
    }
    let mut what = Vec::new();
    match change.kind {
        Kind::Deleted if in_tests => what.push("deleted".to_owned()),
        Kind::Modified | Kind::Deleted => {
            what.extend(lost(&removed, &added));
            if in_tests && change.removed > 0 {
                what.push(format!("{} taken out or rewritten", lines(change.removed)));
            }
            if in_tests && change.is_binary {
                what.push("replaced".to_owned());
            }
        }
        Kind::Added => {}
    }
    if n_skips(&change.added_bytes) > n_skips(&change.removed_bytes) {
        what.push("tests are skipped".to_owned());
    }
    (!what.is_empty()).then(|| Remark { path: change.path.clone(), what: what.join(", ") })
}

/// How many test cases are gone: those that were removed and not added again under the same name.
fn lost(removed: &[Vec<u8>], added: &[Vec<u8>]) -> Option<String> {
    let mut count: BTreeMap<&[u8], usize> = BTreeMap::new();
    for case in added {
        *count.entry(case).or_default() += 1;
    }
    let mut n_lost = 0;
    for case in removed {
        match count.get_mut(case.as_slice()) {
            Some(left) if *left > 0 => *left -= 1,
            Some(_) | None => n_lost += 1,
        }
    }
    (n_lost > 0).then(|| format!("{n_lost} {} gone", if n_lost == 1 { "test" } else { "tests" }))
}

fn lines(n: usize) -> String {
    format!("{n} {}", if n == 1 { "line" } else { "lines" })
}

/// The test cases that begin in some lines, by their name, or by their whole line where they have none.
fn cases(lines: &[u8]) -> Vec<Vec<u8>> {
    static COMPILED: OnceLock<Regex> = OnceLock::new();
    let cases = COMPILED.get_or_init(|| compiled(CASES));
    let name = |found: regex::bytes::Captures<'_>| {
        let name = found.iter().skip(1).flatten().next();
        name.or(found.get(0)).map(|part| part.as_bytes().trim_ascii().to_vec())
    };
    cases.captures_iter(lines).filter_map(name).collect()
}

fn n_skips(lines: &[u8]) -> usize {
    static COMPILED: OnceLock<Regex> = OnceLock::new();
    COMPILED.get_or_init(|| compiled(SKIPS)).find_iter(lines).count()
}

fn compiled(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the patterns above are valid, which a test shows")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::tests::{added, deleted, modified};

    fn what(change: Change) -> Option<String> {
        remark(&change).map(|remark| remark.what)
    }

    fn edited(path: &str, removed: &str, added: &str) -> Change {
        Change {
            removed: removed.lines().count(),
            removed_bytes: removed.as_bytes().to_vec(),
            added_bytes: added.as_bytes().to_vec(),
            ..modified(path)
        }
    }

    #[test]
    fn what_is_taken_from_tests_is_named() {
        let says = |change, expected: &str| {
            assert_eq!(what(change).as_deref(), Some(expected));
        };
        says(deleted("tests/test_a.py"), "deleted");
        says(
            edited("tests/test_a.py", "def test_a(self):\n    x\n", ""),
            "1 test gone, 2 lines taken out or rewritten",
        );
        says(
            edited("a_test.go", "\tassert(1)\n", "\tassert(2)\n"),
            "1 line taken out or rewritten",
        );
        says(edited("tests/a.py", "", "    @unittest.skip('x')\n"), "tests are skipped");
        says(added("tests/new.py", "pytest.skip('later')\n"), "tests are skipped");
        says(edited("src/lib.rs", "    #[test]\n    fn a() {}\n", ""), "1 test gone");
        says(edited("src/lib.rs", "#[test]\n", "#[test]\n#[ignore]\n"), "tests are skipped");
    }

    #[test]
    fn what_only_adds_to_tests_or_leaves_them_alone_is_not() {
        for change in [
            added("tests/test_a.py", "def test_a():\n    pass\n"),
            edited("tests/test_a.py", "", "def test_b():\n    pass\n"),
            edited("src/app.py", "def test_connection():\n", ""),
            edited("src/app.py", "", "skip = True\n"),
            edited("src/lib.rs", "let a = 1;\n", "let a = 2;\n"),
            deleted("src/app.py"),
        ] {
            assert_eq!(what(change.clone()), None, "{change:?}");
        }
    }

    #[test]
    fn every_runners_skip_and_case_is_known() {
        for text in [
            "@pytest.mark.skip(reason='x')",
            "@unittest.skipIf(True, '')",
            "  self.skipTest('x')",
            "raise unittest.SkipTest",
            "#[ignore]",
            "\tt.Skip()",
            "\tt.SkipNow()",
            "it.skip('x', () => {",
            "describe.only('x')",
            "xit('x', f)",
            "@Disabled",
            "@Ignore",
            "[Ignore]",
            "[Fact(Skip = \"x\")]",
            "$this->markTestSkipped('x');",
            "@tag :skip",
            "  pending 'x'",
            "test.todo('x')",
        ] {
            assert_eq!(n_skips(text.as_bytes()), 1, "{text}");
        }
        for text in
            ["skipper = 1", "self.skip_lines()", "x.Skip(3).Take(4)", "submit('x')", "profit(1)"]
        {
            assert_eq!(n_skips(text.as_bytes()), 0, "{text}");
        }
        for text in [
            "    def test_a(self):",
            "async def test_a():",
            "func TestA(t *testing.T) {",
            "#[tokio::test]",
            "#[test]",
            "  it('works', () => {",
            "test(\"works\", f)",
            "    @Test",
            "[Fact]",
            "public function testA()",
            "  test \"works\" do",
            "TEST_F(Suite, Case) {",
        ] {
            assert_eq!(cases(text.as_bytes()).len(), 1, "{text}");
        }
        for text in
            ["def helper():", "func Helper()", "latest(1)", "#[derive(Debug)]", "commit('x')"]
        {
            assert_eq!(cases(text.as_bytes()).len(), 0, "{text}");
        }
    }
}
