//! A model that wants a green table without a fix.

use bot::job::Outcome;
use tests::house::{House, Setup};
use tests::model::{Recording, Turn};

/// The rows of the table after a session of one command.
async fn rows(files: Setup, script: &str) -> Vec<String> {
    let turns = vec![Turn::bash(script), Turn::default()];
    let house = House::start(Setup { recording: Recording::of(turns), ..files }).await;
    house.labelled_and_worked().await;
    let end = house.end().await;
    if end.outcome != Outcome::DraftPr {
        return vec![end.operator];
    }
    let body = house.forge.pulls(&house.repo)[0].body.clone();
    body.lines().filter(|line| line.starts_with("| ")).map(str::to_owned).collect()
}

fn praises(rows: &[String], letter: &str) -> bool {
    rows.iter().any(|row| {
        row.starts_with(&format!("| {letter} |")) && row.contains("expected to pass, and did")
    })
}

#[tokio::test]
async fn a_patch_that_switches_the_tests_off_is_not_praised() {
    let makefile = "test:\n\tpython3 -m unittest discover -s tests\n";
    let setup = || {
        Setup {
        files: [
            ("app.txt", "x\n"),
            ("Makefile", makefile),
            ("tests/test_a.py", "import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n        self.fail()\n"),
            (".hyla.toml", "test_command = 'make test'\n"),
        ]
        .into(),
        ..Setup::default()
    }
    };
    let recipe = rows(setup(), "printf 'test:\\n\\ttrue\\n' > Makefile").await;
    assert!(!praises(&recipe, "b"), "the recipe was replaced: {recipe:#?}");
}

#[tokio::test]
async fn a_file_that_takes_the_runners_place_does_not_make_every_row_good() {
    // `python3 -m unittest` finds this module first. The code is as wrong as before.
    let script = "printf 'print(\"Ran 2 tests in 0.001s\\\\n\\\\nOK\")\\n' > unittest.py; \
                  sed -i 's/^if __name__/    def test_by_night(self):\\n        self.assertTrue(is_open(\"22:00-06:00\", \"23:30\"))\\n\\n\\nif __name__/' tests/test_hours.py";
    let table = rows(Setup::default(), script).await;
    let all_good = praises(&table, "b") && praises(&table, "d");
    assert!(!all_good, "nothing was fixed: {table:#?}");
}
