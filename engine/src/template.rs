//! The chat template of a model's folder: messages and tools become the one text that the model was trained to see.
//!
//! The template is the folder's own Jinja file. What Python does in it and Rust would do otherwise is done as in Python:
//! JSON with spaces, `True` and `None`, trimming. Control tokens in the request's texts are not told apart here; `encode` does.
//!
//! A template is a program that others wrote, so it may do as much as a conversation of its size needs, and no more. What it
//! can still do is end the process: by printing or comparing a namespace that holds itself.

mod json;

use std::path::Path;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::json;

use crate::{Error, Message, Request, file};

const NAME: &str = "chat_template.jinja";
/// Largest template that is read, in bytes; the published one has eight thousand. Each byte may nest once more.
const FILE_BYTES: u64 = 1 << 16;
/// Bytes of stack for whatever nests, in the template and in what it makes: a level takes up to two thousand without
/// optimisation. Only what is used becomes memory.
const STACK_BYTES: usize = 256 << 20;
/// Fuel for any conversation: one is an instruction or 64 bytes of text. The published template takes some hundred for a
/// text, and one for every 10 of its bytes.
const FUEL: u64 = 2_000_000;
/// Fuel for each text of a conversation, which templates may also count or look for.
const FUEL_PER_TEXT: u64 = 10_000;
/// Fuel for each byte of these.
const FUEL_PER_BYTE: u64 = 8;
/// Characters of a template's own words at most in an error.
const WORDS: usize = 1000;

/// A model's chat template.
pub struct Template {
    source: String,
    environment: Environment<'static>,
}

/// Why a conversation has no text. Clients elsewhere read it, so it names no folder of this machine.
#[derive(Debug, thiserror::Error)]
#[error("cannot render the conversation with the model's chat template")]
pub struct RenderError {
    /// What the template, or its language, says.
    #[source]
    pub source: minijinja::Error,
}

impl Template {
    /// Reads the template of a model's folder.
    ///
    /// # Errors
    /// It is not there, or is no Jinja template.
    pub fn load(folder: &Path) -> Result<Self, Error> {
        let file = folder.join(NAME);
        let text = String::from_utf8(file::read(&file, FILE_BYTES)?).map_err(|error| {
            Error::File { file: file.clone(), reason: error.utf8_error().to_string() }
        })?;
        Self::parse(&file, text)
    }

    fn parse(file: &Path, source: String) -> Result<Self, Error> {
        let mut environment = Environment::new();
        // As transformers sets it up.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("these are Jinja's own marks"));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", json::tojson);
        environment.add_function("raise_exception", raise);
        // Or errors would take what the template made with them, off the deep stack.
        environment.set_debug(false);
        let added = on_deep_stack(|| environment.add_template_owned(NAME, source.clone()));
        let added = added.map_err(|source| Error::Threads { n_threads: 1, source })?;
        added.map_err(|error| Error::File {
            file: file.to_owned(),
            reason: format!("it is no template: {error}"),
        })?;
        Ok(Self { source, environment })
    }

    /// The text of a request, with the words that begin the model's turn.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub fn render(&self, request: &Request) -> Result<String, RenderError> {
        self.render_changed(request, &mut str::to_owned)
    }

    /// The text of a request whose own texts, names and keys were first changed one by one.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub(crate) fn render_changed(
        &self,
        request: &Request,
        change: &mut dyn FnMut(&str) -> String,
    ) -> Result<String, RenderError> {
        let mut fuel = FUEL;
        let values = values(request, &mut |text| {
            let text = change(text);
            fuel += FUEL_PER_TEXT + FUEL_PER_BYTE * text.len() as u64;
            text
        });
        self.render_values(&values, fuel)
    }

    /// The template itself.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    fn render_values(&self, values: &Value, fuel: u64) -> Result<String, RenderError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let render = || environment.get_template(NAME)?.render(values);
        let no_thread = |error: std::io::Error| {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, "there is no thread for it")
                .with_source(error))
        };
        let rendered = on_deep_stack(render).unwrap_or_else(no_thread);
        rendered.map_err(|source| RenderError { source: told(source) })
    }
}

/// Runs something on a thread that has room for what is deeply nested.
fn on_deep_stack<T: Send>(work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
        let joined = thread.spawn_scoped(scope, work)?.join();
        joined.or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The template's error, in words for whoever uses it.
fn told(error: minijinja::Error) -> minijinja::Error {
    match error.kind() {
        ErrorKind::OutOfFuel => minijinja::Error::new(
            ErrorKind::OutOfFuel,
            "it does far more than a conversation of this size needs; use the template that the model was published with",
        ),
        _ => error,
    }
}

/// Hands every text, name and key of a request over, as a template would see them.
pub(crate) fn each_text(request: &Request, take: &mut dyn FnMut(&str)) {
    values(request, &mut |text| {
        take(text);
        String::new()
    });
}

/// What a template is given. Roles and the keys around the texts are ours; all else goes through `change`.
fn values(request: &Request, change: &mut dyn FnMut(&str) -> String) -> Value {
    let messages: Vec<serde_json::Value> =
        request.messages.iter().map(|each| message(each, change)).collect();
    let tools: Vec<serde_json::Value> = request
        .tools
        .iter()
        .map(|tool| {
            let (name, description) = (change(&tool.name), change(&tool.description));
            json!({ "type": "function", "function": { "name": name, "description": description,
                    "parameters": changed(&tool.parameters, change) } })
        })
        .collect();
    context! {
        messages => Value::from(Serde(messages)),
        tools => Value::from(Serde(if tools.is_empty() { json!(null) } else { json!(tools) })),
        add_generation_prompt => true,
        enable_thinking => request.sampling.thinking,
    }
}

fn message(message: &Message, change: &mut dyn FnMut(&str) -> String) -> serde_json::Value {
    match message {
        Message::System { content } => json!({ "role": "system", "content": change(content) }),
        Message::User { content } => json!({ "role": "user", "content": change(content) }),
        Message::Tool { call_id, content } => {
            json!({ "role": "tool", "tool_call_id": change(call_id), "content": change(content) })
        }
        Message::Assistant { content, reasoning, calls } => {
            let calls: Vec<serde_json::Value> = calls
                .iter()
                .map(|call| {
                    // Templates walk through the arguments; what the model broke has none.
                    let arguments: serde_json::Map<String, serde_json::Value> =
                        serde_json::from_str(&call.arguments).unwrap_or_default();
                    json!({ "id": change(&call.id), "type": "function", "function": {
                            "name": change(&call.name), "arguments": changed(&arguments.into(), change) } })
                })
                .collect();
            json!({ "role": "assistant", "content": change(content), "reasoning_content": change(reasoning),
                    "tool_calls": calls })
        }
    }
}

/// JSON with its texts and keys changed.
fn changed(value: &serde_json::Value, change: &mut dyn FnMut(&str) -> String) -> serde_json::Value {
    match value {
        serde_json::Value::String(text) => change(text).into(),
        serde_json::Value::Array(items) => items.iter().map(|item| changed(item, change)).collect(),
        serde_json::Value::Object(pairs) => {
            pairs.iter().map(|(key, value)| (change(key), changed(value, change))).collect()
        }
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => {
            value.clone()
        }
    }
}

fn raise(message: String) -> Result<Value, minijinja::Error> {
    let words: String = message.chars().take(WORDS).collect();
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, words))
}

#[cfg(test)]
mod tests;
