//! Model folders that are small enough for a test, with the real template and a tiny vocabulary, for the real engine.
//!
//! One has random weights: it says anything. The other one is written by hand: each layer adds nothing, so a token alone
//! decides which one follows, and the model says the same thing whatever it is asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The first id behind the tokens of the fixture.
const FREE_IDS: usize = 353;
/// Width of the fixture's residual stream.
const HIDDEN: usize = 64;
/// Far more than a test needs, so that a turn can be endless.
const CONTEXT: usize = 1 << 20;

/// What the model says: texts and control tokens, in order. Each text becomes a token.
pub type Script<'a> = &'a [&'a str];

/// Writes a folder with random weights.
///
/// # Panics
/// The folder cannot be written, or the engine's fixtures are not there.
pub fn random(folder: &Path) {
    let mut tensors = read();
    let embedding = (0..FREE_IDS * HIDDEN).map(|at| noise(at as u64) * 0.3);
    tensors.insert("model.embed_tokens.weight".into(), tensor(FREE_IDS, embedding));
    write(folder, &tensors, FREE_IDS, true, &[]);
}

/// Writes a folder with a model that thinks and speaks by `thinking`, and by `plain` where it may not think. After `z` it
/// says `z` for ever.
///
/// # Panics
/// As [`random`], or a token of a script stands there twice.
pub fn scripted(folder: &Path, thinking: Script<'_>, plain: Script<'_>) {
    let mut tensors = read();
    let is_way_out =
        |name: &str| ["out_proj", "o_proj", "down_proj"].iter().any(|part| name.contains(part));
    for (name, (_, values)) in &mut tensors {
        if is_way_out(name) || name == "model.norm.weight" {
            values.fill(0.0);
        }
    }
    let tokenizer: Value = json_of("tokenizer/tokenizer.json");
    let added = tokenizer["added_tokens"].as_array().expect("it has some");
    let known = |text: &str| {
        let control = added.iter().find(|token| token["content"] == text);
        let id = control.map_or(&tokenizer["model"]["vocab"][spelled(text)], |token| &token["id"]);
        id.as_u64().map(|id| usize::try_from(id).expect("it is an id"))
    };
    let mut own: Vec<String> = Vec::new();
    let mut id = |text: &str| {
        known(text).unwrap_or_else(|| {
            let text = spelled(text);
            let at = own.iter().position(|each| *each == text).unwrap_or_else(|| {
                own.push(text);
                own.len() - 1
            });
            FREE_IDS + at
        })
    };
    let mut follows: BTreeMap<usize, usize> = BTreeMap::new();
    for script in [&[&["\n"], thinking].concat(), &[&["\n\n"], plain].concat(), &vec!["z", "z"]] {
        let ids: Vec<usize> = script.iter().map(|text| id(text)).collect();
        for pair in ids.windows(2) {
            let before = follows.insert(pair[0], pair[1]);
            assert!(before.is_none_or(|before| before == pair[1]), "a token is followed by two");
        }
    }
    let n_ids = FREE_IDS + own.len();
    let sign = |token: usize, at: usize| noise((token * HIDDEN + at) as u64).signum();
    let embedding: Vec<f32> =
        (0..n_ids).flat_map(|token| (0..HIDDEN).map(move |at| sign(token, at))).collect();
    let mut head = vec![0.0; n_ids * HIDDEN];
    for (from, to) in &follows {
        for at in 0..HIDDEN {
            head[to * HIDDEN + at] += sign(*from, at);
        }
    }
    tensors.insert("model.embed_tokens.weight".into(), tensor(n_ids, embedding.into_iter()));
    tensors.insert("lm_head.weight".into(), tensor(n_ids, head.into_iter()));
    write(folder, &tensors, n_ids, false, &own);
}

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn tensor(n_rows: usize, values: impl Iterator<Item = f32>) -> (Vec<usize>, Vec<f32>) {
    (vec![n_rows, HIDDEN], values.collect())
}

/// A number from -1 to 1 that looks like chance (splitmix64).
fn noise(at: u64) -> f32 {
    let mut x = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((x ^ (x >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// A text as the vocabulary of a byte-level tokenizer spells it: control characters and the space as letters from `Ā` on.
/// Texts of tests are ASCII.
fn spelled(text: &str) -> String {
    let letter = |c: char| if c <= ' ' { char::from_u32(0x100 + u32::from(c)) } else { None };
    text.chars().map(|c| letter(c).unwrap_or(c)).collect()
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/tests/fixtures").join(name)
}

fn json_of(name: &str) -> Value {
    let text = std::fs::read(fixture(name)).expect("the fixture is there");
    serde_json::from_slice(&text).expect("the fixture is JSON")
}

/// The fixture's weights: a length, a JSON header, and the values.
fn read() -> Tensors {
    let bytes = std::fs::read(fixture("tiny0/model.safetensors")).expect("the fixture is there");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("it has a length");
    let (header, data) =
        rest.split_at(usize::try_from(u64::from_le_bytes(*length)).expect("it is short"));
    let header: BTreeMap<String, Value> = serde_json::from_slice(header).expect("it is JSON");
    let weights = header.into_iter().filter(|(name, _)| name != "__metadata__");
    let read = |(name, about): (String, Value)| {
        let numbers = |key: &str| -> Vec<usize> {
            serde_json::from_value(about[key].clone()).expect("these are numbers")
        };
        let ends = numbers("data_offsets");
        let values =
            data[ends[0]..ends[1]].as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four));
        (name, (numbers("shape"), values.collect()))
    };
    weights.map(read).collect()
}

fn write(folder: &Path, tensors: &Tensors, n_ids: usize, is_tied: bool, own: &[String]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, values)) in tensors {
        let begin = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        header.insert(
            name.clone(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] }),
        );
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.extend(data);

    let mut config = json_of("tiny0/config.json");
    config["vocab_size"] = n_ids.into();
    config["tie_word_embeddings"] = is_tied.into();
    config["max_position_embeddings"] = CONTEXT.into();
    config["eos_token_id"] = Value::Null;
    let mut tokenizer = json_of("tokenizer/tokenizer.json");
    for (token, id) in own.iter().zip(FREE_IDS..) {
        tokenizer["model"]["vocab"][token] = id.into();
    }
    let put = |name: &str, bytes: Vec<u8>| {
        std::fs::write(folder.join(name), bytes).expect("the temp folder can be written");
    };
    put("model.safetensors", bytes);
    put("config.json", config.to_string().into_bytes());
    put("tokenizer.json", tokenizer.to_string().into_bytes());
    for (name, source) in [
        ("tokenizer_config.json", "tokenizer/tokenizer_config.json"),
        ("chat_template.jinja", "../../src/template/chat_template.jinja"),
    ] {
        put(name, std::fs::read(fixture(source)).expect("the fixture is there"));
    }
}
