//! The JSON of the OpenAI chat-completions protocol, as servers really speak it: what we send, and what we read.

use engine::{Message, Request};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Fields that not every server takes. One that a server refuses by name is left out from then on.
pub(super) const OPTIONAL: [&str; 5] =
    ["stream_options", "chat_template_kwargs", "min_p", "top_k", "parallel_tool_calls"];

/// The body of a request.
pub(super) fn body(model: &str, request: &Request, left_out: &[&str]) -> Value {
    let sampling = &request.sampling;
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| {
        if !left_out.contains(&key) {
            body.insert(key.to_owned(), value);
        }
    };
    put("model", model.into());
    put("messages", request.messages.iter().map(message).collect());
    if !request.tools.is_empty() {
        let tools =
            request.tools.iter().map(|tool| json!({ "type": "function", "function": tool }));
        put("tools", tools.collect());
        put("tool_choice", "auto".into());
        put("parallel_tool_calls", true.into());
    }
    put("temperature", number(sampling.temperature));
    put("top_p", number(sampling.top_p));
    put("top_k", sampling.top_k.into());
    put("min_p", number(sampling.min_p));
    put("max_tokens", sampling.max_tokens.into());
    put("stream", true.into());
    put("stream_options", json!({ "include_usage": true }));
    put("chat_template_kwargs", json!({ "enable_thinking": sampling.thinking }));
    Value::Object(body)
}

/// A 32-bit number as people wrote it: 0.6 and not 0.6000000238418579.
pub(super) fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn message(message: &Message) -> Value {
    match message {
        Message::System { content } => json!({ "role": "system", "content": content }),
        Message::User { content } => json!({ "role": "user", "content": content }),
        Message::Tool { call_id, content } => {
            json!({ "role": "tool", "tool_call_id": call_id, "content": content })
        }
        Message::Assistant { content, reasoning, calls } => {
            let mut value = json!({ "role": "assistant", "content": content });
            // The model was trained to see its reasoning again.
            if !reasoning.is_empty() {
                value["reasoning_content"] = reasoning.as_str().into();
            }
            if !calls.is_empty() {
                value["tool_calls"] = calls
                    .iter()
                    .map(|call| {
                        // Servers parse the arguments to render the template; broken JSON would break the request.
                        let is_object =
                            serde_json::from_str::<Map<String, Value>>(&call.arguments).is_ok();
                        let arguments = if is_object { call.arguments.as_str() } else { "{}" };
                        json!({ "id": call.id, "type": "function",
                                "function": { "name": call.name, "arguments": arguments } })
                    })
                    .collect();
            }
            value
        }
    }
}

/// One event of a stream, or a whole answer where a server does not stream.
#[derive(Debug, Deserialize)]
pub(super) struct Chunk {
    #[serde(default)]
    pub(super) choices: Vec<Choice>,
    pub(super) usage: Option<Usage>,
    pub(super) error: Option<Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Choice {
    #[serde(alias = "message")]
    pub(super) delta: Option<Delta>,
    pub(super) finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Delta {
    pub(super) content: Option<String>,
    pub(super) reasoning_content: Option<String>,
    pub(super) reasoning: Option<String>,
    pub(super) tool_calls: Option<Vec<Call>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Call {
    pub(super) index: Option<usize>,
    pub(super) id: Option<String>,
    pub(super) function: Option<Function>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Function {
    pub(super) name: Option<String>,
    /// A string by the protocol; an object from some servers.
    pub(super) arguments: Option<Value>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Usage {
    pub(super) prompt_tokens: Option<u64>,
    pub(super) completion_tokens: Option<u64>,
}

/// The words of an error object or text, as long as they are.
pub(super) fn words(value: &Value) -> String {
    let text = value
        .pointer("/error/message")
        .or_else(|| value.get("message"))
        .or_else(|| value.get("detail"))
        .or_else(|| value.get("error"))
        .unwrap_or(value);
    text.as_str().map_or_else(|| text.to_string(), str::to_owned)
}

/// One line of at most 300 characters.
pub(super) fn cut(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}
