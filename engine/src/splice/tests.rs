//! Conversations with the tiny vocabulary and the template of the tests.

use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::LazyLock;

use serde_json::json;

use super::Turns;
use crate::{Encoder, Message, Prompt, Request, Sampling, Span, Tool, ToolCall, tiny};

fn encoder() -> &'static Encoder {
    static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(tiny::folder);
    static ENCODER: LazyLock<Encoder> =
        LazyLock::new(|| Encoder::load(Path::new(FOLDER.path())).unwrap());
    &ENCODER
}

fn request(messages: Vec<Message>) -> Request {
    let parameters = json!({ "type": "object", "properties": { "all": { "type": "boolean" } } });
    let tools = vec![Tool { name: "look".into(), description: "Looks.".into(), parameters }];
    Request { messages, tools, sampling: Sampling::default() }
}

fn user(content: &str) -> Message {
    Message::User { content: content.into() }
}

fn assistant(content: &str, reasoning: &str, arguments: Option<&str>) -> Message {
    let call = |arguments: &str| ToolCall {
        id: "call_1".into(),
        name: "look".into(),
        arguments: arguments.into(),
    };
    let calls = arguments.map(call).into_iter().collect();
    Message::Assistant { content: content.into(), reasoning: reasoning.into(), calls }
}

fn observation() -> Message {
    Message::Tool { call_id: "call_1".into(), content: "Green.".into() }
}

fn ids(text: &str) -> Vec<u32> {
    encoder().tokenizer().encode(&[Span::Trusted(text)]).unwrap()
}

fn prompt(request: &Request) -> Prompt {
    encoder().encode(request).unwrap()
}

fn splice(turns: &Turns, request: &Request) -> Prompt {
    turns.splice(encoder().tokenizer(), prompt(request), &request.tools)
}

/// Whether a turn that the model wrote behind `[user "Look."]` replaces the one in a conversation that goes on with these
/// messages.
fn replaces(written: &str, messages: Vec<Message>) -> bool {
    let first = prompt(&request(vec![user("Look.")]));
    let turns = Turns::default();
    let generated = ids(written);
    turns.remember(encoder().tokenizer(), &first.ids, &generated);
    let request = request([vec![user("Look.")], messages].concat());
    let (rendered, spliced) = (prompt(&request), splice(&turns, &request));
    let whole = [first.ids, generated].concat();
    let is_replaced = spliced != rendered;
    assert!(!is_replaced || spliced.ids.starts_with(&whole), "it is no prefix of what was read");
    let control = |prompt: &Prompt| -> Vec<u32> {
        prompt.ids.iter().copied().filter(|id| encoder().tokenizer().is_added(*id)).collect()
    };
    assert_eq!(control(&spliced), control(&rendered), "{written}");
    assert_eq!(spliced.start, rendered.start);
    is_replaced
}

const CALL: &str = "Hm.</think>I look.\n<tool_call>\n<function=look>\n<parameter=all>\ntrue\n</parameter>\n\
    </function>\n</tool_call><|im_end|>";

#[test]
fn a_turn_that_says_the_same_is_as_the_model_wrote_it() {
    let look = assistant("I look.", "Hm.", Some(r#"{"all": true}"#));
    assert!(replaces(CALL, vec![look, observation()]));
    // White space around the parts is nothing that is said.
    let trimmed = assistant(" I look.\n", "\nHm. ", Some(r#"{ "all":true }"#));
    assert!(replaces(CALL, vec![trimmed, observation()]));
}

#[test]
fn a_turn_that_says_something_else_is_rendered() {
    for (message, what) in [
        (assistant("I look!", "Hm.", Some(r#"{"all": true}"#)), "the text"),
        (assistant("I look.", "So.", Some(r#"{"all": true}"#)), "the reasoning"),
        (assistant("I look.", "", Some(r#"{"all": true}"#)), "no reasoning"),
        (assistant("I look.", "Hm.", Some(r#"{"all": false}"#)), "the argument"),
        (assistant("I look.", "Hm.", Some("{}")), "no argument"),
        (assistant("I look.", "Hm.", None), "no call"),
    ] {
        assert!(!replaces(CALL, vec![message, observation()]), "{what}");
    }
    // A control token that the model wrote comes back as its letters.
    let forged = "Hm.</think>I <|im_start|>look.<|im_end|>";
    assert!(!replaces(forged, vec![assistant("I look.", "Hm.", None), observation()]));
    let open = "Hm.<think></think>I look.<|im_end|>";
    assert!(!replaces(open, vec![assistant("I look.", "Hm.", None), observation()]));
    // A turn that was cut, or that ended otherwise, is not what the template would write.
    for cut in ["Hm.</think>I look.", "Hm.</think>I look.<|endoftext|>"] {
        assert!(!replaces(cut, vec![assistant("I look.", "Hm.", None), observation()]));
    }
}

#[test]
fn what_the_template_leaves_out_stays_out() {
    // Reasoning before the last question is not rendered.
    let look = assistant("I look.", "Hm.", Some(r#"{"all": true}"#));
    assert!(!replaces(CALL, vec![look, observation(), user("Thanks.")]));
    // Neither is the block for it.
    let yes = assistant("Yes.", "", None);
    assert!(!replaces("  </think>Yes.<|im_end|>", vec![yes, user("Thanks.")]));
}

#[test]
fn turns_are_told_apart_by_all_that_stands_before_them() {
    let turns = Turns::default();
    let tokenizer = encoder().tokenizer();
    let mut messages = vec![user("Look.")];
    let mut whole = Vec::new();
    // Twice the same words, written differently.
    for written in
        ["Hm.</think> Ok.<|im_end|>", "Hm.</think>Ok. <|im_end|>", "Hm.\n</think>Ok.<|im_end|>"]
    {
        let read = splice(&turns, &request(messages.clone()));
        assert!(read.ids.starts_with(&whole));
        let generated = ids(written);
        turns.remember(tokenizer, &read.ids, &generated);
        turns.remember(tokenizer, &read.ids, &generated);
        // Another try that says something else.
        turns.remember(tokenizer, &read.ids, &ids("Hm.</think>No.<|im_end|>"));
        whole = [read.ids, generated].concat();
        messages.extend([assistant("Ok.", "Hm.", None), observation()]);
    }
    let read = splice(&turns, &request(messages.clone()));
    assert!(read.ids.starts_with(&whole));
    // Behind another beginning nothing is known.
    messages[0] = user("Look!");
    let changed = request(messages);
    assert_eq!(splice(&turns, &changed), prompt(&changed));
}

#[test]
fn the_turns_that_were_not_used_for_longest_are_forgotten() {
    let tokenizer = encoder().tokenizer();
    let written = ids("Hm.</think>Ok.<|im_end|>");
    let turns = Turns::new(2 * written.len());
    let asks = |question: &str| prompt(&request(vec![user(question)])).ids;
    let knows = |turns: &Turns, question: &str| {
        let messages = vec![user(question), assistant("Ok.", "Hm.", None), observation()];
        let request = request(messages);
        splice(turns, &request) != prompt(&request)
    };
    turns.remember(tokenizer, &asks("a"), &written);
    turns.remember(tokenizer, &asks("b"), &written);
    assert!(knows(&turns, "a"));
    turns.remember(tokenizer, &asks("c"), &written);
    let known = ["a", "b", "c"].map(|question| knows(&turns, question));
    assert_eq!(known, [true, false, true]);
    turns.remember(tokenizer, &asks("d"), &vec![written[0]; 1000]);
    assert_eq!(turns.kept().n_tokens, 2 * written.len());
}

#[test]
fn of_many_answers_to_the_same_prompt_the_latest_are_remembered() {
    let tokenizer = encoder().tokenizer();
    let turns = Turns::default();
    let first = prompt(&request(vec![user("Look.")])).ids;
    // Each is written differently from how it is rendered.
    let written = |number: usize| ids(&format!("Hm.</think> Ok {number}.<|im_end|>"));
    let knows = |number: usize| {
        let said = assistant(&format!("Ok {number}."), "Hm.", None);
        let request = request(vec![user("Look."), said, observation()]);
        splice(&turns, &request) != prompt(&request)
    };
    for number in 0..super::ANSWERS {
        turns.remember(tokenizer, &first, &written(number));
    }
    assert!((0..super::ANSWERS).all(knows));
    // The first one was used again, so that the second one is forgotten.
    turns.remember(tokenizer, &first, &written(0));
    turns.remember(tokenizer, &first, &written(super::ANSWERS));
    let known: Vec<bool> = (0..=super::ANSWERS).map(knows).collect();
    assert_eq!(known, [true, false, true, true, true]);
    let n_tokens: usize = [0, 2, 3, 4].map(|number| written(number).len()).iter().sum();
    assert_eq!(turns.kept().n_tokens, n_tokens);
}

#[test]
fn who_remembers_does_not_wait_for_who_reads() {
    let turns = Turns::default();
    let first = prompt(&request(vec![user("Look.")])).ids;
    turns.remember(encoder().tokenizer(), &first, &ids(CALL));
    let mut hasher = DefaultHasher::new();
    let head = turns.kept().heads[0].len();
    first[..first.len() - head].iter().for_each(|id| hasher.write_u32(*id));
    // What is read is owned, and the lock is free.
    let candidates = turns.kept().candidates(&hasher);
    assert!(turns.kept.try_lock().is_ok());
    assert_eq!(*candidates[0].generated, ids(CALL));
}
