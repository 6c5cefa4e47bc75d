//! `/v1/chat/completions`: a conversation and its tools, as OpenAI's clients write them.

use std::collections::HashSet;

use engine::{Message, Source, Tool, ToolCall, ToolChoice};
use serde_json::{Map, Value, json};

use super::ask::{Asked, LOGPROBS, most_tokens};
use super::fault::Fault;
use super::fields::{Fields, wrong};

/// Reads a request's body. Fields that are not known are ignored.
pub(super) fn read(body: &Map<String, Value>) -> Result<Asked, Fault> {
    let fields = Fields::top(body);
    let messages = messages(&fields)?;
    let mut tools = tools(&fields)?;
    let tool_choice = tool_choice(&fields, &tools)?;
    if tool_choice == ToolChoice::None {
        // A model that sees tools wants to call them.
        tools.clear();
    }
    let is_one_call = fields.flag("parallel_tool_calls")? == Some(false);
    let max_tokens = match most_tokens(&fields, "max_completion_tokens")? {
        Some(number) => number,
        // As much as the context holds.
        None => most_tokens(&fields, "max_tokens")?.unwrap_or(u32::MAX),
    };
    let n_logprobs = logprobs(&fields)?;
    let source = Source::Conversation { messages, tools, tool_choice, is_one_call };
    Asked::read(&fields, source, n_logprobs, max_tokens)
}

fn logprobs(fields: &Fields<'_>) -> Result<Option<usize>, Fault> {
    let is_wanted = fields.flag("logprobs")?.unwrap_or(false);
    let n_likeliest = fields.integer("top_logprobs", 0..=LOGPROBS)?;
    if n_likeliest.is_some_and(|n| n > 0) && !is_wanted {
        return Err(Fault::field("top_logprobs", "it needs `logprobs` to be true"));
    }
    Ok(is_wanted.then(|| usize::try_from(n_likeliest.unwrap_or(0)).unwrap_or(0)))
}

fn messages(fields: &Fields<'_>) -> Result<Vec<Message>, Fault> {
    let list = fields.list("messages")?.unwrap_or_default();
    if list.is_empty() {
        return Err(Fault::field("messages", "it must hold at least one message"));
    }
    let mut messages: Vec<Message> = Vec::with_capacity(list.len());
    for (at, value) in list.iter().enumerate() {
        let place = format!("messages[{at}]");
        let message = message(&Fields::of(value, &place)?)?;
        let follows_calls = match messages.last() {
            Some(Message::Assistant { calls, .. }) => !calls.is_empty(),
            Some(Message::Tool { .. }) => true,
            Some(Message::System { .. } | Message::User { .. }) | None => false,
        };
        if matches!(message, Message::Tool { .. }) && !follows_calls {
            let reason = "a tool's answer must follow a message with `tool_calls`";
            return Err(Fault::field(place, reason));
        }
        messages.push(message);
    }
    order_results(&mut messages);
    Ok(messages)
}

/// Puts the answers of tools into the order of their calls: the template leaves the ids out, so that the model knows by the
/// order alone what answers what. Answers to no call come last.
fn order_results(messages: &mut [Message]) {
    let mut calls: &[ToolCall] = &[];
    let is_tool = |message: &Message| matches!(message, Message::Tool { .. });
    for run in messages.chunk_by_mut(|one, next| is_tool(one) == is_tool(next)) {
        match run {
            [Message::Tool { .. }, ..] => run.sort_by_key(|message| match message {
                Message::Tool { call_id, .. } => {
                    calls.iter().position(|call| call.id == *call_id).unwrap_or(usize::MAX)
                }
                Message::System { .. } | Message::User { .. } | Message::Assistant { .. } => 0,
            }),
            [.., Message::Assistant { calls: own, .. }] => calls = own,
            _ => {}
        }
    }
}

fn message(fields: &Fields<'_>) -> Result<Message, Fault> {
    let needed = || {
        let missing = || Fault::field(fields.name("content"), "it is missing");
        content(fields)?.ok_or_else(missing)
    };
    match fields.needed_text("role")? {
        "system" | "developer" => Ok(Message::System { content: needed()? }),
        "user" => Ok(Message::User { content: needed()? }),
        "assistant" => {
            let reasoning = match fields.text("reasoning_content")? {
                Some(reasoning) => Some(reasoning),
                None => fields.text("reasoning")?,
            };
            Ok(Message::Assistant {
                content: content(fields)?.unwrap_or_default(),
                reasoning: reasoning.unwrap_or_default().to_owned(),
                calls: calls(fields)?,
            })
        }
        "tool" => Ok(Message::Tool {
            call_id: fields.needed_text("tool_call_id")?.to_owned(),
            content: needed()?,
        }),
        _ => {
            let reason = "it must be `system`, `developer`, `user`, `assistant` or `tool`";
            Err(Fault::field(fields.name("role"), reason))
        }
    }
}

/// A text, or parts of one, which are joined as they are.
fn content(fields: &Fields<'_>) -> Result<Option<String>, Fault> {
    let name = fields.name("content");
    let parts = match fields.value("content") {
        None => return Ok(None),
        Some(Value::String(text)) => return Ok(Some(text.clone())),
        Some(Value::Array(parts)) => parts,
        Some(value) => return Err(wrong(&name, "a string or an array of text parts", value)),
    };
    let mut text = String::new();
    for (at, value) in parts.iter().enumerate() {
        let part = Fields::of(value, &format!("{name}[{at}]"))?;
        match part.needed_text("type")? {
            "text" => text.push_str(part.needed_text("text")?),
            "refusal" => text.push_str(part.needed_text("refusal")?),
            _ => return Err(Fault::unsupported(&part.name("type"), "anything but text is")),
        }
    }
    Ok(Some(text))
}

/// The calls of an earlier answer.
fn calls(fields: &Fields<'_>) -> Result<Vec<ToolCall>, Fault> {
    let name = fields.name("tool_calls");
    let list = fields.list("tool_calls")?.unwrap_or_default();
    let call = |(at, value): (usize, &Value)| {
        let fields = Fields::of(value, &format!("{name}[{at}]"))?;
        let missing = || Fault::field(fields.name("function"), "it is missing");
        let function = fields.object("function")?.ok_or_else(missing)?;
        let arguments = match function.needed_text("arguments")? {
            // What some clients write for a call without arguments.
            text if text.trim().is_empty() => "{}",
            text => text,
        };
        if serde_json::from_str::<Map<String, Value>>(arguments).is_err() {
            let reason = "it must be the text of a JSON object";
            return Err(Fault::field(function.name("arguments"), reason));
        }
        Ok(ToolCall {
            id: fields.needed_text("id")?.to_owned(),
            name: function.needed_text("name")?.to_owned(),
            arguments: arguments.to_owned(),
        })
    };
    list.iter().enumerate().map(call).collect()
}

/// Whether a tool must be called, or may be.
fn tool_choice(fields: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, Fault> {
    const EXPECTED: &str = "`auto`, `none`, `required` or a function";
    match fields.value("tool_choice") {
        None => Ok(ToolChoice::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" if tools.is_empty() => {
                Err(Fault::field("tool_choice", "`required` needs at least one of `tools`"))
            }
            "required" => Ok(ToolChoice::Required),
            _ => Err(Fault::field("tool_choice", &format!("it must be {EXPECTED}"))),
        },
        Some(value @ Value::Object(_)) => named(&Fields::of(value, "tool_choice")?, tools),
        Some(value) => Err(wrong("tool_choice", EXPECTED, value)),
    }
}

fn named(fields: &Fields<'_>, tools: &[Tool]) -> Result<ToolChoice, Fault> {
    if fields.needed_text("type")? != "function" {
        return Err(Fault::unsupported(&fields.name("type"), "anything but a function is"));
    }
    let missing = || Fault::field(fields.name("function"), "it is missing");
    let function = fields.object("function")?.ok_or_else(missing)?;
    let name = function.needed_text("name")?;
    if !tools.iter().any(|tool| tool.name == name) {
        return Err(Fault::field(function.name("name"), "none of `tools` has this name"));
    }
    Ok(ToolChoice::Named(name.to_owned()))
}

fn tools(fields: &Fields<'_>) -> Result<Vec<Tool>, Fault> {
    let list = fields.list("tools")?.unwrap_or_default();
    let mut tools: Vec<Tool> = Vec::with_capacity(list.len());
    let mut names = HashSet::new();
    for (at, value) in list.iter().enumerate() {
        let tool = tool(&Fields::of(value, &format!("tools[{at}]"))?)?;
        if !names.insert(tool.name.clone()) {
            let reason = format!("`{}` is there twice", tool.name);
            return Err(Fault::field(format!("tools[{at}].function.name"), &reason));
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn tool(fields: &Fields<'_>) -> Result<Tool, Fault> {
    if fields.needed_text("type")? != "function" {
        return Err(Fault::unsupported(&fields.name("type"), "a tool that is no function is"));
    }
    let missing = || Fault::field(fields.name("function"), "it is missing");
    let function = fields.object("function")?.ok_or_else(missing)?;
    let name = function.needed_text("name")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !(1..=64).contains(&name.len()) || !name.chars().all(is_name) {
        let reason = "it must be 1 to 64 letters, digits, `_`, `-` or `.`";
        return Err(Fault::field(function.name("name"), reason));
    }
    let parameters = match function.value("parameters") {
        None => json!({ "type": "object", "properties": {} }),
        Some(value @ Value::Object(_)) => value.clone(),
        Some(value) => return Err(wrong(&function.name("parameters"), "an object", value)),
    };
    let description = function.text("description")?.unwrap_or_default().to_owned();
    Ok(Tool { name: name.to_owned(), description, parameters })
}
