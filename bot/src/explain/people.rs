//! What may stand on an issue, which more people read than the operator's terminal: the words of an error may hold
//! addresses and paths of the machine, and those are for the operator alone.

use super::Standing;
use crate::job::{End, Outcome, State};
use crate::store::{History, Step};

const HIDDEN: &str = "the operator's log says why";

/// The same history without what is for the operator alone.
pub fn for_people(mut history: History) -> History {
    for row in &mut history.jobs {
        if let State::Ended { end } = &mut row.job.state {
            hide(end);
        }
        row.job.untold.iter_mut().for_each(hide);
        row.last_error.iter_mut().for_each(|why| *why = HIDDEN.into());
    }
    for stepped in &mut history.steps {
        match &mut stepped.step {
            Step::Retried { why, .. } | Step::Waits { why, .. } => *why = HIDDEN.into(),
            Step::Owed { end, why, .. } => {
                hide(end);
                *why = HIDDEN.into();
            }
            Step::Ended { end } => hide(end),
            Step::Queued
            | Step::Asked { .. }
            | Step::Claimed { .. }
            | Step::TakenOver { .. }
            | Step::Identified { .. }
            | Step::Entered { .. }
            | Step::Halted { .. }
            | Step::Given { .. }
            | Step::Spoke { .. }
            | Step::Ready { .. }
            | Step::Drafted { .. }
            | Step::Parked
            | Step::Dropped { .. }
            | Step::Joined { .. } => {}
        }
    }
    history
}

/// Where an issue stands, with what people on the forge can do about it.
pub fn standing_for_people(standing: Standing, settings: &config::Forge) -> Standing {
    let ask = format!(
        "To ask for a draft, put the label `{}` on this issue or write `/hyla fix`; either takes write access.",
        settings.label
    );
    match standing.state.as_str() {
        "queued" => {
            let next = "There is nothing to do: I go on by myself. `/hyla cancel` stops it.".into();
            Standing { next, ..standing }
        }
        state if state.starts_with("running(") => {
            Standing { next: "Wait for its end; `/hyla cancel` stops it.".into(), ..standing }
        }
        "ignored" | "unheard" => {
            let sentence = "I have not worked on this issue: nobody has asked me to.".into();
            Standing { sentence, next: ask, ..standing }
        }
        "dropped" => Standing { next: ask, ..standing },
        _ => standing,
    }
}

fn hide(end: &mut End) {
    match end.outcome {
        Outcome::Failed(_) => end.operator = HIDDEN.into(),
        Outcome::DraftPr | Outcome::NoFix(_) | Outcome::Refused(_) | Outcome::Cancelled => {}
    }
}
