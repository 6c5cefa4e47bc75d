//! What models write, and every way to cut it.

use serde_json::json;

use super::{Mark, Parser, Start, is_broken_call};
use crate::{Piece, Reply, Stop, Tool};

fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: serde_json::Value| Tool {
        name: name.into(),
        description: String::new(),
        parameters: json!({ "type": "object", "properties": properties }),
    };
    vec![
        tool(
            "Write",
            json!({ "file_path": { "type": "string" }, "content": { "type": "string" } }),
        ),
        tool(
            "Set",
            json!({
                "n": { "type": "integer" }, "x": { "type": "number" }, "on": { "type": "boolean" },
                "list": { "type": "array" }, "maybe": { "type": ["null", "integer"] },
                "either": { "anyOf": [{ "type": "null" }, { "type": "object" }] }, "text": { "type": "string" }
            }),
        ),
    ]
}

/// Units as a decoder hands them out: marks are tokens of their own.
enum Unit<'a> {
    Text(&'a str),
    Mark(Mark),
}

fn units(text: &str) -> Vec<Unit<'_>> {
    let marks = [Mark::ThinkOpen, Mark::ThinkClose, Mark::CallOpen, Mark::CallClose];
    let mut units = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let next = marks
            .iter()
            .filter_map(|mark| Some((rest.find(mark.text())?, *mark)))
            .min_by_key(|(at, _)| *at);
        let Some((at, mark)) = next else {
            units.push(Unit::Text(rest));
            break;
        };
        units.push(Unit::Text(&rest[..at]));
        units.push(Unit::Mark(mark));
        rest = &rest[at + mark.text().len()..];
    }
    units
}

/// Parses with the texts cut into pieces of `size` characters. The pieces together must say what the reply says.
fn parse(start: Start, text: &str, stop: Stop, size: usize) -> Reply {
    let tools = tools();
    let mut parser = Parser::new(start, &tools, 0);
    let mut seen = Vec::new();
    let mut note = |piece: Piece| seen.push(piece);
    for unit in units(text) {
        match unit {
            Unit::Mark(mark) => parser.mark(mark, &mut note),
            Unit::Text(text) => {
                let chars: Vec<char> = text.chars().collect();
                for piece in chars.chunks(size) {
                    parser.text(&piece.iter().collect::<String>(), &mut note);
                }
            }
        }
    }
    let reply = parser.finish(stop, None, &mut note);
    let text =
        |wanted: fn(&Piece) -> Option<&str>| seen.iter().filter_map(wanted).collect::<String>();
    let reasoning =
        text(|piece| if let Piece::Reasoning(text) = piece { Some(text) } else { None });
    let content = text(|piece| if let Piece::Text(text) = piece { Some(text) } else { None });
    assert_eq!(reasoning, reply.reasoning);
    assert_eq!(content.trim(), reply.content.trim());
    let calls: Vec<_> = seen
        .iter()
        .filter_map(|piece| if let Piece::Call(call) = piece { Some(call.clone()) } else { None })
        .collect();
    assert_eq!(calls, reply.calls);
    reply
}

fn check(start: Start, text: &str, expected: (&str, &str, &[(&str, serde_json::Value)])) {
    for size in [1, 2, 3, 7, 10_000] {
        let reply = parse(start, text, Stop::End, size);
        let calls: Vec<(String, serde_json::Value)> = reply
            .calls
            .iter()
            .map(|call| {
                (
                    call.name.clone(),
                    serde_json::from_str(&call.arguments).expect("arguments are JSON"),
                )
            })
            .collect();
        let wanted: Vec<_> =
            expected.2.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        assert_eq!(
            (reply.reasoning.as_str(), reply.content.as_str(), calls),
            (expected.0, expected.1, wanted),
            "in pieces of {size}: {text}"
        );
    }
}

fn write(content: &str) -> serde_json::Value {
    json!({ "file_path": "a", "content": content })
}

fn written(content: &str) -> String {
    format!(
        "<tool_call>\n<function=Write>\n<parameter=file_path>\na\n</parameter>\n<parameter=content>\n{content}\n</parameter>\n</function>\n</tool_call>"
    )
}

#[test]
fn reasoning_content_and_calls_are_told_apart() {
    use Start::{Content, Reasoning};
    let call = written("x = 1");
    check(Reasoning, "Hm.\n</think>\n\nDone.", ("Hm.", "Done.", &[]));
    check(Content, "Done.\n", ("", "Done.", &[]));
    check(Reasoning, "only thoughts\n", ("only thoughts", "", &[]));
    check(Reasoning, "<think>\nHm.</think></think>\nx", ("Hm.", "x", &[]));
    check(
        Reasoning,
        &format!("Hm.\n</think>\n\nI write.\n\n{call}"),
        ("Hm.", "I write.", &[("Write", write("x = 1"))]),
    );
    check(
        Content,
        &format!("{call}\n{call}"),
        ("", "", &[("Write", write("x = 1")), ("Write", write("x = 1"))]),
    );
    // The think block was not closed.
    check(Reasoning, &format!("Hm.\n{call}"), ("Hm.", "", &[("Write", write("x = 1"))]));
    // Text behind a call is text; white space before the first is none.
    check(Content, &format!(" \n {call}\n"), ("", "", &[("Write", write("x = 1"))]));
    check(Content, &format!("{call}\nDone."), ("", "Done.", &[("Write", write("x = 1"))]));
    // The words alone are no call.
    check(Reasoning, "a <tool_call> is a mark\n</think>\nx", ("a <tool_call> is a mark", "x", &[]));
    check(Content, "</tool_call>a", ("", "a", &[]));
}

#[test]
fn values_keep_what_looks_like_an_end() {
    for content in [
        "",
        "\n",
        "  indented\n\n",
        "a </parameter> b",
        "</parameter>\nmore",
        "<parameter=x>\n1\n</parameter>\nmore",
        "</function>\nmore",
        "</parameter>\n</function>\nmore",
        "<function=Write>",
        "<think>\nx\n</think>",
        "ü 日本",
    ] {
        // A parameter inside a value that is closed as the real ones are cannot be told from one.
        if content.starts_with("<parameter=x>") {
            continue;
        }
        check(Start::Content, &written(content), ("", "", &[("Write", write(content))]));
    }
}

#[test]
fn a_forgotten_end_is_found() {
    let forgotten = "<tool_call>\n<function=Write>\n<parameter=file_path>\na\n<parameter=content>\nx\n</function>\n</tool_call>";
    check(Start::Content, forgotten, ("", "", &[("Write", write("x"))]));
    let no_function_end = written("x").replace("</function>\n", "");
    check(Start::Content, &no_function_end, ("", "", &[("Write", write("x"))]));
    let bare = "<tool_call><function=Write></function></tool_call>";
    check(Start::Content, bare, ("", "", &[("Write", json!({}))]));
}

#[test]
fn a_call_that_is_none_stays_in_the_text_and_is_known_by_it() {
    for broken in [
        "<tool_call>nonsense</tool_call>",
        "<tool_call>\n{\"name\": \"Write\"}\n</tool_call>",
        "<tool_call>\n<function=Write>\n<parameter=content>\nx",
        "<tool_call>\n<function=Write",
        "<tool_call>",
        "<function=Write>\n<parameter=content>\nx",
    ] {
        check(Start::Content, broken, ("", broken, &[]));
        check(
            Start::Content,
            &format!("I write.\n{broken}"),
            ("", &format!("I write.\n{broken}"), &[]),
        );
        assert!(
            is_broken_call(broken) && is_broken_call(&format!("I write.\n\n{broken}")),
            "{broken}"
        );
        let cut = parse(Start::Content, broken, Stop::Length, 3);
        assert_eq!((cut.content.as_str(), cut.calls.len()), (broken, 0));
    }
    assert!(is_broken_call("I write: <tool_call>\n<function=Write>"));
    // The reasoning was not closed.
    let open = "<tool_call>\n<function=Write>\nx";
    check(Start::Reasoning, &format!("Hm.\n{open}"), ("Hm.", open, &[]));
    for words in
        ["", "Done.", "The mark `<tool_call>` opens a call.", "It reads <function=Write> as well."]
    {
        assert!(!is_broken_call(words), "{words}");
    }
}

#[test]
fn a_call_without_its_mark_counts_for_a_declared_tool_only() {
    let call = written("x");
    let call = call.replace("<tool_call>\n", "").replace("\n</tool_call>", "");
    check(Start::Content, &call, ("", "", &[("Write", write("x"))]));
    // Behind its mark it counts for any; who asked answers that there is no such tool.
    let unknown = written("1").replace("Write", "Nothing");
    check(Start::Content, &unknown, ("", "", &[("Nothing", write("1"))]));
    check(Start::Content, "a <function=Nothing> b", ("", "a <function=Nothing> b", &[]));
    check(Start::Content, "1 < 2 <f <function", ("", "1 < 2 <f <function", &[]));
}

#[test]
fn a_long_turn_takes_time_by_its_length_and_no_more() {
    let many = "<function=".repeat(200_000);
    check(Start::Content, &many, ("", &many, &[]));
    let parameters = "<parameter=content>\n".repeat(100_000);
    let call = format!("<tool_call>\n<function=Write>\n{parameters}</function>\n</tool_call>");
    let reply = parse(Start::Content, &call, Stop::End, usize::MAX);
    assert_eq!(reply.calls[0].arguments, r#"{"content":""}"#);
}

#[test]
fn values_have_the_types_of_the_schema() {
    let set = |pairs: &str| {
        let parameters: String = pairs
            .split(' ')
            .map(|pair| {
                let (key, value) = pair.split_once('=').expect("a test writes pairs");
                format!("<parameter={key}>\n{value}\n</parameter>\n")
            })
            .collect();
        format!("<tool_call>\n<function=Set>\n{parameters}</function>\n</tool_call>")
    };
    for (pairs, expected) in [
        ("n=12 x=1.5 on=True list=[1,2]", json!({ "n": 12, "x": 1.5, "on": true, "list": [1, 2] })),
        (
            "n=many x=3 on=perhaps list=(1)",
            json!({ "n": "many", "x": 3, "on": "perhaps", "list": "(1)" }),
        ),
        (
            "maybe=null either=None text=null",
            json!({ "maybe": null, "either": null, "text": "null" }),
        ),
        (
            "maybe=7 either={\"a\":1} text=123",
            json!({ "maybe": 7, "either": { "a": 1 }, "text": "123" }),
        ),
        ("unknown=1", json!({ "unknown": "1" })),
        // As Python writes them.
        (
            "list=['a',True,(1,None)] either={'a':{'b':[]}}",
            json!({ "list": ["a", true, [1, null]], "either": { "a": { "b": [] } } }),
        ),
        ("list={'a':1} either=[1,'x']", json!({ "list": "{'a':1}", "either": "[1,'x']" })),
    ] {
        check(Start::Content, &set(pairs), ("", "", &[("Set", expected)]));
    }
}

#[test]
fn a_call_that_was_cut_is_not_reported_unless_it_is_whole() {
    let whole = written("x");
    let n_chars = whole.chars().count();
    for length in 0..n_chars {
        let cut: String = whole.chars().take(length).collect();
        let reply = parse(Start::Content, &cut, Stop::Length, 5);
        let has_end = cut.trim_end().ends_with("</function>") || length == n_chars;
        let expected = if has_end { vec![write("x")] } else { Vec::new() };
        let calls: Vec<serde_json::Value> = reply
            .calls
            .iter()
            .map(|call| serde_json::from_str(&call.arguments).expect("arguments are JSON"))
            .collect();
        // The mark itself is one token, so text that breaks off inside it cannot come.
        let is_inside_mark = !has_end && cut.contains("</function>");
        assert!(calls == expected || is_inside_mark, "{length}: {calls:?}");
    }
}

/// A file that speaks of functions may break off behind what looks like the end of the call.
#[test]
fn a_value_that_was_cut_behind_an_end_mark_is_no_call() {
    let cut = "<tool_call>\n<function=Write>\n<parameter=content>\n<function>\n</function>";
    assert_eq!(parse(Start::Content, cut, Stop::Length, 5).calls, []);
    // The model ended its turn itself and only forgot the marks.
    assert_eq!(parse(Start::Content, cut, Stop::End, 5).calls.len(), 1);
    let whole = "<tool_call>\n<function=Write>\n</function>";
    assert_eq!(parse(Start::Content, whole, Stop::Length, 5).calls.len(), 1);
}
