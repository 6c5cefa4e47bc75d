//! The conversation so far. A question stays in it only with an answer, so that whatever is refused or stopped leaves it
//! whole.

use engine::{Message, Query, Reply, Request, Sampling};

/// A conversation.
pub(super) struct Talk {
    messages: Vec<Message>,
    n_system: usize,
    sampling: Sampling,
}

impl Talk {
    /// One with nothing but what the model is told before.
    pub(super) fn new(system: Option<String>, sampling: Sampling) -> Self {
        let messages: Vec<Message> =
            system.map(|content| Message::System { content }).into_iter().collect();
        Self { n_system: messages.len(), messages, sampling }
    }

    /// What is asked of the engine for a question.
    pub(super) fn query(&self, question: &str) -> Query {
        let mut messages = self.messages.clone();
        messages.push(Message::User { content: question.to_owned() });
        Request { messages, tools: Vec::new(), sampling: self.sampling.clone() }.into()
    }

    /// Keeps a question and the whole turn that answers it, as the engine knows it again.
    pub(super) fn keep(&mut self, question: String, reply: &Reply) {
        let Reply { content, reasoning, calls, .. } = reply.clone();
        self.messages.push(Message::User { content: question });
        self.messages.push(Message::Assistant { content, reasoning, calls });
    }

    /// Keeps a question with the words that there were before the answer was stopped. Without words the question goes as
    /// well, because no model has seen an empty answer. What happened, for the person.
    pub(super) fn keep_part(&mut self, question: String, answer: String) -> &'static str {
        if answer.is_empty() {
            return "the question is forgotten";
        }
        let (reasoning, calls) = (String::new(), Vec::new());
        self.messages.push(Message::User { content: question });
        self.messages.push(Message::Assistant { content: answer, reasoning, calls });
        "what was said so far stays"
    }

    /// Forgets all but what the model is told before.
    pub(super) fn clear(&mut self) {
        self.messages.truncate(self.n_system);
    }
}

#[cfg(test)]
mod tests {
    use engine::Source;

    use super::*;

    fn texts(talk: &Talk) -> Vec<String> {
        let Source::Conversation { messages, .. } = talk.query("?").source else {
            panic!("it is a conversation")
        };
        let text = |message: Message| match message {
            Message::System { content }
            | Message::User { content }
            | Message::Assistant { content, .. }
            | Message::Tool { content, .. } => content,
        };
        messages.into_iter().map(text).collect()
    }

    #[test]
    fn a_question_stays_only_with_words_that_answer_it() {
        let mut talk = Talk::new(Some("s".into()), Sampling::default());
        assert_eq!(texts(&talk), ["s", "?"]);
        talk.keep_part("lost".into(), String::new());
        talk.keep_part("cut".into(), "We".into());
        assert_eq!(texts(&talk), ["s", "cut", "We", "?"]);
        talk.clear();
        assert_eq!(texts(&talk), ["s", "?"]);
    }
}
