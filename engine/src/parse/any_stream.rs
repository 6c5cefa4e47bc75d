//! Streams that no model should write, cut in every way: how a stream is cut must not show.

use proptest::prelude::*;
use serde_json::json;

use super::{Mark, Parser, Start};
use crate::{Piece, Reply, Stop, Tool};

#[derive(Debug, Clone)]
enum Unit {
    Text(String),
    Mark(Mark),
}

fn tools() -> Vec<Tool> {
    let properties = json!({ "content": { "type": "string" }, "n": { "type": "integer" }, "list": { "type": "array" } });
    ["Write", "Wr", "Read"]
        .map(|name| Tool {
            name: name.into(),
            description: String::new(),
            parameters: json!({ "type": "object", "properties": properties }),
        })
        .into()
}

/// The reply, and what was handed out on the way, with neighbours of a kind joined.
fn parse(start: Start, stop: Stop, units: &[Unit]) -> (Reply, Vec<Piece>) {
    let tools = tools();
    let mut parser = Parser::new(start, &tools, 0);
    let mut pieces: Vec<Piece> = Vec::new();
    let mut take = |piece: Piece| match (pieces.last_mut(), piece) {
        (Some(Piece::Text(last)), Piece::Text(more))
        | (Some(Piece::Reasoning(last)), Piece::Reasoning(more)) => last.push_str(&more),
        (_, piece) => pieces.push(piece),
    };
    for unit in units {
        match unit {
            Unit::Text(text) => parser.text(text, &mut take),
            Unit::Mark(mark) => parser.mark(*mark, &mut take),
        }
    }
    let reply = parser.finish(stop, None, &mut take);
    (reply, pieces)
}

/// Neighbouring texts as one.
fn whole(units: &[Unit]) -> Vec<Unit> {
    let mut whole: Vec<Unit> = Vec::new();
    for unit in units {
        match (whole.last_mut(), unit) {
            (Some(Unit::Text(last)), Unit::Text(more)) => last.push_str(more),
            (_, unit) => whole.push(unit.clone()),
        }
    }
    whole
}

/// Every text in pieces of as many characters as `sizes` says, over and over; 0 is an empty piece.
fn cut(units: &[Unit], sizes: &[usize]) -> Vec<Unit> {
    let mut sizes = sizes.iter().copied().chain([1]).cycle();
    let mut pieces = Vec::new();
    for unit in units {
        let Unit::Text(text) = unit else {
            pieces.push(unit.clone());
            continue;
        };
        let mut chars = text.chars().peekable();
        while chars.peek().is_some() {
            let size = sizes.next().unwrap();
            pieces.push(Unit::Text(chars.by_ref().take(size).collect()));
        }
    }
    pieces
}

fn words() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "<function=",
        "<function=Write>",
        "<function=Wr>",
        "<function=Other>",
        "<parameter=content>",
        "<parameter=n>",
        "<parameter=list>",
        "</parameter>",
        "</function>",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<",
        ">",
        "/",
        "=",
        "\n",
        "\n\n",
        " ",
        "Write",
        "a",
        "7",
        "[1, 'x']",
        "ü",
        "日本",
        "🐸",
    ])
}

fn units() -> impl Strategy<Value = Vec<Unit>> {
    let marks = vec![Mark::ThinkOpen, Mark::ThinkClose, Mark::CallOpen, Mark::CallClose];
    let unit = prop_oneof![
        6 => words().prop_map(|word| Unit::Text(word.into())),
        1 => prop::sample::select(marks).prop_map(Unit::Mark),
    ];
    prop::collection::vec(unit, 0..30)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn how_a_stream_is_cut_does_not_show(
        units in units(),
        sizes in prop::collection::vec(0..9_usize, 0..6),
        start in prop::sample::select(vec![Start::Reasoning, Start::Content]),
        stop in prop::sample::select(vec![Stop::End, Stop::Length]),
    ) {
        let whole = whole(&units);
        let expected = parse(start, stop, &whole);
        prop_assert_eq!(&parse(start, stop, &units), &expected);
        prop_assert_eq!(&parse(start, stop, &cut(&whole, &sizes)), &expected);
    }

    #[test]
    fn what_is_handed_out_is_what_the_reply_says(
        units in units(),
        start in prop::sample::select(vec![Start::Reasoning, Start::Content]),
    ) {
        let (reply, pieces) = parse(start, Stop::End, &units);
        let joined = |wanted: fn(&Piece) -> Option<&str>| pieces.iter().filter_map(wanted).collect::<String>();
        let reasoning = joined(|piece| if let Piece::Reasoning(text) = piece { Some(text) } else { None });
        let content = joined(|piece| if let Piece::Text(text) = piece { Some(text) } else { None });
        prop_assert_eq!(reasoning, reply.reasoning);
        prop_assert!(content == reply.content || (content.trim().is_empty() && reply.content.is_empty()));
        let calls: Vec<_> =
            pieces.iter().filter_map(|piece| if let Piece::Call(call) = piece { Some(call) } else { None }).collect();
        prop_assert_eq!(calls, reply.calls.iter().collect::<Vec<_>>());
    }

    /// The one thing that cannot be told apart is a value that holds the end of itself and the beginning of another.
    #[test]
    fn a_value_arrives_as_it_was_written(
        words in prop::collection::vec(words(), 0..12),
        sizes in prop::collection::vec(1..9_usize, 0..6),
    ) {
        let value = words.concat();
        let is_ambiguous = value
            .match_indices("</parameter>")
            .any(|(at, end)| value[at + end.len()..].trim_start().starts_with("<parameter="));
        prop_assume!(!is_ambiguous);
        let body = format!(
            "\n<function=Write>\n<parameter=content>\n{value}\n</parameter>\n<parameter=n>\n7\n</parameter>\n</function>\n"
        );
        let call = [Unit::Mark(Mark::CallOpen), Unit::Text(body), Unit::Mark(Mark::CallClose)];
        let (reply, _) = parse(Start::Content, Stop::End, &cut(&call, &sizes));
        prop_assert_eq!(reply.calls.len(), 1);
        let arguments: serde_json::Value = serde_json::from_str(&reply.calls[0].arguments).unwrap();
        prop_assert_eq!(arguments, json!({ "content": value, "n": 7 }));
    }
}
