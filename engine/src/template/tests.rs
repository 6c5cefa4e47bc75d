//! Conversations through a template of the family's structure, against texts that its own template gave.

use std::path::Path;

use minijinja::Value;
use minijinja::value::Serde;
use serde_json::json;

use super::Template;
use crate::{Message, Request, Sampling, Tool, ToolCall};

fn template() -> Template {
    let text = include_str!("chat_template.jinja").to_owned();
    Template::parse(Path::new("chat_template.jinja"), text).expect("the template of tests is right")
}

fn render(values: &serde_json::Value) -> Result<String, String> {
    let rendered = template().render_values(&Value::from(Serde(values)), super::FUEL);
    rendered.map_err(|error| error.source.to_string())
}

#[test]
fn a_request_becomes_the_text_that_the_model_knows() {
    let call = |name: &str, arguments: &str| ToolCall {
        id: "c".into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    let request = Request {
        messages: vec![
            Message::System { content: " S \n".into() },
            Message::User { content: "Fix it".into() },
            Message::Assistant {
                content: "Let me look.".into(),
                reasoning: "Hm.\n".into(),
                calls: vec![
                    call(
                        "Read",
                        r#"{"path": "a", "on": true, "none": null, "x": 1.0, "list": [1, "ü<"]}"#,
                    ),
                    call("Read", "broken"),
                ],
            },
            Message::Tool { call_id: "c".into(), content: "  one\n".into() },
            Message::Tool { call_id: "c".into(), content: "two".into() },
        ],
        tools: vec![Tool {
            name: "Read".into(),
            description: "a & <b>".into(),
            parameters: json!({ "type": "object" }),
        }],
        sampling: Sampling { thinking: false, ..Sampling::default() },
    };
    let expected = "<|im_start|>system\nTools, one on each line:\n\n<tools>\n\
        {\"type\": \"function\", \"function\": {\"name\": \"Read\", \"description\": \"a & <b>\", \"parameters\": {\"type\": \"object\"}}}\n\
        </tools>\n\nA call is written with function and parameter marks.\n\nS<|im_end|>\n\
        <|im_start|>user\nFix it<|im_end|>\n\
        <|im_start|>assistant\n<think>\nHm.\n</think>\n\nLet me look.\n\n\
        <tool_call>\n<function=Read>\n<parameter=path>\na\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n\
        <parameter=none>\nNone\n</parameter>\n<parameter=x>\n1.0\n</parameter>\n<parameter=list>\n[1, \"ü<\"]\n</parameter>\n\
        </function>\n</tool_call>\n<tool_call>\n<function=Read>\n</function>\n</tool_call><|im_end|>\n\
        <|im_start|>user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>\n\
        <|im_start|>assistant\n<think>\n\n</think>\n\n";
    assert_eq!(template().render(&request).expect("it renders"), expected);
}

#[test]
fn a_conversation_without_a_question_is_refused_with_the_templates_words() {
    let error = render(&json!({ "messages": [{ "role": "assistant", "content": "x" }] }))
        .expect_err("nobody asks");
    assert!(error.contains("nobody asks anything"), "{error}");
    assert!(Template::parse(Path::new("x"), "{% if %}".into()).is_err());
    assert!(Template::load(Path::new("/no/such/folder")).is_err());
}

/// Texts of the published template lie beside the checkout of those who develop the engine. Its preamble is in its own
/// words; all else must be equal.
#[test]
fn every_published_case_is_equal_but_for_the_preamble() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/fixtures/qwen35/text/template_cases.json");
    let Ok(text) = std::fs::read_to_string(file) else {
        eprintln!("skipped: there are no shared fixtures here");
        return;
    };
    let cases: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).expect("it is JSON");
    for (name, case) in cases {
        let ours = render(&case["ctx"]).expect("it renders");
        let mut theirs = case["want"].as_str().expect("it is a text").to_owned();
        if let (Some(tools), Some(end)) = (theirs.find("<tools>"), theirs.rfind("</IMPORTANT>")) {
            let list = &theirs[tools..theirs.find("</tools>").expect("the list ends")];
            theirs = format!(
                "<|im_start|>system\nTools, one on each line:\n\n{list}</tools>\n\nA call is written with function and parameter marks.{}",
                &theirs[end + "</IMPORTANT>".len()..]
            );
        }
        assert_eq!(ours, theirs, "{name}");
    }
}

/// What a template does to a short question: the reason why it does not, or its text.
fn ends(text: &str) -> String {
    let file = Path::new("chat_template.jinja");
    let template = match Template::parse(file, text.to_owned()) {
        Ok(template) => template,
        Err(error) => return error.to_string(),
    };
    let messages = vec![Message::User { content: "Why?".into() }];
    let request = Request { messages, tools: Vec::new(), sampling: Sampling::default() };
    template.render(&request).unwrap_or_else(|error| error.source.to_string())
}

#[test]
fn a_template_does_not_work_without_an_end() {
    let twice = "{% set s = s ~ s %}".repeat(40);
    for (text, reason) in [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "far more",
        ),
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}aaaa{% endfor %}{% endfor %}",
            "far more",
        ),
        (&format!("{{% set s = 'aaaa' %}}{twice}{{{{ s|length }}}}"), "far more"),
        ("{{ ('a' * 90000).replace('a', 'a' * 90000)|length }}", "far more"),
        ("{{ range(99999)|join('a' * 90000)|length }}", "far more"),
        ("{{ '%099999999999d'|format(1) }}", "far more"),
        ("{{ 'a'|indent(99999999999) }}", "far more"),
        ("{{ 'a' * 99999999999 }}", "far more"),
        ("{{ range(99999999999)|list }}", "too many"),
    ] {
        let end = ends(text);
        assert!(end.contains(reason), "{text:.90}: {end:.200}");
    }
    assert!(ends("{{ raise_exception('x' * 99999) }}").len() < 2000);
}

#[test]
fn json_of_what_a_template_made_has_a_size_and_a_depth() {
    let twice = "{% set l = [l, l] %}".repeat(50);
    let deep = "{% set l = [l] %}".repeat(1000);
    let itself = "{% set n = namespace() %}{% set n.n = n %}{{ n|tojson }}";
    for (text, reason) in [
        (&*format!("{{% set l = 'a' %}}{twice}{{{{ l|tojson }}}}"), "bytes"),
        (&*format!("{{% set l = 'a' %}}{deep}{{{{ l|tojson }}}}"), "256 deep"),
        (itself, "256 deep"),
    ] {
        let end = ends(text);
        assert!(end.contains(reason), "{text:.90}: {end:.200}");
    }
}

#[test]
fn what_is_deeply_nested_ends_nothing_but_the_request() {
    let many = |text: &str, n: usize| text.repeat(n);
    for text in [
        format!("{{{{ {}1 }}}}", many("not ", 10_000)),
        format!("{{{{ {}1 }}}}", many("-", 40_000)),
        format!("{{{{ 1{} }}}}", many("+1", 20_000)),
        format!("{{{{ 1{} }}}}", many("|abs", 10_000)),
        format!("{{{{ a{} }}}}", many(".a", 20_000)),
        format!("{{% if 0 %}}{}{{% endif %}}", many("{% elif 0 %}", 5_000)),
        many("{% if 1 %}", 6_000),
        format!("{{{{ {}", many("[", 60_000)),
        "{% set n = namespace(l=[]) %}{% for i in range(20000) %}{% set n.l = [n.l] %}{% endfor %}"
            .into(),
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into(),
    ] {
        // It comes back.
        ends(&text);
    }
}

#[test]
fn a_template_has_fuel_for_conversations_of_any_length() {
    let call = ToolCall { id: "c".into(), name: "Read".into(), arguments: r#"{"a": [1]}"#.into() };
    let turn = [
        Message::User { content: "Why?".into() },
        Message::Assistant { content: "So.".into(), reasoning: "Hm.".into(), calls: vec![call] },
        Message::Tool { call_id: "c".into(), content: "x".repeat(1000) },
    ];
    let messages = turn.into_iter().cycle().take(3000).collect();
    let request = Request { messages, tools: Vec::new(), sampling: Sampling::default() };
    assert!(template().render(&request).expect("it has enough").len() > 1_000_000);
}
