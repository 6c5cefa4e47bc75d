//! Commits, branches and pull requests.

use serde::Deserialize;

/// `[publish]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Publish {
    /// Name of the author and committer.
    pub author_name: String,
    /// Address of the author and committer.
    pub author_email: String,
    /// What the bot's branches start with; it pushes nowhere else.
    pub branch_prefix: String,
    /// Characters at most of a pull request or comment body.
    pub body_chars: usize,
}

impl Default for Publish {
    fn default() -> Self {
        Self {
            author_name: "Hyla".into(),
            author_email: "hyla@localhost".into(),
            branch_prefix: "hyla/".into(),
            body_chars: 65_536,
        }
    }
}
