//! What `hyla sweep` and `hyla outcomes` print. Pure.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Value, json};

use super::Plan;
use crate::reply;
use crate::store::{Drafted, Fate};

/// Characters of a title.
const TITLE: usize = 60;

/// A plan for people.
pub fn plan(name: &str, plan: &Plan) -> String {
    let mut text = match &plan.held {
        Some(why) => format!("The sweep `{name}` would not begin now: {why}. But for that:\n"),
        None => String::new(),
    };
    text.push_str(&match plan.picks.len() {
        0 => format!("The sweep `{name}` would take nothing now.\n"),
        1 => format!("The sweep `{name}` would take one issue:\n"),
        n => format!("The sweep `{name}` would take {n} issues, in this order:\n"),
    });
    for pick in &plan.picks {
        let title = reply::line(&pick.title, TITLE);
        let reasons = pick.weight.reasons.join(", ");
        let points = pick.weight.points;
        text.push_str(&format!("{points:>4}  {}  {title}\n      {reasons}\n", pick.subject));
    }
    if !plan.left.is_empty() {
        text.push_str("It leaves alone:\n");
    }
    for (why, n) in &plan.left {
        text.push_str(&format!("{n:>4}  {why}\n"));
    }
    reply::lines(&text)
}

/// The same for scripts.
pub fn plan_json(plan: &Plan) -> Value {
    let picks = plan.picks.iter().map(|pick| {
        json!({
            "issue": pick.subject.to_string(),
            "title": pick.title,
            "points": pick.weight.points,
            "reasons": pick.weight.reasons,
        })
    });
    json!({ "picks": picks.collect::<Vec<_>>(), "left": plan.left, "held": plan.held })
}

/// What became of drafts, for people: a sum for each repository and model, and a line for each draft.
pub fn outcomes(drafts: &[Drafted], now: DateTime<Utc>) -> String {
    if drafts.is_empty() {
        return "No draft was opened yet.\n".to_owned();
    }
    let mut sums: std::collections::BTreeMap<(String, String), [usize; 5]> = Default::default();
    for draft in drafts {
        let subject = &draft.row.job.subject;
        let key = (format!("{}:{}", subject.forge, subject.repo), model(draft).to_owned());
        let column = match &draft.fate {
            None => 0,
            Some((Fate::Merged { is_edited: false }, _)) => 1,
            Some((Fate::Merged { is_edited: true }, _)) => 2,
            Some((Fate::Closed { .. }, _)) => 3,
            Some((Fate::Gone, _)) => 4,
        };
        sums.entry(key).or_default()[column] += 1;
    }
    let mut text = String::from("OPEN  MERGED  EDITED  CLOSED  GONE  REPOSITORY, MODEL\n");
    for ((repository, model), [open, merged, edited, closed, gone]) in sums {
        text.push_str(&format!(
            "{open:>4}  {merged:>6}  {edited:>6}  {closed:>6}  {gone:>4}  {repository}, {model}\n"
        ));
    }
    text.push('\n');
    for draft in drafts {
        let job = &draft.row.job;
        let fate = draft.fate.as_ref().map_or("open", |(fate, _)| fate.name());
        let why = match &draft.fate {
            Some((Fate::Closed { why: Some(why) }, _)) => format!("  {}", reply::line(why, 100)),
            _ => String::new(),
        };
        let age = humantime::format_duration(std::time::Duration::from_secs(
            (age(draft, now) / 3600).saturating_mul(3600),
        ));
        text.push_str(&format!(
            "{fate:<13}  {}:{}, draft {}, {age}{why}\n",
            job.subject.forge, job.subject.repo, draft.pull
        ));
    }
    reply::lines(&text)
}

/// The same for scripts.
pub fn outcomes_json(drafts: &[Drafted], now: DateTime<Utc>) -> Value {
    drafts.iter().map(|draft| record(draft, now)).collect()
}

/// The same as CSV (RFC 4180). A cell that a spreadsheet would take for a formula begins with an apostrophe.
pub fn outcomes_csv(drafts: &[Drafted], now: DateTime<Utc>) -> String {
    let columns = [
        "job",
        "forge",
        "repository",
        "issue",
        "draft",
        "asked",
        "model",
        "fate",
        "opened_at",
        "decided_at",
        "age_s",
        "why",
    ];
    let mut text = columns.join(",") + "\r\n";
    for draft in drafts {
        let record = record(draft, now);
        let cells = columns.map(|column| match &record[column] {
            Value::String(cell) => quoted(cell),
            Value::Null => String::new(),
            other => other.to_string(),
        });
        text.push_str(&(cells.join(",") + "\r\n"));
    }
    text
}

fn record(draft: &Drafted, now: DateTime<Utc>) -> Value {
    let job = &draft.row.job;
    let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let fate = draft.fate.as_ref();
    let why = match fate {
        Some((Fate::Closed { why }, _)) => why.clone(),
        _ => None,
    };
    json!({
        "job": job.id.0,
        "forge": job.subject.forge,
        "repository": job.subject.repo.to_string(),
        "issue": job.subject.issue,
        "draft": draft.pull,
        "asked": job.ask().map(|ask| ask.to_string()),
        "model": draft.model,
        "fate": fate.map_or("open", |(fate, _)| fate.name()),
        "opened_at": time(draft.row.updated_at),
        "decided_at": fate.map(|(_, at)| time(*at)),
        "age_s": age(draft, now),
        "why": why,
    })
}

/// How long a draft was open, or has been, in seconds.
fn age(draft: &Drafted, now: DateTime<Utc>) -> u64 {
    let until = draft.fate.as_ref().map_or(now, |(_, at)| *at);
    u64::try_from(until.signed_duration_since(draft.row.updated_at).num_seconds()).unwrap_or(0)
}

fn model(draft: &Drafted) -> &str {
    draft.model.as_deref().unwrap_or("unknown model")
}

fn quoted(cell: &str) -> String {
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let cell = if is_formula { format!("'{cell}") } else { cell.to_owned() };
    match cell.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    }
}
