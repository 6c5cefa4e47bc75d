//! Which files are tests, by their path alone. Tests inside a source file, as Rust has them, are not seen.

/// Folders whose files are tests or belong to them, at any depth.
const FOLDERS: [&str; 10] = [
    "test",
    "tests",
    "__tests__",
    "spec",
    "specs",
    "testdata",
    "fixtures",
    "__snapshots__",
    "e2e",
    "testing",
];

/// Beginnings of a file's name, with the ending that they need.
const BEGINNINGS: [(&str, &str); 2] = [("test_", ".py"), ("test-", ".js")];

/// Endings of a file's name.
const ENDINGS: [&str; 28] = [
    "_test.py",
    "_test.go",
    "_test.rs",
    "_test.rb",
    "_spec.rb",
    "_test.exs",
    "_test.dart",
    "_test.c",
    "_test.cc",
    "_test.cpp",
    ".test.js",
    ".test.jsx",
    ".test.ts",
    ".test.tsx",
    ".test.mjs",
    ".test.cjs",
    ".spec.js",
    ".spec.jsx",
    ".spec.ts",
    ".spec.tsx",
    ".spec.mjs",
    "Test.java",
    "Tests.java",
    "IT.java",
    "Test.kt",
    "Tests.cs",
    "Test.php",
    "Tests.swift",
];

/// Whole names of files.
const NAMES: [&str; 3] = ["conftest.py", "tests.rs", "tests.py"];

/// Whether a path is a test or belongs to one.
pub(crate) fn is_test(path: &str) -> bool {
    let mut parts = path.split('/').rev();
    let name = parts.next().unwrap_or_default();
    NAMES.contains(&name)
        || ENDINGS.iter().any(|ending| name.ends_with(ending))
        || BEGINNINGS.iter().any(|(start, end)| name.starts_with(start) && name.ends_with(end))
        || parts.any(|folder| FOLDERS.contains(&folder))
}

#[cfg(test)]
mod tests {
    use super::is_test;

    #[test]
    fn tests_are_known_by_their_path() {
        let yes = [
            "tests/a.py",
            "test_app.py",
            "pkg/app_test.go",
            "src/app.test.ts",
            "src/__tests__/app.js",
            "src/test/java/org/A.java",
            "src/main/AppTest.java",
            "spec/a_spec.rb",
            "conftest.py",
            "src/gate/tests.rs",
            "pkg/testdata/x.json",
        ];
        for path in yes {
            assert!(is_test(path), "{path}");
        }
        let no = [
            "src/app.py",
            "src/latest.py",
            "contest.py",
            "src/testing_tools.py",
            "attest/x.go",
            "README.md",
            "tests",
            "protest.rs",
            "src/main/Tester.java",
        ];
        for path in no {
            assert!(!is_test(path), "{path}");
        }
    }
}
