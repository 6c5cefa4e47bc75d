//! What may cross from the workspace into a patch.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde::Deserialize;

/// Characters of a pattern that an error repeats.
const SHOWN_CHARS: usize = 80;

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
                // What a forge or a build server runs.
                ".github/**",
                ".gitea/**",
                ".forgejo/**",
                ".gitlab/**",
                ".gitlab-ci.{yml,yaml}",
                ".woodpecker/**",
                ".woodpecker.{yml,yaml}",
                ".crow/**",
                ".crow.{yml,yaml}",
                ".drone.{yml,yaml,star,jsonnet,json}",
                ".agola/**",
                ".onedev-buildspec.{yml,yaml}",
                ".build.yml",
                ".builds/**",
                "Jenkinsfile*",
                ".jenkins/**",
                ".circleci/**",
                ".travis.{yml,yaml}",
                "appveyor.{yml,yaml}",
                ".appveyor.{yml,yaml}",
                "azure-pipelines*.{yml,yaml}",
                ".azure-pipelines/**",
                ".azuredevops/**",
                "bitbucket-pipelines.{yml,yaml}",
                ".buildkite/**",
                ".cirrus.{yml,yaml,star}",
                ".semaphore/**",
                ".teamcity/**",
                ".tekton/**",
                ".buddy/**",
                "bamboo-specs/**",
                "buildspec.{yml,yaml}",
                "cloudbuild.{yml,yaml,json}",
                "codemagic.{yml,yaml}",
                "wercker.{yml,yaml}",
                // What says who reviews, and what git and the bot itself do.
                "CODEOWNERS",
                ".hyla.toml",
                ".gitmodules",
                ".gitattributes",
                // What git runs on the machine of whoever works on the repository.
                ".husky/**",
                ".githooks/**",
                ".pre-commit-config.{yml,yaml}",
                "lefthook*.{yml,yaml,toml,json}",
                ".lefthook*.{yml,yaml,toml,json}",
                ".overcommit.{yml,yaml}",
                // What an editor, a shell or a debugger runs there, when it opens the folder.
                ".vscode",
                "*.code-workspace",
                ".idea",
                ".fleet",
                ".zed",
                ".theia",
                ".devcontainer",
                ".devcontainer.json",
                ".gitpod*",
                ".idx",
                ".replit",
                ".envrc",
                "mise*.toml",
                ".mise*.toml",
                ".mise",
                ".exrc",
                ".nvimrc",
                ".nvim.lua",
                ".vimrc",
                ".dir-locals.el",
                ".gdbinit",
                ".lldbinit",
                // What another agent obeys there.
                "{AGENTS,AGENT,CLAUDE,GEMINI,QWEN}.md",
                "{AGENTS,CLAUDE}.{local,override}.md",
                ".agents",
                ".agent",
                ".claude",
                ".cursor",
                ".cursorrules",
                ".windsurf",
                ".windsurfrules",
                ".clinerules*",
                ".roo",
                ".roorules*",
                ".continue",
                ".codex",
                ".gemini",
                ".qwen",
                ".opencode",
                "opencode.{json,jsonc}",
                ".kiro",
                ".junie",
                ".amazonq",
                ".augment",
                ".trae",
                ".openhands",
                ".aider*",
                ".goosehints",
                ".mcp.json",
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

/// Paths that a patch may not touch: patterns as they are written, ready to be asked. What this takes can be used.
#[derive(Debug, Clone)]
pub struct Protected {
    set: GlobSet,
    patterns: Vec<String>,
}

/// A pattern for protected paths that is none. Without it nothing is judged, so nothing is published.
#[derive(Debug, thiserror::Error)]
#[error("cannot use `{pattern}` as a protected path")]
pub struct BadPattern {
    /// The pattern, cut.
    pub pattern: String,
    /// What is wrong with it.
    #[source]
    pub source: globset::Error,
}

impl BadPattern {
    /// The pattern and what is wrong with it, in one line.
    pub(crate) fn reason(&self) -> String {
        format!("`{}`: {}", self.pattern, self.source.kind())
    }
}

impl Protected {
    /// Takes patterns as they are written in `protected_paths`.
    ///
    /// # Errors
    /// Names the pattern that cannot be understood.
    pub fn new<'a>(written: impl IntoIterator<Item = &'a String>) -> Result<Self, BadPattern> {
        let mut set = GlobSetBuilder::new();
        let mut patterns = Vec::new();
        for pattern in written {
            for form in forms(pattern) {
                let glob = GlobBuilder::new(&form)
                    .case_insensitive(true)
                    .literal_separator(true)
                    .build()
                    .map_err(|source| BadPattern { pattern: cut(pattern), source })?;
                set.add(glob);
                patterns.push(pattern.clone());
            }
        }
        let together = |source| BadPattern { pattern: cut(&patterns.join(" ")), source };
        Ok(Self { set: set.build().map_err(together)?, patterns })
    }

    /// The pattern that protects a path.
    pub fn pattern_of(&self, path: &str) -> Option<&str> {
        let first = *self.set.matches(path).first()?;
        self.patterns.get(first).map(String::as_str)
    }
}

/// The globs that a pattern stands for. Without a slash it is a name at any depth; what is inside a protected folder is
/// protected too, and so is a file or link that would take the folder's place.
fn forms(pattern: &str) -> Vec<String> {
    let pattern = pattern.trim_start_matches('/').trim_end_matches('/');
    let place = pattern.strip_suffix("/**").unwrap_or(pattern);
    let anchored = if pattern.contains('/') { place.to_owned() } else { format!("**/{place}") };
    vec![format!("{anchored}/**"), anchored]
}

fn cut(pattern: &str) -> String {
    let shown: String = pattern.chars().take(SHOWN_CHARS).collect();
    if shown.len() < pattern.len() { shown + "…" } else { shown }
}
