//! A model's folder for measuring an engine on weights without a text: links to the weights, and a tokenizer with as many
//! tokens as the model has rows, so that drawing and reading a token costs what it costs with the published vocabulary.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

/// Makes the folder. What it links to must stay.
///
/// # Errors
/// Says which file cannot be read or written.
pub(crate) fn make(model: &Path) -> Result<TempDir, String> {
    let folder = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = read(&model.join("config.json"))?;
    // The id of another vocabulary.
    for key in ["/eos_token_id", "/text_config/eos_token_id"] {
        if let Some(id) = config.pointer_mut(key) {
            *id = Value::Null;
        }
    }
    let n_rows = ["/vocab_size", "/text_config/vocab_size"]
        .iter()
        .find_map(|key| config.pointer(key)?.as_u64())
        .ok_or_else(|| format!("`{}` has no `vocab_size`", model.display()))?;
    write(&folder.path().join("config.json"), &config.to_string())?;
    let tokenizer = sources.join("tests/fixtures/tokenizer");
    let mut tokens = read(&tokenizer.join("tokenizer.json"))?;
    let own = read(&tokenizer.join("tokenizer_config.json"))?;
    let n_own = n_ids(&tokens, &own);
    for id in n_own..n_rows {
        // No two of its letters are ever joined, so no text has it; the model may draw it.
        tokens["model"]["vocab"][format!("w{id}")] = json!(id);
    }
    write(&folder.path().join("tokenizer.json"), &tokens.to_string())?;
    write(&folder.path().join("tokenizer_config.json"), &own.to_string())?;
    let template = include_str!("../../src/template/chat_template.jinja");
    write(&folder.path().join("chat_template.jinja"), template)?;
    let files = fs::read_dir(model)
        .map_err(|error| format!("cannot read `{}`: {error}", model.display()))?;
    for file in files.filter_map(Result::ok) {
        let name = file.file_name();
        if name.to_string_lossy().contains("safetensors") {
            let path = file.path().canonicalize().map_err(|error| error.to_string())?;
            std::os::unix::fs::symlink(&path, folder.path().join(name))
                .map_err(|error| format!("cannot link to `{}`: {error}", path.display()))?;
        }
    }
    Ok(folder)
}

/// One more than the last id of a tokenizer.
fn n_ids(tokens: &Value, config: &Value) -> u64 {
    let plain = tokens["model"]["vocab"].as_object().into_iter().flatten();
    let plain = plain.filter_map(|(_, id)| id.as_u64());
    let added = config["added_tokens_decoder"].as_object().into_iter().flatten();
    let added = added.filter_map(|(id, _)| id.parse().ok());
    plain.chain(added).max().map_or(0, |last| last + 1)
}

fn read(file: &Path) -> Result<Value, String> {
    let wrong = |error: String| format!("cannot read `{}`: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("cannot write `{}`: {error}", file.display()))
}
