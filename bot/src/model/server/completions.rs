//! `/v1/completions`: a raw text or raw token ids that the model goes on with. Nothing is rendered and nothing is parsed.

use engine::Source;
use serde_json::{Map, Value};

use super::ask::{Asked, LOGPROBS, most_tokens};
use super::fault::Fault;
use super::fields::{Fields, wrong};

/// Tokens of an answer that names no limit; OpenAI's.
const USUAL_TOKENS: u32 = 16;

/// Reads a request's body. Fields that are not known are ignored.
pub(super) fn read(body: &Map<String, Value>) -> Result<Asked, Fault> {
    let fields = Fields::top(body);
    if fields.flag("echo")? == Some(true) {
        return Err(Fault::unsupported("echo", "it is"));
    }
    if fields.text("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(Fault::unsupported("suffix", "it is"));
    }
    let missing = || Fault::field("prompt", "it is missing");
    let source = source(fields.value("prompt").ok_or_else(missing)?)?;
    let n_logprobs = fields.integer("logprobs", 0..=LOGPROBS)?;
    let n_logprobs = n_logprobs.map(|n| usize::try_from(n).unwrap_or(0));
    let max_tokens = most_tokens(&fields, "max_tokens")?.unwrap_or(USUAL_TOKENS);
    Asked::read(&fields, source, n_logprobs, max_tokens)
}

/// A text, token ids, or a list with one of these.
fn source(prompt: &Value) -> Result<Source, Fault> {
    match prompt {
        Value::String(text) => Ok(Source::Text(text.clone())),
        Value::Array(list) => match list.as_slice() {
            [one @ (Value::String(_) | Value::Array(_))] => source(one),
            [Value::String(_) | Value::Array(_), ..] => {
                Err(Fault::unsupported("prompt", "more than one prompt is"))
            }
            ids => Ok(Source::Ids(ids.iter().enumerate().map(id).collect::<Result<_, _>>()?)),
        },
        value => Err(wrong("prompt", "a string or an array of token ids", value)),
    }
}

fn id((at, value): (usize, &Value)) -> Result<u32, Fault> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
    id.ok_or_else(|| wrong(&format!("prompt[{at}]"), "a token id", value))
}
