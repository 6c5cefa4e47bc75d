//! Streams that no model should write, cut in every way: how a stream is cut must not show.

use engine::Piece;
use engine::Stop;
use engine::parse::{Mark, Start};
use proptest::prelude::*;
use serde_json::json;

use crate::parser::{Unit, read};

/// A piece for each text.
const WHOLE: [usize; 1] = [usize::MAX];

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

/// Sizes that never come to nothing.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0..9_usize, 0..6).prop_map(|sizes| sizes.into_iter().chain([1]).collect())
}

fn words() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "<function=",
        "<function=Write>",
        "<function=Wr>",
        "<function=Other>",
        "<parameter=s>",
        "<parameter=i>",
        "<parameter=l>",
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
        sizes in sizes(),
        start in prop::sample::select(vec![Start::Reasoning, Start::Content]),
        stop in prop::sample::select(vec![Stop::End, Stop::Length]),
    ) {
        let whole = whole(&units);
        let expected = read(start, stop, &whole, &WHOLE);
        prop_assert_eq!(&read(start, stop, &units, &WHOLE), &expected);
        prop_assert_eq!(&read(start, stop, &whole, &sizes), &expected);
    }

    #[test]
    fn what_is_handed_out_is_what_the_reply_says(
        units in units(),
        start in prop::sample::select(vec![Start::Reasoning, Start::Content]),
    ) {
        let (reply, pieces) = read(start, Stop::End, &units, &WHOLE);
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
        sizes in sizes(),
    ) {
        let value = words.concat();
        let is_ambiguous = value
            .match_indices("</parameter>")
            .any(|(at, end)| value[at + end.len()..].trim_start().starts_with("<parameter="));
        prop_assume!(!is_ambiguous);
        let body = format!(
            "\n<function=Write>\n<parameter=s>\n{value}\n</parameter>\n<parameter=i>\n7\n</parameter>\n</function>\n"
        );
        let call = [Unit::Mark(Mark::CallOpen), Unit::Text(body), Unit::Mark(Mark::CallClose)];
        let (reply, _) = read(Start::Content, Stop::End, &call, &sizes);
        prop_assert_eq!(reply.calls.len(), 1);
        let arguments: serde_json::Value = serde_json::from_str(&reply.calls[0].arguments).unwrap();
        prop_assert_eq!(arguments, json!({ "s": value, "i": 7 }));
    }
}
