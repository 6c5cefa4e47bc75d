//! One sentence on where an issue stands, and what to do next.

use chrono::{DateTime, TimeDelta, Utc};

use super::Standing;
use crate::job::{End, JobId, Outcome, Stage, State, name_of};
use crate::store::{History, Row, Step};

/// How long a due job may wait before it is said that no worker takes it.
const TAKEN_WITHIN: TimeDelta = TimeDelta::minutes(2);

pub(super) fn of(history: &History, settings: &config::Forge, now: DateTime<Utc>) -> Standing {
    let told = match history.jobs.last() {
        Some(row) => job(history, row, now),
        None => match (dropped(history), history.deliveries.last()) {
            (Some((look, why)), _) => nothing(history, settings, look, why),
            (None, Some(_)) => ignored(history, settings),
            (None, None) => unheard(history, settings),
        },
    };
    if settings.allows(&history.subject.repo.to_string()) || !history.jobs.is_empty() {
        return told;
    }
    not_allowed(history, told)
}

/// The newest look that came to nothing.
fn dropped(history: &History) -> Option<(JobId, &str)> {
    history.steps.iter().rev().find_map(|stepped| match &stepped.step {
        Step::Dropped { why } => Some((stepped.job, why.as_str())),
        _ => None,
    })
}

fn job(history: &History, row: &Row, now: DateTime<Utc>) -> Standing {
    let told = match (&row.job.state, &row.job.untold) {
        (State::Ended { end }, _) => ended(history, row, end),
        (_, Some(end)) => {
            let told = ended(history, row, end);
            let why = row.last_error.as_deref().unwrap_or("it is not known why");
            let next = format!(
                "People on the issue have not been told yet ({why}); the bot goes on trying by itself. {}",
                told.next
            );
            Standing { next, ..told }
        }
        (State::Running { stage }, None) => running(history, row, *stage, now),
        (State::Queued, None) => queued(history, row, now),
    };
    // A look that came after the job is the newest thing that somebody wonders about.
    match dropped(history) {
        Some((look, why)) if look > row.job.id => {
            let next = format!("A later look at the issue came to nothing: {why}. {}", told.next);
            Standing { next, ..told }
        }
        Some(_) | None => told,
    }
}

fn ended(history: &History, row: &Row, end: &End) -> Standing {
    let (id, subject, why) = (row.job.id, &history.subject, &end.operator);
    let sentence = match (end.outcome, row.job.pull) {
        (Outcome::DraftPr, Some(pull)) => {
            format!("Hyla acted on {subject}: job {id} opened pull request {pull}.")
        }
        (Outcome::DraftPr, None) => {
            format!("Hyla acted on {subject}: job {id} opened a pull request.")
        }
        (Outcome::NoFix(_), _) => {
            format!("Hyla worked on {subject} and opened no draft: {why} (job {id}).")
        }
        (Outcome::Refused(_), _) => {
            format!("Hyla opened no draft for {subject}: {why} (job {id}).")
        }
        (Outcome::Failed(failure), _) => {
            let failure = name_of(&failure);
            format!("Hyla could not finish {subject} (job {id}, {failure}): {why}.")
        }
        (Outcome::Cancelled, _) => {
            format!("Hyla stopped its work on {subject}: {why} (job {id}).")
        }
    };
    let next = match end.outcome {
        Outcome::Failed(_) => format!("{} {}", end.person, end.next),
        Outcome::DraftPr | Outcome::NoFix(_) | Outcome::Refused(_) | Outcome::Cancelled => {
            end.next.clone()
        }
    };
    let acted = !matches!(end.outcome, Outcome::Refused(_));
    Standing { state: end.outcome.to_string(), acted, sentence, next }
}

fn running(history: &History, row: &Row, stage: Stage, now: DateTime<Utc>) -> Standing {
    let (id, subject, stage) = (row.job.id, &history.subject, stage.name());
    let where_it_is = format!("job {id} is in the stage `{stage}`, attempt {}", row.job.attempt);
    let (sentence, next) = match row.held_until {
        Some(until) if until < now => (
            format!(
                "Hyla's work on {subject} was broken off: {where_it_is}, and the lease of its worker ran out at {}.",
                shown(until)
            ),
            "A worker takes it up again by itself: see that `hyla serve` runs and is not busy with other jobs (`hyla jobs`), and what its log says.".to_owned(),
        ),
        Some(_) | None => (
            format!("Hyla is at work on {subject}: {where_it_is}."),
            format!("Wait for its end; `hyla transcript {id}` shows the session as far as it got."),
        ),
    };
    Standing { state: format!("running({stage})"), acted: row.job.key.is_some(), sentence, next }
}

fn queued(history: &History, row: &Row, now: DateTime<Utc>) -> Standing {
    let (id, subject) = (row.job.id, &history.subject);
    let due = shown(row.due_at);
    let what = if row.job.key.is_some() { "go on with" } else { "look at" };
    let after = row.last_error.as_ref().map(|why| format!(", after: {why}")).unwrap_or_default();
    let next = if row.due_at + TAKEN_WITHIN < now {
        "It is due and no worker has taken it: see that `hyla serve` runs and is not busy with other jobs (`hyla jobs`), and what its log says."
    } else {
        "There is nothing to do: the service goes on by itself; `hyla doctor` shows what may be in its way."
    };
    Standing {
        state: "queued".into(),
        acted: row.job.key.is_some(),
        sentence: format!("Hyla will {what} {subject} (job {id}, due {due}){after}."),
        next: next.into(),
    }
}

fn nothing(history: &History, settings: &config::Forge, look: JobId, why: &str) -> Standing {
    let label = &settings.label;
    Standing {
        state: "dropped".into(),
        acted: false,
        sentence: format!(
            "Hyla looked at {} and did not act: {why} (job {look}).",
            history.subject
        ),
        next: format!(
            "If it should, change that; then take the label `{label}` off and put it on again."
        ),
    }
}

fn ignored(history: &History, settings: &config::Forge) -> Standing {
    let (subject, label) = (&history.subject, &settings.label);
    let n =
        u64::try_from(history.deliveries.len()).unwrap_or_default() + history.n_older_deliveries;
    let note = history.deliveries.last().and_then(|seen| seen.note.as_deref()).unwrap_or("no note");
    let came = match n {
        1 => "one delivery about it came, and it asked for nothing".to_owned(),
        n => format!("{n} deliveries about it came, and none asked for anything; the last one"),
    };
    let next = match note {
        webhooks::ABOUT_A_PULL => {
            "Hyla works on issues: open one that says what you want, and put the label on it."
                .into()
        }
        _ => format!(
            "Somebody with write access puts the label `{label}` on the open issue. If it is on already, no delivery has told so: choose *Issues* and *Issue Labels* among the events of the webhook, then take the label off and put it on again."
        ),
    };
    Standing {
        state: "ignored".into(),
        acted: false,
        sentence: format!("Hyla did not act on {subject}: {came}: {note}."),
        next,
    }
}

fn unheard(history: &History, settings: &config::Forge) -> Standing {
    let (subject, label) = (&history.subject, &settings.label);
    let (forge, repo) = (&subject.forge, &subject.repo);
    let again = format!("take the label `{label}` off the issue and put it on again");
    let (others, next) = match (history.heard.repository, history.heard.forge) {
        (Some(at), _) => (
            format!("others of the repository have, the last at {}", shown(at)),
            format!(
                "See that the label is called exactly `{label}` and that the webhook's events have *Issues* and *Issue Labels*, then {again}."
            ),
        ),
        (None, Some(at)) => (
            format!(
                "none about an issue of the repository has, though the forge sends others, the last at {}",
                shown(at)
            ),
            format!(
                "Add the webhook to `{repo}` or to its organisation, with the events *Issues* and *Issue Labels*, then {again}."
            ),
        ),
        (None, None) => (
            format!("nothing has come from the forge `{forge}` at all"),
            format!(
                "See that `hyla serve` runs; that the webhook's address ends in `/hooks/{forge}`, its secret is the configured one and its content type is JSON; that the forge's `app.ini` allows the bot's address (`ALLOWED_HOST_LIST` in `[webhook]`); and what the webhook's list of recent deliveries shows. The service logs each delivery that it refuses. Then {again}."
            ),
        ),
    };
    Standing {
        state: "unheard".into(),
        acted: false,
        sentence: format!(
            "Hyla did not act on {subject}: no delivery about this issue has come; {others}."
        ),
        next,
    }
}

fn not_allowed(history: &History, told: Standing) -> Standing {
    let (forge, repo) = (&history.subject.forge, &history.subject.repo);
    let next = match told.state.as_str() {
        "unheard" => format!(" {}", told.next),
        _ => String::new(),
    };
    Standing {
        state: "not_allowed".into(),
        acted: false,
        sentence: format!(
            "Hyla did not act on {}: the repository is not among those that it may work on.",
            history.subject
        ),
        next: format!(
            "An operator adds `{repo}` to `forge.{forge}.repositories` and starts the service again.{next}"
        ),
    }
}

pub(crate) fn shown(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}
