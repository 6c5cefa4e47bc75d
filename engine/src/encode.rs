//! From a conversation to the token ids that a model reads, by the template and the tokenizer of its folder.
//!
//! Every text of a request is untrusted: what people wrote, what tools answered, what the model itself wrote, the names and
//! schemas of tools, the system message too. Only the template's own words become control tokens. While the template runs,
//! the letters that control tokens are made of are replaced by stand-ins in all untrusted text. So the template may trim,
//! choose and join these texts as it likes, but it does not look into them, which decides three cases: a person's text
//! within `<tool_response>` is a question like any other; `</think>` in an answer is text, and reasoning is what
//! `reasoning` holds; `<tool_call>` in a tool's description does not open a call. A control token that the model generated
//! inside a value or its reasoning comes back to it as the same letters.

mod stand_ins;

use std::path::Path;

use crate::parse::{Mark, Start};
use crate::template::each_text;
use crate::{Error, RenderError, Request, Template, TokenizeError, Tokenizer};
use stand_ins::StandIns;

/// Makes prompts for one model.
pub struct Encoder {
    template: Template,
    tokenizer: Tokenizer,
}

/// What a model reads, and where its turn begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The whole conversation and the words that begin the turn.
    pub ids: Vec<u32>,
    /// Whether these words opened a think block.
    pub start: Start,
}

/// Why a conversation has no prompt.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The template refuses it.
    #[error(transparent)]
    Render(#[from] RenderError),
    /// The tokenizer fails.
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
    /// Nothing is left to mark untrusted text with.
    #[error(
        "cannot tell text from control tokens: the conversation holds {n_private} different private-use characters; \
         leave the text with them out"
    )]
    NoStandIns {
        /// How many there are.
        n_private: usize,
    },
}

impl Encoder {
    /// Reads template and tokenizer of a model's folder.
    ///
    /// # Errors
    /// Names the file that is missing or not in order.
    pub fn load(folder: &Path) -> Result<Self, Error> {
        Ok(Self { template: Template::load(folder)?, tokenizer: Tokenizer::load(folder)? })
    }

    /// The tokenizer, for what the model generates.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The prompt for the next turn.
    ///
    /// # Errors
    /// The template refuses the conversation, or the tokenizer fails.
    pub fn encode(&self, request: &Request) -> Result<Prompt, EncodeError> {
        let stand_ins = self.stand_ins(request)?;
        let rendered = self.template.render_changed(request, &mut |text| stand_ins.put(text))?;
        let restored = stand_ins.restore(&rendered);
        let ids = self.tokenizer.encode(&restored.spans())?;
        let start = self.start(&ids);
        Ok(Prompt { ids, start })
    }

    fn stand_ins(&self, request: &Request) -> Result<StandIns, EncodeError> {
        let mut texts = vec![self.template.source().to_owned()];
        each_text(request, &mut |text| {
            if stand_ins::is_any_private(text) {
                texts.push(text.to_owned());
            }
        });
        let letters = self.tokenizer.letters_of_added();
        StandIns::choose(&letters, &texts)
            .map_err(|n_private| EncodeError::NoStandIns { n_private })
    }

    /// The last think mark of the generation prompt decides. It is the template's own, as every mark in a prompt.
    fn start(&self, ids: &[u32]) -> Start {
        let turn = self.tokenizer.id("<|im_start|>");
        let generation = ids.iter().rev().take_while(|id| Some(**id) != turn);
        let mut marks = generation.filter_map(|id| self.tokenizer.mark(*id));
        match marks.find(|mark| matches!(mark, Mark::ThinkOpen | Mark::ThinkClose)) {
            Some(Mark::ThinkOpen) => Start::Reasoning,
            Some(_) | None => Start::Content,
        }
    }
}

#[cfg(test)]
mod tests;
