//! The wire forms as tables: what requests become, what is refused and by which name, and what answers look like. The
//! server with an engine behind it is told of in the stories of the whole bot.

use engine::{
    Candidate, DrawnToken, Event, Finished, Message, Piece, Query, Reply, Sampling, Source, Stop,
    Timings, ToolCall, ToolChoice, Usage,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Form, Head};
use super::ask::{Asked, Delivery};
use super::fault::Fault;
use super::read;

fn chat(body: &Value) -> Result<Asked, Fault> {
    read(Form::Chat, "m", body.to_string().as_bytes())
}

fn completion(body: &Value) -> Result<Asked, Fault> {
    read(Form::Text, "m", body.to_string().as_bytes())
}

/// A body with one question and these fields.
fn with(fields: Value) -> Value {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    for (key, value) in fields.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// The conversation that a list of messages becomes.
fn messages(list: Value) -> Vec<Message> {
    match chat(&json!({ "messages": list })).unwrap().query.source {
        Source::Conversation { messages, .. } => messages,
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_are_read_as_clients_write_them() {
    let user = |content: &str| Message::User { content: content.into() };
    let read = messages(json!([
        { "role": "developer", "content": "Be kind.", "name": "x" },
        { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
        { "role": "assistant", "content": null, "reasoning_content": "Hm.", "refusal": null, "tool_calls": [
            { "id": "call_1", "type": "function", "function": { "name": "f", "arguments": "{\"x\": 1}" } },
            { "id": "call_2", "type": "function", "function": { "name": "g", "arguments": "" } },
        ] },
        { "role": "tool", "tool_call_id": "call_1", "content": "one" },
        { "role": "tool", "tool_call_id": "call_2", "content": [] },
        { "role": "assistant", "reasoning": "Oh.", "content": "done" },
        { "role": "user", "content": "" },
    ]));
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let tool =
        |id: &str, content: &str| Message::Tool { call_id: id.into(), content: content.into() };
    assert_eq!(
        read,
        [
            Message::System { content: "Be kind.".into() },
            user("ab"),
            Message::Assistant {
                content: String::new(),
                reasoning: "Hm.".into(),
                calls: vec![call("call_1", "f", "{\"x\": 1}"), call("call_2", "g", "{}")],
            },
            tool("call_1", "one"),
            tool("call_2", ""),
            Message::Assistant {
                content: "done".into(),
                reasoning: "Oh.".into(),
                calls: Vec::new()
            },
            user(""),
        ]
    );
}

#[test]
fn answers_of_tools_come_in_the_order_of_their_calls() {
    let asks = |ids: &[&str]| {
        let call = |id: &&str| json!({ "id": id, "function": { "name": "f", "arguments": "" } });
        json!({ "role": "assistant", "tool_calls": ids.iter().map(call).collect::<Value>() })
    };
    let tool =
        |id: &str, content: &str| json!({ "role": "tool", "tool_call_id": id, "content": content });
    let read = messages(json!([
        { "role": "user", "content": "x" },
        asks(&["a", "b", "c"]), tool("c", "1"), tool("none", "2"), tool("a", "3"), tool("b", "4"), tool("a", "5"),
        asks(&["b", "a"]), tool("a", "6"), tool("b", "7"),
    ]));
    let answers = read.iter().filter_map(|message| match message {
        Message::Tool { content, .. } => Some(content.as_str()),
        Message::System { .. } | Message::User { .. } | Message::Assistant { .. } => None,
    });
    assert_eq!(answers.collect::<String>(), "3541276");
}

#[test]
fn how_tokens_are_drawn_is_read_and_the_rest_is_usual() {
    let usual = Sampling { max_tokens: u32::MAX, ..Sampling::default() };
    for (fields, expected) in [
        (json!({}), usual.clone()),
        (json!({ "temperature": null, "seed": null, "colour": "blue" }), usual.clone()),
        (json!({ "temperature": 0 }), Sampling { temperature: 0.0, ..usual.clone() }),
        (
            json!({ "top_p": 0.5, "min_p": 0.1 }),
            Sampling { top_p: 0.5, min_p: 0.1, ..usual.clone() },
        ),
        (json!({ "top_k": -1 }), Sampling { top_k: 0, ..usual.clone() }),
        (json!({ "seed": -1 }), Sampling { seed: Some(u64::MAX), ..usual.clone() }),
        (json!({ "seed": 7 }), Sampling { seed: Some(7), ..usual.clone() }),
        (
            json!({ "presence_penalty": 1.5, "repetition_penalty": 1.1, "frequency_penalty": 0 }),
            Sampling { presence_penalty: 1.5, repetition_penalty: 1.1, ..usual.clone() },
        ),
        (json!({ "max_tokens": 5 }), Sampling { max_tokens: 5, ..usual.clone() }),
        (
            json!({ "max_tokens": 5, "max_completion_tokens": 6 }),
            Sampling { max_tokens: 6, ..usual.clone() },
        ),
        (
            json!({ "chat_template_kwargs": { "enable_thinking": false, "x": 1 } }),
            Sampling { thinking: false, ..usual.clone() },
        ),
    ] {
        assert_eq!(chat(&with(fields.clone())).unwrap().query.sampling, expected, "{fields}");
    }
    let asked = chat(&with(json!({ "stop": ["a", "b"], "logprobs": true, "top_logprobs": 3, "stream": true,
        "stream_options": { "include_usage": true }, "n": 1, "response_format": { "type": "text" } })))
    .unwrap();
    assert_eq!(asked.query.stop_strings, ["a", "b"]);
    assert_eq!(asked.query.n_logprobs, Some(3));
    let delivery = Delivery { is_stream: true, has_usage: true };
    assert_eq!(asked.delivery, delivery);
    assert_eq!(chat(&with(json!({ "stop": "x" }))).unwrap().query.stop_strings, ["x"]);
}

#[test]
fn tools_are_offered_unless_none_are_to_be_called() {
    let tools = json!([{ "type": "function", "function": { "name": "f", "strict": true } }]);
    let named = json!({ "type": "function", "function": { "name": "f" } });
    for (choice, n_tools, expected) in [
        (json!("auto"), 1, ToolChoice::Auto),
        (Value::Null, 1, ToolChoice::Auto),
        (json!("none"), 0, ToolChoice::None),
        (json!("required"), 1, ToolChoice::Required),
        (named, 1, ToolChoice::Named("f".into())),
    ] {
        let is_many = choice.is_null();
        let fields =
            json!({ "tools": tools, "tool_choice": choice, "parallel_tool_calls": is_many });
        let asked = chat(&with(fields)).unwrap();
        let Source::Conversation { tools, tool_choice, is_one_call, .. } = asked.query.source
        else {
            panic!()
        };
        assert_eq!(
            (tools.len(), tool_choice, is_one_call),
            (n_tools, expected, !is_many),
            "{choice}"
        );
        for tool in tools {
            assert_eq!(tool.parameters, json!({ "type": "object", "properties": {} }));
        }
    }
}

#[test]
fn many_tools_are_read_in_a_time_that_grows_no_faster_than_they() {
    // As many as fit into the largest body, and a little more.
    let tool = |at: u32| json!({ "type": "function", "function": { "name": format!("f{at:06}") } });
    let tools: Vec<Value> = (0..160_000).map(tool).collect();
    let Source::Conversation { tools, .. } =
        chat(&with(json!({ "tools": tools }))).unwrap().query.source
    else {
        panic!()
    };
    assert_eq!(tools.len(), 160_000);
}

/// A question with these fields is refused for one of them.
#[track_caller]
fn check_wrong(fields: Value, param: &str) {
    let fault = chat(&with(fields.clone())).expect_err(&fields.to_string());
    assert_eq!(fault.status, 400, "{fields}");
    assert_eq!(fault.body()["error"]["param"], param, "{fields}");
}

#[test]
fn wrong_messages_name_the_field() {
    let message = |message: Value| json!({ "messages": [message] });
    let calls = |function: Value| {
        message(json!({ "role": "assistant", "tool_calls": [{ "id": "x", "function": function }] }))
    };
    for (fields, param) in [
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "hi" }), "messages"),
        (json!({ "messages": [1] }), "messages[0]"),
        (message(json!({})), "messages[0].role"),
        (message(json!({ "role": "robot" })), "messages[0].role"),
        (message(json!({ "role": "user" })), "messages[0].content"),
        (message(json!({ "role": "user", "content": 1 })), "messages[0].content"),
        (message(json!({ "role": "user", "content": ["x"] })), "messages[0].content[0]"),
        (
            message(json!({ "role": "user", "content": [{ "type": "image_url" }] })),
            "messages[0].content[0].type",
        ),
        (message(json!({ "role": "tool", "tool_call_id": "x", "content": "" })), "messages[0]"),
        (message(json!({ "role": "tool", "content": "" })), "messages[0].tool_call_id"),
        (message(json!({ "role": "assistant", "tool_calls": {} })), "messages[0].tool_calls"),
        (
            message(json!({ "role": "assistant", "reasoning_content": 1 })),
            "messages[0].reasoning_content",
        ),
        (calls(json!(null)), "messages[0].tool_calls[0].function"),
        (calls(json!({ "name": "f" })), "messages[0].tool_calls[0].function.arguments"),
        (
            calls(json!({ "name": "f", "arguments": {} })),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            calls(json!({ "name": "f", "arguments": "[1]" })),
            "messages[0].tool_calls[0].function.arguments",
        ),
        (calls(json!({ "arguments": "{}" })), "messages[0].tool_calls[0].function.name"),
    ] {
        check_wrong(fields, param);
    }
}

#[test]
fn a_whole_number_may_have_a_point_and_a_wrong_one_is_told_back() {
    let sampling = |fields| chat(&with(fields)).unwrap().query.sampling;
    assert_eq!(sampling(json!({ "max_tokens": 3.0 })).max_tokens, 3);
    let huge: Value = serde_json::from_str("1000000000000000000000000000000").unwrap();
    for (fields, words) in [
        (json!({ "max_tokens": 1e18 }), "it must be from 1 to 1073741824, not 1e"),
        (json!({ "max_tokens": huge }), "it must be from 1 to 1073741824, not 1e"),
        (json!({ "max_tokens": -1 }), "it must be from 1 to 1073741824, not -1"),
        (json!({ "top_k": 1.5 }), "it must be a whole number, not 1.5"),
        (json!({ "temperature": 2.1 }), "it must be from 0 to 2, not 2.1"),
        (json!({ "n": 0 }), "anything but one answer is not supported"),
    ] {
        let fault = chat(&with(fields)).expect_err(words).body();
        let message = fault["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn not_all_of_a_long_name_is_told_back() {
    let fault = chat(&with(json!({ "model": "x".repeat(1 << 20) }))).expect_err("it is not `m`");
    assert_eq!(fault.status(), 404);
    assert!(fault.body().to_string().len() < 1000);
}

#[test]
fn any_number_of_tools_is_read_in_a_time_that_grows_no_faster() {
    let tool = |at| json!({ "type": "function", "function": { "name": format!("tool_{at}") } });
    let mut tools: Vec<Value> = (0..100_000).map(tool).collect();
    tools.push(tool(99_999));
    // Comparing each with each takes minutes.
    let begun = std::time::Instant::now();
    let fault = chat(&with(json!({ "tools": tools }))).expect_err("one is there twice").body();
    assert_eq!(fault["error"]["param"], "tools[100000].function.name");
    assert!(begun.elapsed() < std::time::Duration::from_secs(30));
}

#[test]
fn wrong_tools_name_the_field() {
    let tool = |function: Value| json!({ "tools": [{ "type": "function", "function": function }] });
    for (fields, param) in [
        (json!({ "tools": {} }), "tools"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (tool(json!({})), "tools[0].function.name"),
        (tool(json!({ "name": "a b" })), "tools[0].function.name"),
        (tool(json!({ "name": "f", "parameters": [] })), "tools[0].function.parameters"),
        (tool(json!({ "name": "f", "description": 1 })), "tools[0].function.description"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": "required", "tools": [] }), "tool_choice"),
        (json!({ "tool_choice": {} }), "tool_choice.type"),
        (json!({ "tool_choice": { "type": "allowed_tools" } }), "tool_choice.type"),
        (json!({ "tool_choice": { "type": "function" } }), "tool_choice.function"),
        (
            json!({ "tool_choice": { "type": "function", "function": {} } }),
            "tool_choice.function.name",
        ),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "g" } },
                    "tools": [{ "type": "function", "function": { "name": "f" } }] }),
            "tool_choice.function.name",
        ),
        (json!({ "tool_choice": "perhaps" }), "tool_choice"),
        (json!({ "tool_choice": 1 }), "tool_choice"),
        (json!({ "parallel_tool_calls": 1 }), "parallel_tool_calls"),
        (json!({ "functions": [] }), "functions"),
    ] {
        check_wrong(fields, param);
    }
}

#[test]
fn wrong_settings_name_the_field() {
    for (fields, param) in [
        (json!({ "model": 1 }), "model"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (
            json!({ "stream": true, "stream_options": { "include_usage": 1 } }),
            "stream_options.include_usage",
        ),
        (json!({ "n": 2 }), "n"),
        (json!({ "n": 0 }), "n"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": 2.1 }), "temperature"),
        (json!({ "top_p": 0 }), "top_p"),
        (json!({ "top_k": 1.5 }), "top_k"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "min_p": -0.1 }), "min_p"),
        (json!({ "presence_penalty": 3 }), "presence_penalty"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty"),
        (json!({ "frequency_penalty": 0.5 }), "frequency_penalty"),
        (json!({ "seed": 1.5 }), "seed"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": u64::MAX }), "max_tokens"),
        (json!({ "max_completion_tokens": "x" }), "max_completion_tokens"),
        (json!({ "stop": 1 }), "stop"),
        (json!({ "stop": ["a", 1] }), "stop[1]"),
        (json!({ "stop": vec!["a"; 17] }), "stop"),
        (json!({ "logprobs": 1 }), "logprobs"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (
            json!({ "chat_template_kwargs": { "enable_thinking": "no" } }),
            "chat_template_kwargs.enable_thinking",
        ),
        (json!({ "chat_template_kwargs": [] }), "chat_template_kwargs"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "logit_bias": { "1": 2 } }), "logit_bias"),
    ] {
        check_wrong(fields, param);
    }
}

#[test]
fn a_body_that_is_no_request_is_refused() {
    for body in ["", "nonsense", "[]", "1", "{\"messages\": ", "\u{feff}{}"] {
        let fault = read(Form::Chat, "m", body.as_bytes()).expect_err(body);
        assert_eq!((fault.status.as_u16(), &fault.body()["error"]["param"]), (400, &Value::Null));
    }
    let fault = chat(&with(json!({ "model": "other" }))).unwrap_err();
    assert_eq!(
        (fault.status.as_u16(), &fault.body()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[test]
fn a_model_of_another_name_is_not_found() {
    let fault = Fault::no_model("a b", "m");
    assert_eq!(
        (fault.status.as_u16(), &fault.body()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    assert_eq!(fault.body()["error"]["message"], "there is no model `a b` here, but `m`");
}

#[test]
fn a_raw_prompt_is_a_text_or_ids() {
    for (prompt, expected) in [
        (json!("x"), Source::Text("x".into())),
        (json!(["x"]), Source::Text("x".into())),
        (json!([1, 2]), Source::Ids(vec![1, 2])),
        (json!([[1, 2]]), Source::Ids(vec![1, 2])),
    ] {
        let asked = completion(&json!({ "prompt": prompt, "echo": false })).unwrap();
        assert_eq!(asked.query.source, expected, "{prompt}");
        assert_eq!(asked.query.sampling.max_tokens, 16);
    }
    for (body, param) in [
        (json!({}), "prompt"),
        (json!({ "prompt": {} }), "prompt"),
        (json!({ "prompt": ["a", "b"] }), "prompt"),
        (json!({ "prompt": [1, -1] }), "prompt[1]"),
        (json!({ "prompt": "x", "echo": true }), "echo"),
        (json!({ "prompt": "x", "suffix": "y" }), "suffix"),
        (json!({ "prompt": "x", "best_of": 2 }), "best_of"),
        (json!({ "prompt": "x", "logprobs": 21 }), "logprobs"),
        (json!({ "prompt": "x", "logprobs": true }), "logprobs"),
    ] {
        let fault = completion(&body).expect_err(&body.to_string());
        assert_eq!(fault.body()["error"]["param"], param, "{body}");
    }
}

fn answer(form: Form) -> Answer {
    let delivery = Delivery { is_stream: true, has_usage: true };
    let (id, model) = ("id-1".into(), "m".into());
    Answer::new(Head { form, id, created: 7, model, delivery, has_logprobs: true })
}

fn token(id: u32, text: &str) -> DrawnToken {
    let drawn = Candidate { id, bytes: text.into(), logprob: -0.5 };
    let never = Candidate { id: id + 1, bytes: vec![0xe2], logprob: f32::NEG_INFINITY };
    DrawnToken { likeliest: vec![drawn.clone(), never], drawn }
}

/// A turn that thinks, speaks and calls twice: its events and its end.
fn turn() -> (Vec<Event>, Finished) {
    let call =
        |id: &str| ToolCall { id: id.into(), name: "f".into(), arguments: "{\"a\": 1}".into() };
    let events = vec![
        Event::Token(token(1, "Hm")),
        Event::Piece(Piece::Reasoning("Hm".into())),
        Event::Token(token(2, " ")),
        Event::Piece(Piece::Text(" ".into())),
        Event::Token(token(3, "Yes")),
        Event::Piece(Piece::Text("Yes".into())),
        Event::Token(token(4, "call")),
        Event::Piece(Piece::Call(call("call_1"))),
        Event::Piece(Piece::Call(call("call_2"))),
        Event::Token(token(5, "cut")),
    ];
    let reply = Reply {
        content: " Yes".into(),
        reasoning: "Hm".into(),
        calls: vec![call("call_1"), call("call_2")],
        stop: Stop::End,
        usage: Some(Usage { prompt_tokens: 10, completion_tokens: 6 }),
    };
    let timings = Timings { n_cached: 4, ..Timings::default() };
    (events, Finished { reply, seed: 1, timings })
}

/// The message that the parts of a stream make, and the tokens that they told.
fn gathered(parts: &[Value]) -> (Map<String, Value>, Vec<Value>, Value) {
    let (mut message, mut tokens, mut finish) = (Map::new(), Vec::new(), Value::Null);
    let mut calls: Vec<Value> = Vec::new();
    for part in parts {
        let choice = &part["choices"][0];
        tokens.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
        for (key, value) in choice["delta"].as_object().into_iter().flatten() {
            if key == "tool_calls" {
                let call = &value[0];
                match call.get("id") {
                    Some(_) => calls.push(call.clone()),
                    None => {
                        calls.last_mut().unwrap()["function"]["arguments"] =
                            call["function"]["arguments"].clone()
                    }
                }
                continue;
            }
            let before = message.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
            message.insert(key.clone(), (before + value.as_str().unwrap()).into());
        }
        if !choice["finish_reason"].is_null() {
            finish = choice["finish_reason"].clone();
        }
    }
    for call in &mut calls {
        call.as_object_mut().unwrap().shift_remove("index");
    }
    if !calls.is_empty() {
        message.insert("tool_calls".into(), calls.into());
    }
    (message, tokens, finish)
}

#[test]
fn a_stream_tells_what_the_whole_answer_tells() {
    let (events, finished) = turn();
    let mut stream = answer(Form::Chat);
    let mut whole = answer(Form::Chat);
    let mut parts = stream.first();
    for event in events {
        if let Event::Token(token) = &event {
            whole.keep(token.clone());
        }
        parts.extend(stream.next(event).unwrap());
    }
    parts.extend(stream.next(Event::End(Ok(finished.clone()))).unwrap());
    let whole = whole.whole(&finished);

    let (message, tokens, finish) = gathered(&parts);
    assert_eq!(whole["choices"][0]["message"], Value::Object(message.clone()));
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 2);
    assert_eq!(whole["choices"][0]["logprobs"]["content"], Value::Array(tokens.clone()));
    assert_eq!(tokens.len(), 5);
    assert_eq!(tokens[0]["top_logprobs"][1]["logprob"], -9999.0);
    assert_eq!((&finish, &whole["choices"][0]["finish_reason"]), (&json!("tool_calls"), &finish));

    let last = parts.last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], whole["usage"]);
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    assert!(parts.iter().all(|part| part["object"] == "chat.completion.chunk"));
    assert_eq!(whole["object"], "chat.completion");
}

#[test]
fn white_space_alone_is_no_text() {
    let mut stream = answer(Form::Chat);
    assert_eq!(stream.next(Event::Piece(Piece::Text(" \n".into()))).unwrap(), Vec::<Value>::new());
    let (_, mut finished) = turn();
    finished.reply.content.clear();
    let whole = answer(Form::Chat).whole(&finished);
    assert_eq!(whole["choices"][0]["message"]["content"], Value::Null);
    finished.reply.calls.clear();
    finished.reply.stop = Stop::Length;
    let whole = answer(Form::Chat).whole(&finished);
    assert_eq!(whole["choices"][0]["message"]["content"], "");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_raw_answer_counts_characters() {
    let mut stream = answer(Form::Text);
    let mut parts = stream.first();
    for text in ["grün", "er"] {
        parts.extend(stream.next(Event::Token(token(1, text))).unwrap());
        parts.extend(stream.next(Event::Piece(Piece::Text(text.into()))).unwrap());
    }
    assert_eq!(parts.len(), 2);
    let told = &parts[1]["choices"][0];
    assert_eq!(told["text"], "er");
    assert_eq!(told["logprobs"]["text_offset"], json!([4]));
    assert_eq!(told["logprobs"]["tokens"], json!(["er"]));
    assert_eq!(told["logprobs"]["top_logprobs"][0]["er"], -0.5);
}

#[test]
fn a_character_of_several_tokens_counts_once() {
    let mut stream = answer(Form::Text);
    let frog = "\u{1f438}".as_bytes();
    let open = &frog[..2];
    // "a🐸b�c�d�e", and what is not complete.
    for bytes in [
        &b"a"[..],
        &frog[..1],
        &frog[1..3],
        &[frog[3], b'b'],
        b"\xff",
        b"c",
        open,
        b"d",
        &[open, b"e", open].concat(),
        b"",
    ] {
        let mut token = token(1, "");
        token.drawn.bytes = bytes.to_vec();
        assert_eq!(stream.next(Event::Token(token)).unwrap(), Vec::<Value>::new());
    }
    let parts = stream.next(Event::Piece(Piece::Text("x".into()))).unwrap();
    let offsets = &parts[0]["choices"][0]["logprobs"]["text_offset"];
    assert_eq!(*offsets, json!([0, 1, 1, 1, 3, 4, 5, 5, 7, 9]));
}

/// Any JSON, with the names that mean something here among its keys.
fn any_json() -> impl Strategy<Value = Value> {
    let word = prop_oneof![
        Just("user".to_owned()),
        Just("assistant".to_owned()),
        Just("tool".to_owned()),
        Just("function".to_owned()),
        Just("required".to_owned()),
        Just("text".to_owned()),
        Just("{}".to_owned()),
        ".{0,6}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word.prop_map(Value::from),
    ];
    const KEYS: [&str; 33] = [
        "messages",
        "role",
        "content",
        "type",
        "text",
        "tool_calls",
        "id",
        "function",
        "name",
        "arguments",
        "tool_call_id",
        "tools",
        "parameters",
        "description",
        "tool_choice",
        "parallel_tool_calls",
        "stream",
        "stream_options",
        "include_usage",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "max_tokens",
        "logprobs",
        "top_logprobs",
        "chat_template_kwargs",
        "enable_thinking",
        "prompt",
        "n",
        "response_format",
        "logit_bias",
    ];
    leaf.prop_recursive(5, 64, 8, |inner| {
        let key = prop::sample::select(&KEYS[..]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..6).prop_map(|pairs| {
                pairs
                    .into_iter()
                    .map(|(key, value)| (key.to_owned(), value))
                    .collect::<Map<_, _>>()
                    .into()
            }),
        ]
    })
}

proptest! {
    #[test]
    fn any_body_is_read_or_refused(body in any_json(), fields in any_json()) {
        let with_messages = match fields {
            Value::Object(_) => with(fields),
            other => json!({ "messages": other }),
        };
        for form in [Form::Chat, Form::Text] {
            for body in [&body, &with_messages] {
                match read(form, "m", body.to_string().as_bytes()) {
                    Ok(Asked { query: Query { sampling, .. }, .. }) => {
                        prop_assert!(sampling.top_p > 0.0 && sampling.repetition_penalty > 0.0);
                        prop_assert!(sampling.max_tokens > 0);
                    }
                    Err(fault) => prop_assert!(fault.status.is_client_error()),
                }
            }
        }
    }
}
