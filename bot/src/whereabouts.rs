//! Takes the machine's own folders out of what a sandboxed command shows: `/proc/self/mountinfo` names the folder that is
//! bound as the workspace by its place on the host's file system, and no option of bubblewrap hides that.
//!
//! A command can still compute with what it reads there; the model and the draft just do not say where the bot lives.

use std::path::Path;

use regex::Regex;

/// Names at the end of the path by which it is known: above them a volume of a container may begin.
const NAMES: usize = 3;
/// The workspace as commands see it.
const INSIDE: &str = "/workspace";

/// Hides one folder.
pub(crate) struct Whereabouts(Regex);

impl Whereabouts {
    /// The place of one workspace.
    pub(crate) fn of(root: &Path) -> Self {
        let names: Vec<String> = root
            .iter()
            .skip(1)
            .map(|name| regex::escape(&name.to_string_lossy()).replace(' ', r"(?:\x20|\\040)"))
            .collect();
        let known = names[names.len().saturating_sub(NAMES)..].join("/");
        // Whatever stands above belongs to the same path.
        let pattern = format!(r#"(?:/[^\s"'`,:;()]*)?/{known}\b"#);
        Self(Regex::new(&pattern).expect("escaped names are a pattern"))
    }

    /// The text without the folder.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.0.replace_all(text, INSIDE).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_hidden_wherever_its_file_system_begins() {
        let place = Whereabouts::of(Path::new("/var/lib/hyla/jobs/7/workspace"));
        for (text, expected) in [
            (
                "89 65 254:0 /var/lib/hyla/jobs/7/workspace /workspace rw",
                "89 65 254:0 /workspace /workspace rw",
            ),
            ("0:1 /jobs/7/workspace /workspace", "0:1 /workspace /workspace"),
            ("/volumes/a/_data/jobs/7/workspace//deleted", "/workspace//deleted"),
            ("cannot read '/var/lib/hyla/jobs/7/workspace/a.py'", "cannot read '/workspace/a.py'"),
            ("/jobs/17/workspace and /jobs/7/work", "/jobs/17/workspace and /jobs/7/work"),
        ] {
            assert_eq!(place.hide(text), expected);
        }
    }
}
