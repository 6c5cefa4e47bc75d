//! What people may say to the bot in a comment. Pure: a comment's text in, a command or none out.
//!
//! Only the first word counts, so that whoever quotes a command, shows it as code or speaks about it asks for nothing.

/// The first word of a comment that is a command.
pub const WORD: &str = "/hyla";

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// What the commands are.
    Help,
    /// How the issue stands.
    Status,
    /// Work on the issue.
    Fix,
    /// The same, once more, with a hint for the model, which may be empty.
    Retry {
        /// The words behind it.
        hint: String,
    },
    /// Stop what is queued and what runs.
    Cancel,
    /// Why the issue was worked on or not.
    Explain,
    /// Something that the bot does not know.
    Unknown,
}

/// Each command as people write it, and what it does: the list in the help text and in the README.
pub const LIST: [(&str, &str); 6] = [
    ("/hyla help", "shows this list"),
    ("/hyla status", "says where this issue stands and what comes next"),
    ("/hyla fix", "asks for a draft, as the label does"),
    ("/hyla retry [hint]", "asks anew after I have ended; the hint is shown to the model"),
    ("/hyla cancel", "stops what is queued or running for this issue"),
    ("/hyla explain", "says why I did or did not act, with what happened when"),
];

impl Command {
    /// Its name, in notes and in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Help => "help",
            Self::Status => "status",
            Self::Fix => "fix",
            Self::Retry { .. } => "retry",
            Self::Cancel => "cancel",
            Self::Explain => "explain",
            Self::Unknown => "unknown",
        }
    }

    /// Whether it asks for a draft.
    pub fn asks(&self) -> bool {
        match self {
            Self::Fix | Self::Retry { .. } => true,
            Self::Help | Self::Status | Self::Cancel | Self::Explain | Self::Unknown => false,
        }
    }
}

/// The command that a comment is. A line that begins with a tab or with four spaces is code.
pub fn parse(text: &str) -> Option<Command> {
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    let words = line.trim_start_matches(' ');
    if line.len() - words.len() > 3 {
        return None;
    }
    let start = words.as_ptr() as usize - text.as_ptr() as usize;
    let behind = text[start..].strip_prefix(WORD)?;
    if !behind.is_empty() && !behind.starts_with(char::is_whitespace) {
        return None;
    }
    let behind = behind.trim_start();
    let end = behind.find(char::is_whitespace).unwrap_or(behind.len());
    let (name, rest) = behind.split_at(end);
    Some(match name.to_ascii_lowercase().as_str() {
        "" | "help" => Command::Help,
        "status" => Command::Status,
        "fix" => Command::Fix,
        "retry" => Command::Retry { hint: rest.trim().to_owned() },
        "cancel" => Command::Cancel,
        "explain" => Command::Explain,
        _ => Command::Unknown,
    })
}

/// A comment as it steers a job: of a command only its hint is of use to a model.
pub fn as_words(text: &str) -> Option<String> {
    match parse(text) {
        None => Some(text.to_owned()),
        Some(Command::Retry { hint }) => (!hint.is_empty()).then_some(hint),
        Some(
            Command::Help
            | Command::Status
            | Command::Fix
            | Command::Cancel
            | Command::Explain
            | Command::Unknown,
        ) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_word_of_a_comment_makes_it_a_command() {
        let retry = |hint: &str| Some(Command::Retry { hint: hint.to_owned() });
        let cases = [
            ("/hyla", Some(Command::Help)),
            ("/hyla help", Some(Command::Help)),
            ("\n  /hyla status please\n", Some(Command::Status)),
            ("/hyla Fix", Some(Command::Fix)),
            ("/hyla\tcancel", Some(Command::Cancel)),
            ("/hyla explain", Some(Command::Explain)),
            ("/hyla retry", retry("")),
            ("/hyla retry look at\r\nline 3 ", retry("look at\r\nline 3")),
            ("/hyla dance", Some(Command::Unknown)),
            ("/hylas fix", None),
            ("/Hyla fix", None),
            ("please /hyla fix", None),
            ("> /hyla fix", None),
            ("```\n/hyla fix\n```", None),
            ("`/hyla fix`", None),
            ("    /hyla fix", None),
            ("\n\t/hyla fix", None),
            ("\u{feff}/hyla fix", None),
            ("<!-- x --> /hyla fix", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text:?}");
        }
    }

    #[test]
    fn every_command_of_the_list_is_known() {
        for (written, _) in LIST {
            assert_ne!(parse(written), Some(Command::Unknown), "{written}");
        }
    }

    #[test]
    fn of_a_command_the_model_sees_the_hint_alone() {
        assert_eq!(as_words("/hyla retry see x"), Some("see x".into()));
        assert_eq!(as_words("/hyla retry"), None);
        assert_eq!(as_words("/hyla fix"), None);
        assert_eq!(as_words("It broke."), Some("It broke.".into()));
    }
}
