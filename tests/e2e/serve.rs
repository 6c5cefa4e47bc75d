//! `hyla model serve` as clients see it: the real binary with a tiny model, over HTTP.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bot::model::endpoint::Endpoint;
use bot::model::{Error, Model};
use engine::{Message, Request, Sampling, Tool};
use futures_util::StreamExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use tests::house::hyla_binary;
use tests::model::PATIENCE;
use tests::tiny::{self, Script};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const KEY: &str = "key-of-tests-123";

/// What the scripted model says: a thought, words and a call; or words alone where it may not think.
const THINKING: Script<'_> = &[
    "I need the weather.",
    "</think>",
    "Let me look.",
    "<tool_call>",
    "\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n",
    "</tool_call>",
    "<|im_end|>",
];
const PLAIN: Script<'_> = &["It is sunny in Paris.", "<|im_end|>"];

struct Server {
    child: Child,
    url: String,
    client: reqwest::Client,
    /// All that it logs, once it has ended.
    log: JoinHandle<String>,
    _folder: tempfile::TempDir,
}

impl Server {
    async fn start(model: impl FnOnce(&Path), arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("the temp folder can be written");
        model(folder.path());
        let mut child = Command::new(hyla_binary())
            .args(["model", "serve", "--threads", "1", "--name", "tiny"])
            .args(["--listen", "127.0.0.1:0", "--model"])
            .arg(folder.path())
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let lines = BufReader::new(child.stderr.take().expect("it is a pipe")).lines();
        let (address, told) = oneshot::channel();
        let log = tokio::spawn(log(lines, address));
        let told = tokio::time::timeout(PATIENCE, told).await.expect("it answers");
        let url = format!("http://{}", told.expect("it tells where"));
        Self { child, url, client: reqwest::Client::new(), log, _folder: folder }
    }

    async fn scripted(arguments: &[&str]) -> Self {
        Self::start(|folder| tiny::scripted(folder, THINKING, PLAIN), arguments).await
    }

    async fn post(&self, path: &str, body: &Value) -> Response {
        let sent =
            self.client.post(format!("{}{path}", self.url)).bearer_auth(KEY).json(body).send();
        tokio::time::timeout(PATIENCE, sent).await.expect("it answers").expect("it answers")
    }

    async fn ask(&self, body: &Value) -> (StatusCode, Value) {
        let response = self.post("/v1/chat/completions", body).await;
        (response.status(), response.json().await.expect("it is JSON"))
    }

    /// The value of a metric's row.
    async fn metric(&self, row: &str) -> f64 {
        let sent = self.client.get(format!("{}/metrics", self.url)).bearer_auth(KEY).send().await;
        let text = sent.expect("it answers").text().await.expect("it is text");
        let value = text.lines().find_map(|line| line.strip_prefix(row)?.trim().parse().ok());
        value.unwrap_or(0.0)
    }

    async fn until(&self, row: &str, value: f64) {
        let begun = Instant::now();
        while self.metric(row).await != value {
            assert!(begun.elapsed() < PATIENCE, "`{row}` is never {value}");
        }
    }

    fn send(&self, signal: Signal) {
        let number = i32::try_from(self.child.id().expect("it runs")).expect("it is a pid");
        kill(Pid::from_raw(number), signal).expect("it is ours");
    }

    async fn ended(&mut self) -> std::process::ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait())
            .await
            .expect("it ends")
            .expect("it is ours")
    }
}

/// Reads what a server logs to its end, and tells where it answers as soon as it says so.
async fn log(mut lines: Lines<BufReader<ChildStderr>>, address: oneshot::Sender<String>) -> String {
    let (mut log, mut address) = (String::new(), Some(address));
    while let Ok(Some(line)) = lines.next_line().await {
        let record: Value = serde_json::from_str(&line).unwrap_or_default();
        let fields = &record["fields"];
        if let (Some("answering at /v1"), Some(told)) =
            (fields["message"].as_str(), fields["address"].as_str())
        {
            // Whoever waited for it has given up.
            let _ = address.take().map(|address| address.send(told.to_owned()));
        }
        log.push_str(&line);
        log.push('\n');
    }
    log
}

/// The JSON of each event of a stream.
fn events(text: &str) -> Vec<Value> {
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).expect("it is JSON"))
        .collect()
}

fn question(fields: Value) -> Value {
    let mut body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "hello" }] });
    for (key, value) in fields.as_object().expect("these are fields") {
        body[key] = value.clone();
    }
    body
}

/// A turn that does not end by itself.
fn endless() -> Value {
    json!({ "prompt": "z", "max_tokens": 1_000_000, "temperature": 0, "stream": true })
}

#[tokio::test]
async fn an_answer_is_the_same_in_pieces_and_whole() {
    let mut server = Server::start(tiny::random, &[]).await;
    for seed in 1..4 {
        let fields = json!({ "seed": seed, "max_tokens": 60, "temperature": 1, "top_k": 0, "logprobs": true });
        let (status, whole) = server.ask(&question(fields.clone())).await;
        assert_eq!(status, 200, "{whole}");
        let mut fields = fields;
        fields["stream"] = true.into();
        fields["stream_options"] = json!({ "include_usage": true });
        let response = server.post("/v1/chat/completions", &question(fields)).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = response.text().await.expect("it is text");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        let parts = events(&text);
        let joined = |key: &str| -> String {
            let deltas = parts.iter().filter_map(|part| part["choices"][0]["delta"][key].as_str());
            deltas.collect()
        };
        let choice = &whole["choices"][0];
        assert_eq!(joined("content"), choice["message"]["content"].as_str().unwrap_or_default());
        let reasoning = choice["message"]["reasoning_content"].as_str().unwrap_or_default();
        assert_eq!(joined("reasoning_content"), reasoning);
        let last = parts.last().expect("there are some");
        assert_eq!(last["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
        assert_eq!(last["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
        let finish = &parts[parts.len() - 2]["choices"][0]["finish_reason"];
        assert_eq!(finish, &choice["finish_reason"]);
        let n_told: usize = parts
            .iter()
            .filter_map(|part| part["choices"][0]["logprobs"]["content"].as_array())
            .map(Vec::len)
            .sum();
        assert_eq!(Some(n_told), choice["logprobs"]["content"].as_array().map(Vec::len));
    }
    assert!(server.metric("hyla_generated_tokens_total").await > 0.0);
    assert!(server.metric("hyla_time_to_first_token_seconds_count").await > 5.0);
    assert!(server.metric("process_resident_memory_bytes").await > 1e6);
    server.send(Signal::SIGTERM);
    assert!(server.ended().await.success());
}

#[tokio::test]
async fn a_call_is_typed_by_its_schema_and_a_cut_turn_says_so() {
    let server = Server::scripted(&[]).await;
    let tool = json!({ "type": "function", "function": { "name": "weather", "parameters": {
        "type": "object", "properties": { "city": { "type": "string" }, "days": { "type": "integer" } } } } });
    let (_, answer) = server.ask(&question(json!({ "tools": [tool], "temperature": 0 }))).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(choice["message"]["reasoning_content"], "I need the weather.");
    assert_eq!(
        choice["message"]["tool_calls"][0]["function"],
        json!({ "name": "weather", "arguments": "{\"city\":\"Paris\",\"days\":2}" })
    );
    let (_, answer) = server.ask(&question(json!({ "max_tokens": 2, "temperature": 0 }))).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");

    let plain = json!({ "enable_thinking": false });
    let fields = json!({ "chat_template_kwargs": plain, "temperature": 0, "stop": ["sunny in"] });
    let (_, answer) = server.ask(&question(fields)).await;
    assert_eq!(answer["choices"][0]["message"]["content"], "It is ", "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_call_that_is_demanded_comes_whatever_the_model_would_say() {
    let server = Server::scripted(&[]).await;
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    let names = ["weather", "weather_map", "walk"];
    for (seed, choice) in [json!("required"), json!("required"), tool("walk")].iter().enumerate() {
        let fields = json!({
            "tools": names.map(tool), "tool_choice": choice, "parallel_tool_calls": false, "logprobs": true,
            "seed": seed, "temperature": 1, "max_tokens": 200,
            "chat_template_kwargs": { "enable_thinking": seed > 0 },
        });
        let (status, whole) = server.ask(&question(fields.clone())).await;
        assert_eq!(status, 200, "{whole}");
        let choice = &whole["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let calls = choice["message"]["tool_calls"].as_array().expect("there are calls");
        let name = calls[0]["function"]["name"].as_str().expect("it has a name");
        assert!(
            calls.len() == 1 && names.contains(&name) && (seed < 2 || name == "walk"),
            "{name}"
        );
        // Tokens that the engine chose count like others.
        let n_told = choice["logprobs"]["content"].as_array().map(Vec::len);
        assert_eq!(whole["usage"]["completion_tokens"], json!(n_told));

        let mut fields = fields;
        fields["stream"] = true.into();
        let response = server.post("/v1/chat/completions", &question(fields)).await;
        let parts = events(&response.text().await.expect("it is text"));
        let mut deltas = parts.iter().map(|part| &part["choices"][0]["delta"]["tool_calls"][0]);
        let begun = deltas.find(|call| call["id"].is_string()).expect("a call begins");
        assert_eq!(begun["function"]["name"], name);
        let rest = deltas.next().expect("its arguments follow");
        assert_eq!(rest["function"]["arguments"], calls[0]["function"]["arguments"]);
        let last = parts.last().expect("there are some");
        assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
    }
}

#[tokio::test]
async fn only_the_key_opens_and_no_open_address_goes_without() {
    let keys = tempfile::NamedTempFile::new().expect("the temp folder can be written");
    std::fs::write(keys.path(), KEY).expect("the file is ours");
    let file = keys.path().display().to_string();
    let server = Server::scripted(&["--key-file", &file]).await;
    for (path, key, status) in [
        ("/v1/models", Some(KEY), 200),
        ("/v1/models/tiny", Some(KEY), 200),
        ("/v1/models/t%69ny", Some(KEY), 200),
        ("/v1/models/v1/models/tiny", Some(KEY), 404),
        ("/v1/models/%ff", Some(KEY), 400),
        ("/v1/models/other", Some(KEY), 404),
        ("/v1/models", Some("key-of-tests-124"), 401),
        ("/v1/models", None, 401),
        ("/metrics", None, 401),
        ("/nothing", Some(KEY), 404),
        ("/v1/chat/completions", Some(KEY), 405),
        ("/health", None, 200),
    ] {
        let mut request = server.client.get(format!("{}{path}", server.url));
        if let Some(key) = key {
            request = request.bearer_auth(key);
        }
        assert_eq!(request.send().await.expect("it answers").status(), status, "{path}");
    }
    let refused = Command::new(hyla_binary())
        .args(["model", "serve", "--model", "/nowhere", "--listen", "0.0.0.0:0"])
        .stdin(Stdio::null())
        .output();
    let refused =
        tokio::time::timeout(PATIENCE, refused).await.expect("it ends").expect("it starts");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("--key-file"), "{told}");
}

#[tokio::test]
async fn a_page_elsewhere_and_a_body_too_large_are_refused() {
    let server = Server::scripted(&[]).await;
    let post = || server.client.post(format!("{}/v1/chat/completions", server.url));
    let foreign = post().header("host", "evil.example").json(&question(json!({}))).send().await;
    assert_eq!(foreign.expect("it answers").status(), 403);
    let plain = post().header("content-type", "text/plain").body("{}").send().await;
    assert_eq!(plain.expect("it answers").status(), 415);
    // Only announced: the answer comes before the body.
    let large =
        post().header("content-type", "application/json").body(vec![b' '; 9 << 20]).send().await;
    if let Ok(large) = large {
        assert_eq!(large.status(), 413);
    }
}

#[tokio::test]
async fn a_full_server_says_when_to_come_again_and_a_lost_client_frees_its_place() {
    let server = Server::scripted(&["--sessions", "1", "--waiting", "0"]).await;
    for n_lost in [1.0, 2.0] {
        let mut running = server.post("/v1/completions", &endless()).await;
        assert!(running.chunk().await.expect("it flows").is_some());
        let refused = server.post("/v1/completions", &endless()).await;
        assert_eq!(refused.status(), 429);
        assert!(refused.headers().contains_key("retry-after"));
        let body: Value = refused.json().await.expect("it is JSON");
        assert_eq!(body["error"]["code"], "queue_full");
        // The client goes away.
        drop(running);
        server.until("hyla_turns_running ", 0.0).await;
        server.until("hyla_requests_total{outcome=\"cancelled\"} ", n_lost).await;
    }
    assert_eq!(server.metric("hyla_requests_total{outcome=\"busy\"} ").await, 2.0);

    // What it generated until then was work.
    assert!(server.metric("hyla_generated_tokens_total ").await >= 2.0);

    // Nor does one that waits for a whole answer leave its turn behind.
    let mut whole = endless();
    whole["stream"] = false.into();
    let patience = Duration::from_millis(300);
    let lost = tokio::time::timeout(patience, server.post("/v1/completions", &whole)).await;
    assert!(lost.is_err(), "it answered");
    server.until("hyla_turns_running ", 0.0).await;
    assert_eq!(server.metric("hyla_requests_total{outcome=\"cancelled\"} ").await, 3.0);
    let (status, answer) = server.ask(&question(json!({ "temperature": 0 }))).await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_client_that_does_not_read_holds_up_nobody() {
    let server = Server::scripted(&["--sessions", "2"]).await;
    let mut large = endless();
    large["logprobs"] = 20.into();
    let mut stuck = server.post("/v1/completions", &large).await;
    assert!(stuck.chunk().await.expect("it flows").is_some());
    for _ in 0..3 {
        let (status, answer) = server.ask(&question(json!({ "temperature": 0 }))).await;
        assert_eq!(status, 200, "{answer}");
    }
    // Its turn is cut once what waits for it is full, although it is still there.
    server.until("hyla_turns_running ", 0.0).await;
    drop(stuck);
}

#[tokio::test]
async fn a_stopping_server_lets_turns_end_and_takes_no_more() {
    let mut server = Server::scripted(&["--grace", "1s"]).await;
    let body = json!({ "prompt": "z", "max_tokens": 300, "temperature": 0, "stream": true });
    let mut short = server.post("/v1/completions", &body).await;
    assert!(short.chunk().await.expect("it flows").is_some());
    let mut long = server.post("/v1/completions", &endless()).await;
    assert!(long.chunk().await.expect("it flows").is_some());
    server.send(Signal::SIGTERM);
    let begun = Instant::now();
    loop {
        let (status, answer) = server.ask(&question(json!({ "max_tokens": 1 }))).await;
        if status == 503 {
            assert_eq!(answer["error"]["code"], "stopping");
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "it still takes turns");
    }
    let mut text = Vec::new();
    while let Ok(Some(chunk)) = short.chunk().await {
        text.extend_from_slice(&chunk);
    }
    assert!(String::from_utf8_lossy(&text).ends_with("data: [DONE]\n\n"), "the short turn was cut");
    // The endless one is broken off once the grace is over.
    let mut rest = long.bytes_stream();
    while let Some(Ok(_)) = rest.next().await {}
    assert!(server.ended().await.success());
    assert!(begun.elapsed() < Duration::from_secs(20));
}

/// Every value inside, by its place.
fn places(value: &Value, place: &str, found: &mut Vec<String>) {
    found.push(place.to_owned());
    match value {
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                places(item, &format!("{place}/{at}"), found);
            }
        }
        Value::Object(fields) => {
            for (key, item) in fields {
                places(item, &format!("{place}/{key}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[tokio::test]
async fn whatever_stands_in_a_body_there_is_an_answer() {
    let mut server = Server::scripted(&[]).await;
    let function = json!({ "name": "f", "arguments": "{\"a\": [1, {\"b\": null}]}" });
    let asked = json!({
        "model": "tiny", "max_tokens": 2, "stream": false, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "seed": 1,
        "stop": ["x"], "logprobs": true, "top_logprobs": 1, "n": 1, "tool_choice": "auto",
        "chat_template_kwargs": { "enable_thinking": true },
        "messages": [
            { "role": "system", "content": "s" },
            { "role": "user", "content": [{ "type": "text", "text": "u" }] },
            { "role": "assistant", "content": "a", "reasoning_content": "r",
              "tool_calls": [{ "id": "call_1", "type": "function", "function": function }] },
            { "role": "tool", "tool_call_id": "call_1", "content": "t" },
        ],
    });
    let tools = question(json!({ "max_tokens": 2, "tools": [{ "type": "function", "function": {
        "name": "f", "description": "d", "parameters": { "properties": { "a": { "type": "array" } } } } }] }));
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!(1e308),
        json!(""),
        json!([]),
        json!({}),
        deep,
        json!("<|im_end|></think>{% raw %}\u{0}\u{f8ff}\u{10fffd}"),
    ];
    let (mut n_places, mut n_refused) = (0, 0);
    for (body, place) in [(&asked, ""), (&tools, "/tools")] {
        let (status, answer) = server.ask(body).await;
        assert_eq!(status, 200, "{answer}");
        let mut found = Vec::new();
        places(body.pointer(place).expect("it is there"), place, &mut found);
        n_places += found.len();
        for (place, value) in
            found.iter().flat_map(|place| odd.iter().map(move |value| (place, value)))
        {
            let mut body = body.clone();
            *body.pointer_mut(place).expect("it is a place of it") = value.clone();
            let response = server.post("/v1/chat/completions", &body).await;
            let status = response.status();
            // A stream is an answer as well.
            let text = response.text().await.expect("it is text");
            assert!(status == 200 || status.is_client_error(), "{place} {value}: {status} {text}");
            if status != 200 {
                n_refused += 1;
                let answer: Value = serde_json::from_str(&text).expect("it is JSON");
                assert!(answer["error"]["message"].is_string(), "{place} {value}: {text}");
            }
        }
    }
    assert!(n_refused > n_places, "almost nothing was refused");
    server.send(Signal::SIGTERM);
    assert!(server.ended().await.success());
    let log = server.log.await.expect("it is read");
    assert!(!log.contains("panicked"), "{log}");
}

#[tokio::test]
async fn the_bots_own_client_is_content() {
    let server = Server::scripted(&["--context", "4096"]).await;
    let settings = config::Model {
        endpoint: format!("{}/v1", server.url).parse().expect("it is an address"),
        name: "tiny".into(),
        ..config::Model::default()
    };
    let endpoint = Endpoint::new(settings, None).expect("the settings are right");
    assert_eq!(endpoint.context_window().await.expect("it answers"), Some(4096));
    let parameters = json!({ "properties": { "days": { "type": "integer" } } });
    let mut request = Request {
        messages: vec![Message::User { content: "Weather?".into() }],
        tools: vec![Tool { name: "weather".into(), description: String::new(), parameters }],
        sampling: Sampling::default(),
    };
    let reply = endpoint.turn(&request, &mut |_| {}).await.expect("it answers");
    assert_eq!(reply.reasoning, "I need the weather.");
    assert_eq!(reply.calls[0].arguments, "{\"city\":\"Paris\",\"days\":2}");
    assert!(reply.usage.expect("it was asked for").prompt_tokens > 0);
    request.messages[0] = Message::User { content: "z".repeat(5000) };
    let error = endpoint.turn(&request, &mut |_| {}).await.expect_err("it is too long");
    assert!(matches!(error, Error::ContextFull { .. }), "{error}");
}

#[tokio::test]
async fn the_official_client_is_content() {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("openai/bin/python");
    if !python.exists() {
        eprintln!("skipped: the `openai` client is not installed; `bash tests/run.sh` does it");
        return;
    }
    let keys = tempfile::NamedTempFile::new().expect("the temp folder can be written");
    std::fs::write(keys.path(), KEY).expect("the file is ours");
    let server = Server::scripted(&["--key-file", &keys.path().display().to_string()]).await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/openai_client.py");
    let ran = Command::new(python)
        .arg(script)
        .args([format!("{}/v1", server.url), KEY.to_owned()])
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let ran = tokio::time::timeout(PATIENCE, ran).await.expect("it ends").expect("it starts");
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{told}");
}
