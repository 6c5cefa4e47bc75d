//! The tokens that end a turn. Every file that may name one is asked, because each alone may be incomplete: by its
//! `config.json` alone, the published model would never end a turn of a chat.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::{Error, Tokenizer, file};

/// Tokens that end a turn or a document in every model of the family.
const OF_THE_FAMILY: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];
/// Largest file that is read, in bytes; the largest published one has some ten thousand.
const FILE_BYTES: u64 = 1 << 22;

/// The ids that end a turn, by the files of a model's folder that are there and by the tokens that it has.
///
/// # Errors
/// Names the file and the key that names no token; or no file does name any.
pub fn stop_ids(folder: &Path, tokenizer: &Tokenizer) -> Result<BTreeSet<u32>, Error> {
    let mut ids: BTreeSet<u32> =
        OF_THE_FAMILY.iter().filter_map(|token| tokenizer.id(token)).collect();
    for (name, key) in [
        ("generation_config.json", "/eos_token_id"),
        ("config.json", "/eos_token_id"),
        ("config.json", "/text_config/eos_token_id"),
        ("tokenizer_config.json", "/eos_token"),
    ] {
        let file = folder.join(name);
        let Some(content) = file::json::<Value>(&file, FILE_BYTES)? else { continue };
        let Some(value) = content.pointer(key) else { continue };
        let found = named(value, tokenizer);
        let key = key.trim_start_matches('/').replace('/', ".");
        ids.extend(found.map_err(|reason| Error::Key { file, key, reason })?);
    }
    if ids.is_empty() {
        let reason = "no token would end a turn; name one by `eos_token_id`".to_owned();
        return Err(Error::File { file: folder.join("generation_config.json"), reason });
    }
    Ok(ids)
}

/// The ids that a value names: numbers, names of tokens as the tokenizer's own file writes them, or a list.
fn named(value: &Value, tokenizer: &Tokenizer) -> Result<Vec<u32>, String> {
    let id = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(values) => {
            let lists: Result<Vec<_>, _> =
                values.iter().map(|each| named(each, tokenizer)).collect();
            return Ok(lists?.concat());
        }
        Value::Object(token) => {
            return named(token.get("content").unwrap_or(&Value::Null), tokenizer);
        }
        Value::String(token) => tokenizer.id(token),
        Value::Number(number) => number
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .filter(|id| (*id as usize) < tokenizer.n_ids()),
        Value::Bool(_) => None,
    };
    let expected = || format!("{value} is no token; ids are below {}", tokenizer.n_ids());
    id.map(|id| vec![id]).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The ids with these files in the folder and the tiny tokenizer, whose text may be changed.
    fn check(files: &[(&str, Value)], change: fn(String) -> String) -> Result<Vec<u32>, String> {
        let folder = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizer");
        let tokenizer = std::fs::read_to_string(fixture.join("tokenizer.json")).unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), change(tokenizer)).unwrap();
        let tokenizer = Tokenizer::load(folder.path()).unwrap();
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content.to_string()).unwrap();
        }
        let ids = stop_ids(folder.path(), &tokenizer).map_err(|error| error.to_string())?;
        Ok(ids.into_iter().collect())
    }

    #[test]
    fn every_file_that_names_a_stop_token_is_asked() {
        let same = |text: String| text;
        let ok = |files: &[(&str, Value)], more: &[u32]| {
            let mut expected = [more, &[320, 322]].concat();
            expected.sort_unstable();
            assert_eq!(check(files, same), Ok(expected), "{files:?}");
        };
        ok(&[], &[]);
        ok(&[("generation_config.json", json!({ "eos_token_id": 5 }))], &[5]);
        ok(&[("generation_config.json", json!({ "eos_token_id": [7, 320, 6] }))], &[6, 7]);
        ok(&[("generation_config.json", json!({ "eos_token_id": null }))], &[]);
        ok(&[("config.json", json!({ "eos_token_id": 5 }))], &[5]);
        ok(&[("config.json", json!({ "text_config": { "eos_token_id": 5 } }))], &[5]);
        ok(&[("tokenizer_config.json", json!({ "eos_token": "<|fim_pad|>" }))], &[339]);
        ok(
            &[("tokenizer_config.json", json!({ "eos_token": { "content": "<|fim_pad|>" } }))],
            &[339],
        );
        ok(
            &[
                ("config.json", json!({ "eos_token_id": 1 })),
                ("generation_config.json", json!({ "eos_token_id": [2] })),
            ],
            &[1, 2],
        );
    }

    #[test]
    fn what_names_no_token_is_an_error_with_file_and_key() {
        let same = |text: String| text;
        for (name, content, words) in [
            ("config.json", json!({ "eos_token_id": 999 }), "`eos_token_id`: 999 is no token"),
            (
                "config.json",
                json!({ "text_config": { "eos_token_id": -1 } }),
                "`text_config.eos_token_id`",
            ),
            ("generation_config.json", json!({ "eos_token_id": [true] }), "true is no token"),
            ("generation_config.json", json!({ "eos_token_id": 1.5 }), "1.5 is no token"),
            ("tokenizer_config.json", json!({ "eos_token": "<none>" }), "`eos_token`: \"<none>\""),
        ] {
            let error = check(&[(name, content)], same).expect_err(words);
            assert!(error.contains(name) && error.contains(words), "{error}");
        }
        let without =
            |text: String| text.replace("<|im_end|>", "<a>").replace("<|endoftext|>", "<b>");
        let error = check(&[], without).expect_err("nothing ends a turn");
        assert!(error.contains("no token would end a turn"), "{error}");
        assert_eq!(check(&[("config.json", json!({ "eos_token_id": 9 }))], without), Ok(vec![9]));
    }
}
