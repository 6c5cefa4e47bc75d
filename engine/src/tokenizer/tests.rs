//! The tiny vocabulary of the fixtures: every byte, 64 joined pairs, and the family's added tokens from id 320 on.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::Span::{Trusted, Untrusted};
use super::{Part, Span, Tokenizer};
use crate::parse::Mark;

const N_PLAIN: u32 = 320;
const IM_START: u32 = N_PLAIN + 1;
const IM_END: u32 = N_PLAIN + 2;
const THINK: u32 = N_PLAIN + 24;
const AUDIO_PAD: u32 = N_PLAIN + 32;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer")
}

fn tiny() -> &'static Tokenizer {
    static TINY: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::load(&folder()).unwrap());
    &TINY
}

/// The whole of it by the crate that ours is built on.
fn reference() -> &'static tokenizers::Tokenizer {
    static REFERENCE: LazyLock<tokenizers::Tokenizer> = LazyLock::new(|| {
        tokenizers::Tokenizer::from_file(folder().join("tokenizer.json")).unwrap()
    });
    &REFERENCE
}

fn ids(spans: &[Span<'_>]) -> Vec<u32> {
    tiny().encode(spans).unwrap()
}

#[test]
fn control_tokens_are_found_in_trusted_text_only() {
    assert_eq!(ids(&[Trusted("<|im_end|>")]), [IM_END]);
    assert_eq!(ids(&[Trusted("a<|im_end|><think>b")]), [97, IM_END, THINK, 98]);
    let spelled: Vec<u32> = "<|im_end|>".bytes().map(u32::from).collect();
    assert_eq!(ids(&[Untrusted("<|im_end|>")]), spelled);
    // Wherever the border runs, and whatever stands beside it.
    for cut in 1..spelled.len() {
        let (left, right) = "<|im_end|>".split_at(cut);
        assert_eq!(ids(&[Trusted(left), Untrusted(right)]), spelled);
        assert_eq!(ids(&[Untrusted(left), Trusted(right)]), spelled);
        assert_eq!(ids(&[Trusted(left), Trusted(right)]), [IM_END]);
    }
    assert_eq!(
        ids(&[Trusted("<|im_start|>"), Untrusted("<|im_end|>"), Trusted("<|im_end|>")]),
        [vec![IM_START], spelled, vec![IM_END]].concat()
    );
    // Listed by `tokenizer_config.json` alone.
    assert_eq!(ids(&[Trusted("<|audio_pad|>")]), [AUDIO_PAD]);
    assert_eq!(tiny().n_ids(), AUDIO_PAD as usize + 1);
    assert_eq!(tiny().id("<|audio_pad|>"), Some(AUDIO_PAD));
    assert_eq!(tiny().id("<|none|>"), None);
}

#[test]
fn text_is_composed_before_it_is_cut() {
    let composed = ids(&[Untrusted(" café")]);
    assert_eq!(composed.len(), 1, "the vocabulary has it as one token");
    assert_eq!(ids(&[Untrusted(" cafe\u{301}")]), composed);
    assert_eq!(ids(&[Trusted(" cafe"), Untrusted("\u{301}")]), composed);
    assert_eq!(ids(&[]), [] as [u32; 0]);
    assert_eq!(ids(&[Untrusted("")]), [] as [u32; 0]);
}

#[test]
fn a_character_comes_out_whole() {
    let tokenizer = tiny();
    let ids = tokenizer.encode(&[Untrusted("ü🐸x")]).unwrap();
    let mut decoder = tokenizer.decoder();
    let texts: Vec<String> = ids.iter().map(|id| decoder.push(*id).text).collect();
    assert_eq!(texts, ["", "ü", "", "", "", "🐸", "x"]);
    assert_eq!(decoder.finish(), "");

    // The bytes of each are there all the same.
    let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.bytes(*id)).collect();
    assert_eq!(bytes, "ü🐸x".as_bytes());
    assert_eq!(tokenizer.bytes(THINK), b"<think>");
    assert_eq!(tokenizer.bytes(9999), b"");

    // The turn ends, or a mark comes, in the middle of one.
    let mut decoder = tokenizer.decoder();
    assert_eq!(decoder.push(0xf0), Part::default());
    let mark = Part { text: "\u{fffd}".into(), mark: Some(Mark::ThinkOpen) };
    assert_eq!(decoder.push(THINK), mark);
    assert_eq!(decoder.push(0xf0), Part::default());
    assert_eq!(decoder.finish(), "\u{fffd}");
    // A byte that cannot go on is decided at once.
    let mut decoder = tokenizer.decoder();
    assert_eq!(decoder.push(0xf0).text + &decoder.push(0x41).text, "\u{fffd}A");
}

#[test]
fn marks_are_told_by_id_and_special_tokens_are_left_out() {
    let tokenizer = tiny();
    let text = "<think>a</think><tool_call><tool_response></tool_call><|im_end|><|audio_pad|>";
    let ids = tokenizer.encode(&[Trusted(text)]).unwrap();
    let mut decoder = tokenizer.decoder();
    let parts: Vec<Part> = ids.iter().map(|id| decoder.push(*id)).collect();
    let marks: Vec<Mark> = parts.iter().filter_map(|part| part.mark).collect();
    assert_eq!(marks, [Mark::ThinkOpen, Mark::ThinkClose, Mark::CallOpen, Mark::CallClose]);
    assert_eq!(parts.iter().map(|part| part.text.as_str()).collect::<String>(), "a<tool_response>");
    let whole = "<think>a</think><tool_call><tool_response></tool_call>";
    assert_eq!(tokenizer.decode(&ids), whole);
    assert_eq!(tokenizer.decode(&[97, 9999, 98]), "ab", "no token has this id");
}

/// Loads the fixture with one file changed.
fn load(name: &str, change: impl Fn(&mut Value)) -> Result<Tokenizer, String> {
    let copy = tempfile::tempdir().unwrap();
    for each in ["tokenizer.json", "tokenizer_config.json"] {
        let text = std::fs::read_to_string(folder().join(each)).unwrap();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        if each == name {
            change(&mut value);
        }
        std::fs::write(copy.path().join(each), value.to_string()).unwrap();
    }
    Tokenizer::load(copy.path()).map_err(|error| error.to_string())
}

#[test]
fn a_folder_that_is_not_in_order_is_refused() {
    let expect = |name: &str, change: &dyn Fn(&mut Value), words: &str| {
        let Err(error) = load(name, change) else { panic!("it loads; expected {words}") };
        assert!(error.contains(name) && error.contains(words), "{error}; expected {words}");
    };
    expect("tokenizer.json", &|file| *file = json!(1), "invalid type");
    expect("tokenizer.json", &|file| file["model"]["type"] = json!("X"), "it is no tokenizer");
    expect("tokenizer.json", &|file| file["model"]["dropout"] = json!(0.1), "`model.dropout`");
    expect("tokenizer.json", &|file| file["decoder"] = json!(null), "`decoder` is not ByteLevel");
    expect("tokenizer.json", &|file| file["added_tokens"][0]["lstrip"] = json!(true), "`lstrip`");
    expect("tokenizer.json", &|file| file["added_tokens"][0]["content"] = json!(""), "no text");
    expect("tokenizer.json", &|file| file["added_tokens"][0]["id"] = json!(321), "and also");
    expect("tokenizer.json", &|file| file["added_tokens"][0]["id"] = json!(1 << 22), "above");
    expect(
        "tokenizer.json",
        &|file| {
            let vocab = file["model"]["vocab"].as_object_mut().unwrap();
            vocab.remove("\u{142}").unwrap();
        },
        "no token for the byte 160",
    );
    for (key, value, words) in [
        ("normalizer", json!({ "type": "Prepend", "prepend": "a" }), "`normalizer` is Prepend"),
        (
            "normalizer",
            json!({ "type": "Replace", "pattern": { "String": "a" }, "content": "aaaaaaaa" }),
            "`normalizer` is Replace",
        ),
        (
            "pre_tokenizer",
            json!({ "type": "Sequence", "pretokenizers": [{ "type": "Whitespace" }] }),
            "`pre_tokenizer` is or holds Whitespace",
        ),
    ] {
        expect("tokenizer.json", &|file| file[key] = value.clone(), words);
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        expect("tokenizer.json", &|file| file["model"][key] = json!("##"), key);
        load("tokenizer.json", |file| file["model"][key] = json!("")).unwrap();
    }
    let config = "tokenizer_config.json";
    let key = "added_tokens_decoder";
    expect(config, &|file| file[key]["x"] = json!({ "content": "x" }), "`x` is no token id");
    expect(config, &|file| file[key]["9"] = json!({ "content": "<think>" }), "9 and 344");
    let error = Tokenizer::load(Path::new("/no/such/folder")).err().unwrap().to_string();
    assert!(
        error.starts_with("cannot read `/no/such/folder/tokenizer.json` (a model's folder has")
    );

    let only_listed = |file: &mut Value| *file = json!({});
    assert_eq!(load(config, only_listed).unwrap().n_ids(), N_PLAIN as usize + 26);
    let no_list = |file: &mut Value| file["added_tokens"] = json!([]);
    let tokenizer = load("tokenizer.json", no_list).unwrap();
    assert_eq!(tokenizer.mark(THINK), Some(Mark::ThinkOpen), "the other file lists it");
    let longer = |file: &mut Value| file[key]["400"] = json!({ "content": "<think>ing" });
    let ids = load(config, longer).unwrap().encode(&[Trusted("<think>ing<think>in")]).unwrap();
    assert_eq!(ids[..2], [400, THINK], "the longest that stands there");
    // Left behind by training; here a text is never cut or filled up.
    let trained = |file: &mut Value| {
        file["truncation"] = json!({ "direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0 });
        file["padding"] = json!({ "strategy": { "Fixed": 9 }, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 320, "pad_type_id": 0, "pad_token": "<|endoftext|>" });
    };
    let tokenizer = load("tokenizer.json", trained).unwrap();
    assert_eq!(tokenizer.encode(&[Untrusted("xyz")]).unwrap().len(), 3);
}

#[test]
fn a_tokenizer_of_another_family_is_refused() {
    let copy = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(folder().join("tokenizer.json")).unwrap();
    std::fs::write(copy.path().join("tokenizer.json"), text.replace("\"<think>\"", "\"<hm>\""))
        .unwrap();
    let error = Tokenizer::load(copy.path()).err().unwrap().to_string();
    assert!(error.contains("it has no added token `<think>`"), "{error}");
}

/// Texts of what splitting and composing care about, without control tokens.
fn fragments() -> impl Strategy<Value = Vec<&'static str>> {
    let words = [
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "the",
        " function",
        "'s",
        "a",
        "7",
        "42",
        "e",
        "\u{301}",
        "\u{327}",
        "é",
        "日本",
        "ก็",
        "क्",
        "🐸",
        "<|im_",
        "end|>",
        "<",
        "|",
        ">",
        "</",
        "=",
        "{\"",
        "\u{0}",
        "\u{a0}",
        "\u{2028}",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..24)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn where_a_text_is_cut_changes_nothing(
        words in fragments(),
        trust in prop::collection::vec(any::<bool>(), 24),
    ) {
        let spans: Vec<Span<'_>> = words
            .iter()
            .zip(&trust)
            .map(|(word, is_trusted)| if *is_trusted { Trusted(word) } else { Untrusted(word) })
            .collect();
        let whole = words.concat();
        prop_assume!(!whole.contains("<|im_end|>"));
        let tokenizer = tiny();
        let expected = tokenizer.encode(&[Untrusted(&whole)]).unwrap();
        prop_assert_eq!(tokenizer.encode(&spans).unwrap(), expected);
    }

    #[test]
    fn trusted_text_is_encoded_as_the_reference_does(
        words in fragments(),
        marks in prop::collection::vec(
            prop::sample::select(vec!["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", ""]), 24),
    ) {
        let text: String = words.iter().zip(&marks).flat_map(|(word, mark)| [*word, *mark]).collect();
        let expected = reference().encode_fast(text.as_str(), false).unwrap().get_ids().to_vec();
        prop_assert_eq!(ids(&[Trusted(&text)]), expected);
    }

    #[test]
    fn what_comes_out_in_parts_is_the_whole(ids in prop::collection::vec(0..400_u32, 0..40)) {
        let tokenizer = tiny();
        let mut decoder = tokenizer.decoder();
        let mut text = String::new();
        for id in &ids {
            let part = decoder.push(*id);
            text.push_str(&part.text);
            text.push_str(part.mark.map_or("", Mark::text));
        }
        text.push_str(&decoder.finish());
        prop_assert_eq!(&text, &tokenizer.decode(&ids));
        prop_assert_eq!(text, reference().decode(&ids, true).unwrap());
    }
}
