//! A body of a request for an answer: it becomes a prompt, or the refusal names what is wrong.

use std::path::Path;

use bot::model::server::read_chat;
use engine::{Encoder, Request, Source, ToolChoice};

/// Makes prompts, as the model of a server does.
pub(crate) struct Folder(Encoder);

/// What became of a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A prompt.
    Prompt,
    /// The template refuses the conversation.
    NoPrompt,
    /// The server does, with a status.
    Refused(u16),
}

impl Folder {
    pub(crate) fn new() -> Self {
        let engine = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .map(|folder| folder.join("engine"))
            .find(|engine| engine.join("tests/fixtures").is_dir())
            .expect("the engine lies beside the bot");
        let folder = tempfile::tempdir().expect("the temp folder can be written");
        for name in [
            "tests/fixtures/tokenizer/tokenizer.json",
            "tests/fixtures/tokenizer/tokenizer_config.json",
            "src/template/chat_template.jinja",
        ] {
            let from = engine.join(name);
            let to = folder.path().join(from.file_name().expect("it names a file"));
            std::fs::copy(&from, to).expect("the folder is ours");
        }
        Self(Encoder::load(folder.path()).expect("the fixtures are in order"))
    }

    pub(crate) fn run(&self, body: &[u8]) -> Outcome {
        let query = match read_chat("tiny", body) {
            Ok(query) => query,
            Err(fault) => {
                let (status, told) = (fault.status(), fault.body().to_string());
                assert!((400..500).contains(&status), "{status} {told}");
                return Outcome::Refused(status);
            }
        };
        assert!(query.sampling.max_tokens > 0 && query.sampling.top_p > 0.0);
        assert!(query.stop_strings.len() <= 16 && query.n_logprobs.is_none_or(|n| n <= 20));
        let Source::Conversation { messages, tools, tool_choice, .. } = query.source else {
            panic!("a chat is a conversation");
        };
        match tool_choice {
            ToolChoice::Auto => {}
            ToolChoice::None => assert!(tools.is_empty()),
            ToolChoice::Required => assert!(!tools.is_empty()),
            ToolChoice::Named(name) => assert!(tools.iter().any(|tool| tool.name == name)),
        }
        let request = Request { messages, tools, sampling: query.sampling };
        match self.0.encode(&request) {
            Ok(prompt) => {
                assert!(!prompt.ids.is_empty());
                Outcome::Prompt
            }
            Err(_) => Outcome::NoPrompt,
        }
    }
}
