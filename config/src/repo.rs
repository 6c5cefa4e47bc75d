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
    crate::load::parse_toml(std::path::Path::new(".hyla.toml"), text)
}
