//! A turn that no model should write: reading it never fails, says the same however it is cut, and hands out what the reply
//! says.

use engine::parse::{Mark, Parser, Start};
use engine::{Piece, Reply, Stop, Tool};
use serde_json::json;

/// What a turn is made of.
#[derive(Debug, Clone)]
pub(crate) enum Unit {
    Text(String),
    Mark(Mark),
}

/// Reads a turn. The first byte says where it starts, how it ends, and by how many of the bytes behind it the text is cut;
/// in the rest, bytes that no UTF-8 holds are marks.
pub(crate) fn run(bytes: &[u8]) {
    let [first, rest @ ..] = bytes else { return };
    let start = if first & 1 == 0 { Start::Reasoning } else { Start::Content };
    let stop = if first & 2 == 0 { Stop::End } else { Stop::Length };
    let (sizes, turn) = rest.split_at(rest.len().min(usize::from(first >> 5)));
    let units = units(turn);
    let whole = read(start, stop, &units, &[usize::MAX]);
    let sizes: Vec<usize> = sizes.iter().map(|size| usize::from(*size)).chain([1]).collect();
    for sizes in [&sizes[..], &[1]] {
        assert_eq!(read(start, stop, &units, sizes), whole, "in pieces of {sizes:?} characters");
    }
    let (reply, pieces) = whole;
    let handed_out = |is_reasoning: bool| -> String {
        let text = |piece: &Piece| match piece {
            Piece::Reasoning(text) if is_reasoning => Some(text.clone()),
            Piece::Text(text) if !is_reasoning => Some(text.clone()),
            Piece::Reasoning(_) | Piece::Text(_) | Piece::Call(_) => None,
        };
        pieces.iter().filter_map(text).collect()
    };
    assert_eq!(handed_out(true), reply.reasoning);
    let content = handed_out(false);
    assert!(content == reply.content || content.trim().is_empty() && reply.content.is_empty());
    let call = |piece: &Piece| match piece {
        Piece::Call(call) => Some(call.clone()),
        Piece::Reasoning(_) | Piece::Text(_) => None,
    };
    assert_eq!(pieces.iter().filter_map(call).collect::<Vec<_>>(), reply.calls);
    for call in &reply.calls {
        assert!(!call.name.is_empty());
        let arguments: Result<serde_json::Map<_, _>, _> = serde_json::from_str(&call.arguments);
        assert!(arguments.is_ok(), "{}", call.arguments);
    }
}

fn units(bytes: &[u8]) -> Vec<Unit> {
    let mut units = Vec::new();
    for part in bytes.chunk_by(|a, b| *a < 0xf8 && *b < 0xf8) {
        units.push(match part {
            [0xf8 | 0xfc] => Unit::Mark(Mark::ThinkOpen),
            [0xf9 | 0xfd] => Unit::Mark(Mark::ThinkClose),
            [0xfa | 0xfe] => Unit::Mark(Mark::CallOpen),
            [0xfb | 0xff] => Unit::Mark(Mark::CallClose),
            _ => Unit::Text(String::from_utf8_lossy(part).into_owned()),
        });
    }
    units
}

/// The reply, and what was handed out on the way, with neighbours of a kind joined. Texts come in pieces of as many
/// characters as `sizes` says, over and over; 0 is an empty piece.
pub(crate) fn read(
    start: Start,
    stop: Stop,
    units: &[Unit],
    sizes: &[usize],
) -> (Reply, Vec<Piece>) {
    let mut sizes = sizes.iter().copied().cycle();
    let mut parser = Parser::new(start, tools(), 0);
    let mut pieces: Vec<Piece> = Vec::new();
    let mut take = |piece: Piece| match (pieces.last_mut(), piece) {
        (Some(Piece::Text(last)), Piece::Text(more))
        | (Some(Piece::Reasoning(last)), Piece::Reasoning(more)) => last.push_str(&more),
        (_, piece) => pieces.push(piece),
    };
    for unit in units {
        match unit {
            Unit::Mark(mark) => parser.mark(*mark, &mut take),
            Unit::Text(text) => {
                let mut chars = text.chars().peekable();
                while chars.peek().is_some() {
                    let size = sizes.next().expect("there is one at least");
                    let piece: String = chars.by_ref().take(size).collect();
                    parser.text(&piece, &mut take);
                }
            }
        }
    }
    let reply = parser.finish(stop, None, &mut take);
    (reply, pieces)
}

fn tools() -> Vec<Tool> {
    let properties = json!({
        "s": { "type": "string" }, "i": { "type": "integer" }, "n": { "type": "number" },
        "b": { "type": "boolean" }, "l": { "type": "array" },
        "o": { "anyOf": [{ "type": "null" }, { "type": "object" }] },
    });
    ["Write", "Wr", "Read"]
        .map(|name| Tool {
            name: name.into(),
            description: String::new(),
            parameters: json!({ "type": "object", "properties": properties }),
        })
        .into()
}
