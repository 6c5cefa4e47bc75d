//! Turns on a tiny model with weights drawn by chance, step by step on the test's own thread, or on the engine's.

mod calls;
mod ends;
mod fair;
mod reuse;
mod same;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use super::shared::Shared;
use super::worker::{Forward, Worker};
use super::{Engine, Options, Turn, ask};
use crate::backend::cpu::{Dtype, Isa, Model, Step, Wanted};
use crate::query::{Event, Failure, Finished, Query, Refused, Source, ToolChoice};
use crate::tiny;
use crate::{Message, Piece, Reply, Sampling, Span, Tool};

static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(tiny::folder);

/// The tokens of the tiny vocabulary that end a turn.
const STOP_IDS: [usize; 2] = [320, 322];

fn options() -> Options {
    Options {
        dtype: Some(Dtype::F32),
        n_threads: 1,
        isa: Isa::detect(),
        n_sessions: 4,
        n_waiting: 4,
        prefill_tokens: 64,
        batch_time: Duration::ZERO,
        context_tokens: 4096,
        memory_bytes: 1 << 30,
        n_draft: 7,
    }
}

fn load(options: &Options) -> (Shared, Model) {
    Shared::load(FOLDER.path(), options).unwrap()
}

/// The model, with a habit: it likes to go round the same ten tokens, so that drafts are often right and sometimes wrong.
/// And it never ends a turn by itself.
fn plain() -> Forward {
    Box::new(|model, steps| {
        let read: Vec<u32> = steps.iter().flat_map(read).collect();
        let mut logits = model.forward(steps)?;
        for (id, row) in read.iter().zip(logits.chunks_exact_mut(tiny::VOCAB)) {
            row[60 + (*id as usize + 1) % 10] += 7.0;
            STOP_IDS.iter().for_each(|id| row[*id] = f32::NEG_INFINITY);
        }
        Ok(logits)
    })
}

/// The tokens after which logits are wanted.
fn read(step: &Step<'_>) -> Vec<u32> {
    let n_unread = match step.logits {
        Wanted::None => step.ids.len(),
        Wanted::Last => step.ids.len() - 1,
        Wanted::All => 0,
    };
    step.ids[n_unread..].to_vec()
}

/// Greedy, without an end but `max_tokens`.
fn sampling(max_tokens: u32) -> Sampling {
    Sampling { temperature: 0.0, max_tokens, seed: Some(1), ..Sampling::default() }
}

fn query(source: Source, sampling: Sampling) -> Query {
    Query { source, sampling, stop_strings: Vec::new(), n_logprobs: None }
}

fn text(text: &str, max_tokens: u32) -> Query {
    query(Source::Text(text.into()), sampling(max_tokens))
}

fn user(content: &str) -> Message {
    Message::User { content: content.into() }
}

fn conversation(messages: &[Message]) -> Source {
    call(ToolChoice::Auto, &[], messages)
}

/// A conversation with these tools.
fn call(tool_choice: ToolChoice, names: &[&str], messages: &[Message]) -> Source {
    let tool = |name: &&str| Tool {
        name: (*name).into(),
        description: String::new(),
        parameters: serde_json::json!({ "type": "object", "properties": {} }),
    };
    let tools = names.iter().map(tool).collect();
    Source::Conversation { messages: messages.to_vec(), tools, tool_choice, is_one_call: false }
}

/// A turn and what it handed out so far.
struct Seen {
    turn: Turn,
    events: Receiver<Event>,
    log: RefCell<Vec<Event>>,
}

impl Seen {
    fn take(&self) {
        loop {
            match self.events.try_recv() {
                Ok(event) => self.log.borrow_mut().push(event),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    /// The end, if it has come, which then must be the last event.
    fn end(&self) -> Option<Result<Finished, Failure>> {
        self.take();
        let log = self.log.borrow();
        let ends = log.iter().filter(|event| matches!(event, Event::End(_))).count();
        assert!(ends <= 1, "{ends} ends came");
        match log.last() {
            Some(Event::End(result)) => Some(result.clone()),
            Some(_) | None => {
                assert_eq!(ends, 0, "something came behind the end");
                None
            }
        }
    }

    fn finished(&self) -> Finished {
        self.end().expect("the turn has ended").expect("the turn was not broken off")
    }

    /// The tokens and their log-probabilities, bit for bit.
    fn tokens(&self) -> Vec<(u32, u32)> {
        self.take();
        let token = |event: &Event| match event {
            Event::Token(token) => Some((token.drawn.id, token.drawn.logprob.to_bits())),
            Event::Piece(_) | Event::End(_) => None,
        };
        self.log.borrow().iter().filter_map(token).collect()
    }

    fn text(&self) -> String {
        self.take();
        let piece = |event: &Event| match event {
            Event::Piece(Piece::Text(text)) => Some(text.clone()),
            Event::Piece(_) | Event::Token(_) | Event::End(_) => None,
        };
        self.log.borrow().iter().filter_map(piece).collect()
    }
}

fn try_add(shared: &Shared, worker: &mut Worker<'_>, query: Query) -> Result<Seen, Refused> {
    let (sender, events) = channel();
    let (asked, turn) = ask(shared, query, move |event| sender.send(event).unwrap())?;
    worker.add(asked);
    Ok(Seen { turn, events, log: RefCell::default() })
}

fn add(shared: &Shared, worker: &mut Worker<'_>, query: Query) -> Seen {
    try_add(shared, worker, query).unwrap()
}

fn run(worker: &mut Worker<'_>) {
    for _ in 0..10_000 {
        if !worker.step() {
            return;
        }
    }
    panic!("the turns do not end");
}

/// Runs a query alone.
fn answer(shared: &Shared, worker: &mut Worker<'_>, query: Query) -> Seen {
    let seen = add(shared, worker, query);
    run(worker);
    seen
}

/// Steps of a batch: tokens before, tokens, and which logits.
type Batches = Arc<Mutex<Vec<Vec<(usize, usize, Wanted)>>>>;

/// The model, which notes what it is asked for.
fn noted(batches: &Batches) -> Forward {
    let batches = batches.clone();
    Box::new(move |model, steps| {
        let note = |step: &Step<'_>| (step.sequence.n_tokens(), step.ids.len(), step.logits);
        batches.lock().unwrap().push(steps.iter().map(note).collect());
        model.forward(steps)
    })
}

/// The true logits after each token of the one sequence, as last computed.
type Rows = Arc<Mutex<BTreeMap<usize, Vec<u32>>>>;

/// The model, made to say a script: the token that follows after so many tokens. All logits are wanted of the model, so that
/// they can be compared.
fn scripted(script: BTreeMap<usize, u32>, rows: &Rows) -> Forward {
    let rows = rows.clone();
    Box::new(move |model, steps| {
        let starts: Vec<_> = steps
            .iter()
            .map(|step| (step.sequence.n_tokens(), step.ids.len(), step.logits))
            .collect();
        let mut logits = model.forward(steps)?;
        let mut rest = logits.as_mut_slice();
        for (start, n_ids, wanted) in starts {
            let first = match wanted {
                Wanted::None => n_ids,
                Wanted::Last => n_ids - 1,
                Wanted::All => 0,
            };
            for at in first..n_ids {
                let (row, after) = rest.split_at_mut(tiny::VOCAB);
                rest = after;
                let n_tokens = start + at + 1;
                rows.lock().unwrap().insert(n_tokens, row.iter().map(|x| x.to_bits()).collect());
                if let Some(id) = script.get(&n_tokens) {
                    row[*id as usize] = 1e6;
                }
            }
        }
        Ok(logits)
    })
}

/// A script that says a text behind a prompt.
fn says(shared: &Shared, source: &Source, text: &str) -> BTreeMap<usize, u32> {
    let prompt = shared.read(source.clone(), &Sampling::default()).unwrap().prompt;
    let ids = shared.encoder.tokenizer().encode(&[Span::Trusted(text)]).unwrap();
    (prompt.len()..).zip(ids).collect()
}
