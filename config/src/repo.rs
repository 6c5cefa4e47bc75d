//! `.hyla.toml` of a repository's default branch. It is not trusted: it may only narrow what the server allows.

use serde::Deserialize;

/// The whole of `.hyla.toml`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RepoFile {
    /// Whether the bot works on this repository at all; `false` switches it off.
    pub enabled: Option<bool>,
    /// The command that runs the tests, in the sandbox, from the root of the repository.
    pub test_command: Option<String>,
    /// A command that prepares a fresh workspace, in the sandbox, before tests and session.
    pub setup_command: Option<String>,
    /// Paths that a patch may not touch, besides the server's.
    pub protected_paths: Vec<String>,
}

/// Reads the text of a `.hyla.toml`.
///
/// # Errors
/// Names the key and the reason.
pub fn parse_repo_file(text: &str) -> Result<RepoFile, crate::Error> {
    let name = std::path::Path::new(".hyla.toml");
    let file: RepoFile = crate::load::parse_toml(name, text)?;
    let wrong =
        |key: &str, reason: String| crate::Error { file: name.into(), key: key.into(), reason };
    for (command, key) in
        [(&file.test_command, "test_command"), (&file.setup_command, "setup_command")]
    {
        if command.as_ref().is_some_and(|text| text.trim().is_empty() || text.contains('\0')) {
            return Err(wrong(key, "the command must not be empty".into()));
        }
    }
    if let Err(error) = crate::Protected::new(&file.protected_paths) {
        return Err(wrong("protected_paths", error.reason()));
    }
    Ok(file)
}
