//! What the tests say, run by the bot and not by the model: each run in a workspace of its own, made from the mirror, in a
//! sandbox of its own.
//!
//! Four runs: (a) the base commit; (b) the base commit with the patch; (c) the base commit with only the patch's tests,
//! which should fail, or they would not show the fix; (d) the patch with the original versions of the tests that it edited,
//! which should pass, or the patch changed what the tests ask for. What a run means comes from its exit code alone: its
//! output is influenced by the patch, so numbers read from it are for people only. The bot installs nothing; a test command
//! that needs more than the sandbox has must bring it by the setup command.

mod counts;
mod find;
mod paths;
mod report;
mod run;
mod runner;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

pub use counts::{Counts, Unit};
pub use find::{Source, TestCommand, find_in};
pub(crate) use paths::is_test;
pub use run::Error;

use crate::checkout::Stock;
use crate::egress::Traffic;
use crate::gate::{Remark, remarks};
use crate::patch::{Kind, Patch};
use crate::sandbox::{Confinement, End, Sandbox};
use crate::setup::Prepared;
use crate::whereabouts::Whereabouts;
use crate::workspace::Owner;

/// What the test runs showed.
#[derive(Debug, Clone)]
pub struct Evidence {
    /// The command that was run; none if none was found.
    pub command: Option<TestCommand>,
    /// How far what was run was kept in.
    pub confinement: Confinement,
    /// The four runs, in order; none if there was no command.
    pub runs: Vec<Run>,
    /// What the patch changed that decides how the tests are run: a reviewer looks there first.
    pub runner: Vec<(String, Kind)>,
    /// What the patch takes away from the tests that there were.
    pub taken: Vec<Remark>,
    /// Whether the patch changes tests and nothing else.
    pub is_only_tests: bool,
    /// What the setup command downloaded and what it was refused, where it may download anything.
    pub traffic: Option<Traffic>,
}

/// One of the four runs.
#[derive(Debug, Clone)]
pub struct Run {
    /// Which code was tested by which tests.
    pub which: Which,
    /// What came of it.
    pub outcome: Outcome,
}

/// Which code is tested by which tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The base commit.
    Base,
    /// The base commit with the patch.
    Patched,
    /// The base commit with the tests that the patch adds or edits.
    NewTestsOnBase,
    /// The patch with the base commit's version of the tests that it edits or deletes.
    OldTestsOnPatch,
}

/// What came of a run.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// There was nothing to run.
    Skipped {
        /// Why, for people.
        why: &'static str,
    },
    /// The setup command failed, so the tests were not run.
    SetupFailed(Ran),
    /// The tests ran.
    Ran(Ran),
}

/// A command that ran.
#[derive(Debug, Clone)]
pub struct Ran {
    /// How it ended.
    pub end: End,
    /// How long it took.
    pub elapsed: Duration,
    /// How many tests the runner says there were. For people; nothing is decided by it.
    pub counts: Option<Counts>,
    /// Its output, standard error after standard output, cut in the middle, without control characters.
    pub output: String,
}

/// How the tests are run.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    /// A folder for the workspaces, which are removed after each run. A run that is given up, or that may still live, leaves
    /// its own.
    pub scratch: &'a Path,
    /// Who owns them.
    pub owner: Owner,
    /// How long one command may take.
    pub timeout: Duration,
    /// Bytes kept of each stream of a run.
    pub output_bytes: usize,
    /// What the setup command left, where it has run before. Otherwise each run begins with it.
    pub prepared: Option<&'a Prepared>,
}

impl Evidence {
    /// What was run, as people are told.
    pub(crate) fn commands(&mut self) -> impl Iterator<Item = &mut String> {
        let commands = self.command.iter_mut();
        commands.flat_map(|own| [&mut own.command].into_iter().chain(&mut own.setup))
    }

    /// The output of each run.
    pub(crate) fn outputs(&mut self) -> impl Iterator<Item = &mut String> {
        self.runs.iter_mut().filter_map(|run| match &mut run.outcome {
            Outcome::Ran(ran) | Outcome::SetupFailed(ran) => Some(&mut ran.output),
            Outcome::Skipped { .. } => None,
        })
    }

    /// A Markdown table for people, with a verdict for each run and its output folded away.
    pub fn table(&self) -> String {
        report::table(self)
    }

    /// The whole output that was kept of each run, for the job's folder; none if nothing was run.
    pub fn log(&self) -> Option<String> {
        report::log(self)
    }
}

/// Makes the four runs, one after the other. Without a command there are none.
///
/// # Errors
/// A workspace could not be made, or the sandbox could not run a command.
pub async fn gather(
    sandbox: &dyn Sandbox,
    stock: &Stock,
    patch: &Patch,
    command: Option<&TestCommand>,
    options: &Options<'_>,
) -> Result<Evidence, Error> {
    let mut evidence = Evidence {
        command: command.cloned(),
        confinement: sandbox.confinement(),
        runs: Vec::new(),
        runner: Vec::new(),
        taken: remarks(patch),
        is_only_tests: patch.changes.iter().all(|change| is_test(&change.path)),
        traffic: options.prepared.map(|prepared| prepared.traffic.clone()),
    };
    let Some(command) = command else { return Ok(evidence) };
    for (which, subject) in run::plan(stock.mirror(), patch).await? {
        let outcome = match subject {
            Ok(commit) => run::at(sandbox, stock, &commit, command, options).await?,
            Err(why) => Outcome::Skipped { why },
        };
        evidence.runs.push(Run { which, outcome });
    }
    let whereabouts = Whereabouts::of(&run::place(options));
    evidence.runner = runner::changed(patch, command);
    for output in evidence.outputs() {
        *output = whereabouts.hide(output);
    }
    Ok(evidence)
}
