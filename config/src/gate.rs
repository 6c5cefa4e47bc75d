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
                ".gitlab/**",
                ".gitlab-ci.{yml,yaml}",
                // What a forge or a build server runs.
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
                // What git runs on the machine of whoever works on the repository.
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
