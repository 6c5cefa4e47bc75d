//! The body of a call: `<function=NAME>`, parameters with raw values, `</function>`. Pure.
//!
//! The format has no escaping, so a value may hold its own end marks. What ends a value is decided by what follows, and
//! the text behind the last parameter decides for the last.

use serde_json::{Map, Value};

use super::FUNCTION;
use super::value::typed;
use crate::{Stop, Tool};

const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// Name and arguments (JSON text); none if it is no call.
pub(super) fn parse(body: &str, tools: &[Tool]) -> Option<(String, String)> {
    let (name, mut rest) = body.trim_start().strip_prefix(FUNCTION)?.split_once('>')?;
    let name = name.trim();
    let schema = tools.iter().find(|tool| tool.name == name).map(|tool| &tool.parameters);
    let mut arguments = Map::new();
    let mut has_ends = true;
    while let Some((key, after)) =
        rest.trim_start().strip_prefix(PARAMETER).and_then(|rest| rest.split_once('>'))
    {
        let key = key.trim();
        let (value, after) = split_value(after, &mut has_ends);
        arguments.insert(key.to_owned(), typed(one_newline_less(value), schema, key));
        rest = after;
    }
    (!name.is_empty()).then(|| (name.to_owned(), Value::Object(arguments).to_string()))
}

/// What opens a call of a tool, behind the mark; none if no call can name it.
pub(crate) fn opening(name: &str) -> Option<String> {
    let text = format!("\n{FUNCTION}{name}>\n");
    parse(&text, &[]).is_some_and(|(read, _)| read == name).then_some(text)
}

/// Whether a call whose mark never came is whole all the same. Without its end, nobody knows whether a parameter is
/// missing; and where the turn was cut, a value may have been cut behind something that only looks like the end.
pub(super) fn is_complete(body: &str, stop: Stop) -> bool {
    let Some(inner) = body.trim().strip_suffix(FUNCTION_END) else { return false };
    let has_open_value = || inner.contains(PARAMETER) && !inner.trim_end().ends_with(PARAMETER_END);
    inner.starts_with(FUNCTION)
        && match stop {
            Stop::End => true,
            Stop::Length => !has_open_value(),
        }
}

/// A value and what follows its end mark. Where no mark ends this value, none ends a later one, and nobody looks again.
fn split_value<'a>(text: &'a str, has_ends: &mut bool) -> (&'a str, &'a str) {
    // An end mark counts if a parameter, or the end of the call, follows.
    if *has_ends {
        for (at, _) in text.match_indices(PARAMETER_END) {
            let after = &text[at + PARAMETER_END.len()..];
            if after.trim_start().starts_with(PARAMETER) || is_end(after) {
                return (&text[..at], after);
            }
        }
        *has_ends = false;
    }
    // It was forgotten: the next parameter on a line of its own, or the end of the call, ends the value.
    if let Some(at) = text.find(&format!("\n{PARAMETER}")) {
        return (&text[..=at], &text[at + 1..]);
    }
    match text.rfind(FUNCTION_END) {
        Some(at) if is_end(&text[at..]) => (&text[..at], &text[at..]),
        Some(_) | None => (text.strip_suffix(PARAMETER_END).unwrap_or(text), ""),
    }
}

/// Whether nothing but the end of the call follows.
fn is_end(text: &str) -> bool {
    let text = text.trim_start();
    text.is_empty() || text.strip_prefix(FUNCTION_END).is_some_and(|rest| rest.trim().is_empty())
}

/// The model writes a value between one newline and another.
fn one_newline_less(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
