//! Writes the tokenizer of a Qwen3.5 folder, `tokenizer.json` and `tokenizer_config.json`, for tests.
//!
//! From a file of ranks (`base64 rank` on each line) comes the published vocabulary; without one comes a tiny vocabulary,
//! trained on the text below, which lies in `tests/fixtures/tokenizer`. Ranks say which pair to join first and a
//! `tokenizer.json` lists the pairs, so each token is split again into the two parts that joining by rank ends with.
//!
//! ```text
//! cargo run -p engine --example vocabulary -- tiny FOLDER
//! cargo run -p engine --example vocabulary -- FILE.tiktoken FOLDER
//! ```

#![expect(clippy::print_stdout, reason = "it is a command")]

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

/// The added tokens of the family, in the order of their ids, which follow those of the vocabulary.
const ADDED: [&str; 33] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
];
/// Those that a decoder does not skip.
const PLAIN: std::ops::Range<usize> = 14..26;
/// How many of them the published `tokenizer.json` lists; `tokenizer_config.json` lists all.
const N_LISTED: usize = 26;
/// What is tokenized on its own: contractions, words, digits, signs, white space. As published.
const SPLIT: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// What the tiny vocabulary is trained on.
const TEXT: &str = "user assistant system the function of the parameter is the content of the file \
    <function=Write> <parameter=content> </parameter> </function> a tree frog sits on the leaf of a tree and calls \
    the frog café calls the leaf café ïn日本 日本 日本\n\n\n\n";
/// Pairs that the tiny vocabulary joins.
const N_JOINED: usize = 64;

type Ranks = BTreeMap<u32, Vec<u8>>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, folder] = arguments.as_slice() else {
        return Err("say `tiny` or a file of ranks, and a folder to write to".into());
    };
    let ranks = if source == "tiny" { tiny() } else { parse(&std::fs::read_to_string(source)?)? };
    let (tokenizer, n_without_pair) = tokenizer(&ranks);
    std::fs::create_dir_all(folder)?;
    let write = |name: &str, value: &Value| {
        std::fs::write(Path::new(folder).join(name), text(value)?).map_err(Box::<dyn Error>::from)
    };
    write("tokenizer.json", &tokenizer)?;
    write("tokenizer_config.json", &tokenizer_config(ranks.len()))?;
    println!("{} tokens in `{folder}`, {n_without_pair} of them without a pair", ranks.len());
    Ok(())
}

fn text(value: &Value) -> serde_json::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

fn parse(text: &str) -> Result<Ranks, Box<dyn Error>> {
    let mut ranks = Ranks::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (token, rank) = line.split_once(' ').ok_or("a line holds a token and its rank")?;
        ranks.insert(rank.trim().parse()?, BASE64_STANDARD.decode(token)?);
    }
    let is_dense = ranks.keys().zip(0..).all(|(rank, expected)| *rank == expected);
    if is_dense { Ok(ranks) } else { Err("the ranks have gaps".into()) }
}

/// Joins the most frequent pair of the training text, again and again; the smaller pair where two are as frequent.
fn tiny() -> Ranks {
    let mut ranks: Ranks = (0..=255).map(|byte| (u32::from(byte), vec![byte])).collect();
    // About where the published expression splits: a sign or a space begins a word.
    let starts = TEXT.char_indices().filter(|(_, c)| !c.is_alphabetic() && *c != '\n');
    let mut cuts: Vec<usize> = [0].into_iter().chain(starts.map(|(at, _)| at)).collect();
    cuts.push(TEXT.len());
    let mut words: Vec<Vec<Vec<u8>>> = cuts
        .windows(2)
        .map(|cut| TEXT[cut[0]..cut[1]].bytes().map(|byte| vec![byte]).collect())
        .collect();
    for rank in (256..).take(N_JOINED) {
        let mut counts: BTreeMap<(&[u8], &[u8]), usize> = BTreeMap::new();
        for pair in words.iter().flat_map(|word| word.windows(2)) {
            *counts.entry((&pair[0], &pair[1])).or_default() += 1;
        }
        let most = counts.iter().rev().max_by_key(|(_, count)| **count);
        let Some(((left, right), _)) = most else { break };
        let joined = [*left, *right].concat();
        for word in &mut words {
            while let Some(at) = word.windows(2).position(|pair| pair.concat() == joined) {
                word.splice(at..at + 2, [joined.clone()]);
            }
        }
        ranks.insert(rank, joined);
    }
    ranks
}

/// The file, and how many tokens no pair leads to.
fn tokenizer(ranks: &Ranks) -> (Value, usize) {
    let by_token: HashMap<&[u8], u32> =
        ranks.iter().map(|(rank, token)| (token.as_slice(), *rank)).collect();
    let vocab: serde_json::Map<String, Value> =
        ranks.iter().map(|(rank, token)| (letters(token), json!(rank))).collect();
    let long = || ranks.values().filter(|token| token.len() > 1);
    let merges: Vec<String> = long()
        .filter_map(|token| two_parts(token, &by_token))
        .map(|(left, right)| format!("{} {}", letters(left), letters(right)))
        .collect();
    let n_without_pair = long().count() - merges.len();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let added: Vec<Value> = (0..N_LISTED)
        .map(|at| {
            let mut token = added(at);
            token["id"] = json!(ranks.len() + at);
            token
        })
        .collect();
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": SPLIT }, "behavior": "Isolated", "invert": false }, bytes] },
        "post_processor": bytes, "decoder": bytes,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges
        }
    });
    (file, n_without_pair)
}

fn tokenizer_config(n_tokens: usize) -> Value {
    let all: serde_json::Map<String, Value> =
        (0..ADDED.len()).map(|at| ((n_tokens + at).to_string(), added(at))).collect();
    json!({ "added_tokens_decoder": all, "eos_token": "<|im_end|>" })
}

fn added(at: usize) -> Value {
    json!({ "content": ADDED[at], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": !PLAIN.contains(&at) })
}

/// Joins the pair of the lowest rank until two parts are left; none if no pair can be joined before.
fn two_parts<'a>(token: &'a [u8], ranks: &HashMap<&[u8], u32>) -> Option<(&'a [u8], &'a [u8])> {
    // Where the parts end.
    let mut ends: Vec<usize> = (1..=token.len()).collect();
    while ends.len() > 2 {
        let start = |at: usize| if at == 0 { 0 } else { ends[at - 1] };
        let pairs = (0..ends.len() - 1)
            .filter_map(|at| Some((*ranks.get(&token[start(at)..ends[at + 1]])?, at)));
        let (_, at) = pairs.min()?;
        ends.remove(at);
    }
    Some(token.split_at(ends[0]))
}

/// Bytes as `tokenizer.json` writes them: each is one visible letter, those that are none are counted on from U+0100.
fn letters(bytes: &[u8]) -> String {
    let is_visible = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let letter = |byte: &u8| {
        if is_visible(byte) {
            return char::from(*byte);
        }
        let n_before = (0..*byte).filter(|each| !is_visible(each)).count();
        char::from_u32(0x100 + n_before as u32).expect("it lies below U+0200")
    };
    bytes.iter().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise nobody could say where it came from.
    #[test]
    fn the_tiny_vocabulary_is_made_as_it_says() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        let file = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let ranks = tiny();
        let (tokenizer, n_without_pair) = tokenizer(&ranks);
        assert_eq!(text(&tokenizer).unwrap(), file("tokenizer.json"));
        assert_eq!(text(&tokenizer_config(ranks.len())).unwrap(), file("tokenizer_config.json"));
        assert_eq!(n_without_pair, 0);
    }

    #[test]
    fn ranks_are_read_and_gaps_are_noticed() {
        let ranks = parse("YQ== 0\nYg== 1\n\nYWI= 2\n").unwrap();
        assert_eq!(ranks[&2], b"ab");
        assert!(parse("YQ== 0\nYg== 2\n").is_err());
        assert!(parse("YQ==\n").is_err());
        // The middle cannot be joined first: no pair leads to the token.
        let by_token = HashMap::from([(&b"a"[..], 0), (b"b", 1), (b"abab", 2)]);
        assert_eq!(two_parts(b"abab", &by_token), None);
        let by_token = HashMap::from([(&b"a"[..], 0), (b"b", 1), (b"ab", 2), (b"aba", 3)]);
        assert_eq!(two_parts(b"abab", &by_token), Some((&b"ab"[..], &b"ab"[..])));
    }
}
