//! What may cross from the workspace into a patch.

use serde::Deserialize;

/// `[gate]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gate {
    /// Paths that a patch may not touch, as globs on the whole path. A pattern without a slash matches at any depth.
    pub protected_paths: Vec<String>,
    /// Files that a patch may change at most.
    pub files: usize,
    /// Largest changed file, in bytes.
    pub file_bytes: u64,
    /// Changed lines, added and removed together, at most.
    pub lines: usize,
    /// Whether a patch may add or change binary files.
    pub allow_binary: bool,
}

impl Default for Gate {
    fn default() -> Self {
        Self {
            protected_paths: [
                ".github/**",
                ".gitea/**",
                ".forgejo/**",
                ".gitlab-ci.yml",
                ".woodpecker/**",
                ".woodpecker.yml",
                ".drone.yml",
                "Jenkinsfile",
                "CODEOWNERS",
                ".hyla.toml",
                ".gitmodules",
                ".gitattributes",
                ".husky/**",
                ".githooks/**",
                ".pre-commit-config.yaml",
                "AGENTS.md",
            ]
            .map(str::to_owned)
            .to_vec(),
            files: 50,
            file_bytes: 1 << 20,
            lines: 5000,
            allow_binary: false,
        }
    }
}
