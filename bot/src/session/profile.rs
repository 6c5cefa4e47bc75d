//! The words that a session starts with: system prompt and tool schemas, in one file that an operator can replace.

use std::path::{Path, PathBuf};

use engine::Tool;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// The tools that a profile must describe, and no others: the model was trained on these names.
const TOOLS: [&str; 5] = ["Read", "Write", "Edit", "Glob", "Bash"];
/// Bytes of a profile file at most.
const FILE_BYTES: u64 = 256 << 10;

/// System prompt and tool schemas.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The system prompt.
    pub system: String,
    /// The five tools, as the model is told of them.
    pub tools: Vec<Tool>,
    /// SHA-256 of the file, as hex.
    pub digest: String,
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read.
    #[error("cannot read the profile `{}`", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not a profile.
    #[error("cannot use the profile `{}`: {reason}", file.display())]
    Content {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    system: String,
    tools: Vec<Tool>,
}

impl Profile {
    /// The profile that comes with the bot.
    pub fn built_in() -> Self {
        parse(Path::new("profile.json"), include_str!("profile.json"))
            .expect("a test reads this file")
    }

    /// An operator's profile.
    ///
    /// # Errors
    /// It cannot be read, or does not describe exactly the five tools.
    pub fn load(file: &Path) -> Result<Self, Error> {
        let read = |source| Error::Read { file: file.to_owned(), source };
        let size = std::fs::metadata(file).map_err(read)?.len();
        if size > FILE_BYTES {
            let reason = format!("it has {size} bytes, more than {FILE_BYTES}");
            return Err(Error::Content { file: file.to_owned(), reason });
        }
        parse(file, &std::fs::read_to_string(file).map_err(read)?)
    }
}

fn parse(file: &Path, text: &str) -> Result<Profile, Error> {
    let wrong = |reason: String| Error::Content { file: file.to_owned(), reason };
    let content: File = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if content.system.trim().is_empty() {
        return Err(wrong("`system` is empty".into()));
    }
    let mut names: Vec<&str> = content.tools.iter().map(|tool| tool.name.as_str()).collect();
    names.sort_unstable();
    let mut expected = TOOLS;
    expected.sort_unstable();
    if names != expected {
        return Err(wrong(format!("`tools` must describe exactly {}", TOOLS.join(", "))));
    }
    if let Some(tool) = content.tools.iter().find(|tool| !tool.parameters.is_object()) {
        return Err(wrong(format!("the parameters of `{}` are no JSON Schema object", tool.name)));
    }
    let digest = hex::encode(Sha256::digest(text.as_bytes()));
    Ok(Profile { system: content.system, tools: content.tools, digest })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_profile_has_the_parameters_that_the_model_knows() {
        let shapes: Vec<(String, String, String)> = Profile::built_in()
            .tools
            .iter()
            .map(|tool| {
                let keys = tool.parameters["properties"].as_object().unwrap();
                let types: Vec<String> = keys
                    .iter()
                    .map(|(key, value)| format!("{key}:{}", value["type"].as_str().unwrap()))
                    .collect();
                (tool.name.clone(), types.join(" "), tool.parameters["required"].to_string())
            })
            .collect();
        let expected = [
            ("Read", "file_path:string offset:integer limit:integer", r#"["file_path"]"#),
            ("Write", "file_path:string content:string", r#"["file_path","content"]"#),
            (
                "Edit",
                "file_path:string old_string:string new_string:string replace_all:boolean",
                r#"["file_path","old_string","new_string"]"#,
            ),
            ("Glob", "pattern:string path:string", r#"["pattern"]"#),
            ("Bash", "command:string description:string timeout:number", r#"["command"]"#),
        ];
        let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(shapes, expected);
    }

    #[test]
    fn an_operators_profile_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("p.json");
        let built_in = include_str!("profile.json");
        for (text, expected) in [
            (built_in.replace("\"Glob\"", "\"Grep\""), "exactly"),
            (
                built_in.replace("You are Hyla", "").replace("\"system\"", "\"prompt\""),
                "unknown field",
            ),
            ("{}".into(), "missing field"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = Profile::load(&file).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("p.json"), "{error}");
        }
        std::fs::write(&file, built_in).unwrap();
        assert_eq!(Profile::load(&file).unwrap().digest, Profile::built_in().digest);
        assert!(Profile::load(&folder.path().join("none")).is_err());
    }
}
