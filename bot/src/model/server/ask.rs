//! What both ways of asking have in common: how tokens are drawn, where the turn ends, and how the answer is sent.

use engine::{Query, Sampling, Source};
use serde_json::Value;

use super::fault::Fault;
use super::fields::{Fields, wrong};

/// Likeliest tokens at most for each token; OpenAI's limit.
pub(super) const LOGPROBS: i64 = 20;
/// Texts at most that end a turn. OpenAI takes 4.
const STOPS: usize = 16;
/// Tokens at most in one answer: far more than any context.
const TOKENS: i64 = 1 << 30;

/// A request that was read.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Asked {
    pub(super) query: Query,
    pub(super) delivery: Delivery,
}

/// How the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delivery {
    /// In pieces as it comes, or whole.
    pub(super) is_stream: bool,
    /// Whether a stream ends with the token counts. Whole answers always have them.
    pub(super) has_usage: bool,
}

impl Asked {
    /// The parts that both ways share. `n_logprobs` and the limit of tokens are read differently by each.
    pub(super) fn read(
        fields: &Fields<'_>,
        source: Source,
        n_logprobs: Option<usize>,
        max_tokens: u32,
    ) -> Result<Self, Fault> {
        refuse(fields)?;
        let is_stream = fields.flag("stream")?.unwrap_or(false);
        let options = fields.object("stream_options")?;
        if options.is_some() && !is_stream {
            return Err(Fault::field("stream_options", "it is only allowed with `stream`"));
        }
        let has_usage = match options {
            Some(options) => options.flag("include_usage")?.unwrap_or(false),
            None => false,
        };
        let sampling = sampling(fields, max_tokens)?;
        let query = Query { source, sampling, stop_strings: stops(fields)?, n_logprobs };
        Ok(Self { query, delivery: Delivery { is_stream, has_usage } })
    }
}

/// A field for the most tokens of an answer.
pub(super) fn most_tokens(fields: &Fields<'_>, key: &str) -> Result<Option<u32>, Fault> {
    Ok(fields.integer(key, 1..=TOKENS)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
}

fn sampling(fields: &Fields<'_>, max_tokens: u32) -> Result<Sampling, Fault> {
    let usual = Sampling::default();
    let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?;
    let thinking = match fields.object("chat_template_kwargs")? {
        Some(arguments) => arguments.flag("enable_thinking")?,
        None => None,
    };
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(usual.temperature),
        top_p: above_zero(fields, "top_p", 1.0)?.unwrap_or(usual.top_p),
        // All candidates are 0 or, in some clients, -1.
        top_k: top_k.map_or(usual.top_k, |top_k| u32::try_from(top_k).unwrap_or(0)),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(usual.min_p),
        presence_penalty: fields
            .number("presence_penalty", -2.0..=2.0)?
            .unwrap_or(usual.presence_penalty),
        repetition_penalty: above_zero(fields, "repetition_penalty", 10.0)?
            .unwrap_or(usual.repetition_penalty),
        seed: seed(fields)?,
        max_tokens,
        thinking: thinking.unwrap_or(usual.thinking),
    })
}

fn above_zero(fields: &Fields<'_>, key: &str, most: f64) -> Result<Option<f32>, Fault> {
    match fields.number(key, 0.0..=most)? {
        // What is too small for 32 bits divides by nothing as well.
        Some(number) if number < f32::MIN_POSITIVE => Err(Fault::field(key, "it must be above 0")),
        number => Ok(number),
    }
}

/// Any whole number of 64 bits, with or without a sign.
fn seed(fields: &Fields<'_>) -> Result<Option<u64>, Fault> {
    let Some(value) = fields.value("seed") else { return Ok(None) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    seed.map(Some).ok_or_else(|| wrong("seed", "a whole number of 64 bits", value))
}

fn stops(fields: &Fields<'_>) -> Result<Vec<String>, Fault> {
    let texts = match fields.value("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![text.clone()]),
        Some(Value::Array(texts)) => texts,
        Some(value) => return Err(wrong("stop", "a string or an array of strings", value)),
    };
    if texts.len() > STOPS {
        return Err(Fault::field("stop", &format!("it has more than {STOPS} texts")));
    }
    let text = |(at, value): (usize, &Value)| match value {
        Value::String(text) => Ok(text.clone()),
        value => Err(wrong(&format!("stop[{at}]"), "a string", value)),
    };
    texts.iter().enumerate().map(text).collect()
}

/// What would change the answer and is not done here is refused. What is not known at all is ignored.
fn refuse(fields: &Fields<'_>) -> Result<(), Fault> {
    for key in ["n", "best_of"] {
        if fields.integer(key, i64::MIN..=i64::MAX)?.is_some_and(|n| n != 1) {
            return Err(Fault::unsupported(key, "anything but one answer is"));
        }
    }
    if fields.number("frequency_penalty", -2.0..=2.0)?.is_some_and(|penalty| penalty != 0.0) {
        return Err(Fault::unsupported("frequency_penalty", "it is"));
    }
    if let Some(format) = fields.object("response_format")?
        && format.text("type")?.is_some_and(|kind| kind != "text")
    {
        return Err(Fault::unsupported("response_format", "a form of the answer is"));
    }
    let has_bias = fields.value("logit_bias").is_some_and(|value| match value {
        Value::Object(map) => !map.is_empty(),
        _ => true,
    });
    if has_bias {
        return Err(Fault::unsupported("logit_bias", "it is"));
    }
    for key in ["functions", "function_call"] {
        if fields.value(key).is_some() {
            return Err(Fault::unsupported(key, "it was replaced by `tools` and is"));
        }
    }
    Ok(())
}
