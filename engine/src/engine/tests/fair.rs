//! Nobody waits for somebody else's prompt, and nothing is computed twice for that.

use super::*;
use crate::Tool;
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A clock that stands still until it is told how much time has passed.
#[derive(Clone, Default)]
struct Clock(Arc<AtomicU64>);

impl Clock {
    fn set(&self, shared: &mut Shared) {
        let (micros, begun) = (self.0.clone(), Instant::now());
        let now = move || begun + Duration::from_micros(micros.load(Ordering::Relaxed));
        shared.clock = Box::new(now);
    }

    fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_micros()).unwrap(), Ordering::Relaxed);
    }
}

fn ids(id: u32, n_tokens: usize, max_tokens: u32) -> Query {
    query(Source::Ids(vec![id; n_tokens]), sampling(max_tokens))
}

fn n_ids(batch: &[(usize, usize, Wanted)]) -> Vec<usize> {
    batch.iter().map(|(_, n_ids, _)| *n_ids).collect()
}

#[test]
fn who_decodes_waits_for_as_much_of_a_prompt_as_fits_into_the_time_of_a_batch() {
    let options = Options {
        prefill_tokens: 128,
        batch_time: Duration::from_millis(250),
        n_draft: 0,
        ..options()
    };
    let (mut shared, model) = load(&options);
    let clock = Clock::default();
    clock.set(&mut shared);
    // A machine that takes 50 ms for a batch and 5 ms for each token in it.
    let batches = Batches::default();
    let mut noted = noted(&batches);
    let forward: Forward = Box::new(move |model, steps| {
        let n_tokens: usize = steps.iter().map(|step| step.ids.len()).sum();
        clock.advance(Duration::from_millis(50 + 5 * n_tokens as u64));
        noted(model, steps)
    });
    let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
    let first = add(&shared, &mut worker, ids(9, 5, 40));
    (0..2).for_each(|_| assert!(worker.step()));
    let long = add(&shared, &mut worker, ids(8, 1800, 4));
    run(&mut worker);
    [&first, &long].iter().for_each(|turn| drop(turn.finished()));
    let batches = batches.lock().unwrap();
    // Two chunks of the first prompt, because its end is marked one token before; then both in each batch, as long as the
    // first one decodes. Before anything is known the chunk is small.
    assert_eq!((n_ids(&batches[0]), n_ids(&batches[1])), (vec![4], vec![1]));
    assert_eq!(n_ids(&batches[2]), [1, 16]);
    let both: Vec<usize> = batches[3..41].iter().map(|batch| n_ids(batch)[1]).collect();
    assert!(both.is_sorted(), "{both:?}");
    // 250 ms are 39 tokens and the one that is decoded.
    assert!(both[20..].iter().all(|n| (36..=39).contains(n)), "{both:?}");
    // Nobody decodes any more, so chunks are whole.
    assert_eq!(n_ids(&batches[41]), [128]);
}

#[test]
fn a_short_prompt_behind_a_long_one_does_not_wait_for_it_and_the_long_one_goes_on() {
    let options = Options { n_draft: 0, ..options() };
    let (shared, model) = load(&options);
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    let long = add(&shared, &mut worker, ids(8, 1600, 1));
    worker.step();
    let short = add(&shared, &mut worker, ids(7, 100, 1));
    let mut n_steps = 0;
    while short.end().is_none() {
        worker.step();
        n_steps += 1;
    }
    // Two chunks, for its last token another one, and none of the long one's between them.
    assert_eq!(n_steps, 3);
    assert!(long.end().is_none());
    // Short ones without end, always two of them.
    let mut shorts = Vec::new();
    while long.end().is_none() {
        assert!(shorts.len() < 100, "the long one starves");
        while shorts.iter().filter(|short: &&Seen| short.end().is_none()).count() < 2 {
            let id = 10 + u32::try_from(shorts.len()).unwrap();
            shorts.push(add(&shared, &mut worker, ids(id, 100, 1)));
        }
        worker.step();
    }
    assert!(shorts.len() > 30, "{}", shorts.len());
    assert_eq!(long.finished().timings.n_prefilled, 1600);
}

/// Conversations with the same long system message and tools.
fn sweeps() -> Vec<Source> {
    let system = Message::System { content: "You are a frog that fixes leaves. ".repeat(12) };
    let parameters = json!({ "type": "object", "properties": { "path": { "type": "string" } } });
    let description = "Reads a leaf, or only some of its lines. ".repeat(6);
    let tools = vec![Tool { name: "read".into(), description, parameters }];
    let ask = |question: &&str| {
        let messages = vec![system.clone(), user(&question.repeat(8))];
        Source::Conversation {
            messages,
            tools: tools.clone(),
            tool_choice: ToolChoice::Auto,
            is_one_call: false,
        }
    };
    ["Where is the leaf? ", "Is it a frog? ", "Sing about ponds. ", "Count them. "]
        .iter()
        .map(ask)
        .collect()
}

/// Tokens that the model computes for prompts that come at some steps, and the tokens of the answers.
fn computed(sources: &[Source], at_steps: &[usize], options: &Options) -> (usize, Vec<Seen>) {
    let (shared, model) = load(options);
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    let mut seen = Vec::new();
    for step in 0.. {
        for (source, _) in sources.iter().zip(at_steps).filter(|(_, at)| **at == step) {
            let mut query = query(source.clone(), sampling(5));
            query.n_logprobs = Some(0);
            seen.push(add(&shared, &mut worker, query));
        }
        if !worker.step() && seen.len() == sources.len() {
            break;
        }
    }
    (seen.iter().map(|seen| seen.finished().timings.n_prefilled).sum(), seen)
}

#[test]
fn a_beginning_that_several_prompts_share_is_computed_once_whenever_they_come() {
    let options = options();
    let (shared, _) = load(&options);
    let sources = sweeps();
    let prompts: Vec<Vec<u32>> = sources
        .iter()
        .map(|source| shared.read(source.clone(), &sampling(0)).unwrap().prompt)
        .collect();
    let message = shared.encoder.tokenizer().id("<|im_start|>").unwrap();
    let is_message = |at: &usize| prompts[0][*at] == message;
    let n_shared = (1..prompts[0].len()).find(is_message).unwrap();
    assert!(n_shared > 5 * options.prefill_tokens, "{n_shared}");
    assert!(prompts.iter().all(|prompt| prompt[..n_shared] == prompts[0][..n_shared]));
    let own: usize = prompts.iter().map(|prompt| prompt.len() - n_shared).sum();
    let alone = |source: &Source| computed(std::slice::from_ref(source), &[0], &options).1;
    let expected: Vec<_> = sources.iter().map(alone).collect();
    for (at_steps, n_sessions) in
        [([0, 0, 0, 0], 4), ([0, 1, 2, 3], 4), ([0, 2, 4, 30], 4), ([0, 0, 0, 0], 2)]
    {
        let options = Options { n_sessions, ..options.clone() };
        let (n_computed, seen) = computed(&sources, &at_steps, &options);
        assert_eq!(n_computed, n_shared + own, "{at_steps:?} {n_sessions}");
        for (seen, expected) in seen.iter().zip(&expected) {
            assert_eq!(seen.tokens(), expected[0].tokens());
        }
    }
}

#[test]
fn who_waits_for_a_beginning_computes_it_when_the_other_one_is_gone() {
    let options = options();
    let (shared, model) = load(&options);
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    let sources = sweeps();
    let [first, second] = [&sources[0], &sources[1]]
        .map(|source| add(&shared, &mut worker, query(source.clone(), sampling(3))));
    (0..3).for_each(|_| assert!(worker.step()));
    first.turn.cancel();
    run(&mut worker);
    assert_eq!(first.end(), Some(Err(Failure::Cancelled)));
    let timings = second.finished().timings;
    // What the other one had computed is taken over.
    assert_eq!(timings.n_cached, 3 * options.prefill_tokens);
}
