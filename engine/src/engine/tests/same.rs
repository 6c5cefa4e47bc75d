//! A turn's tokens are the same whatever runs beside it, is cached or is drafted.

use super::*;
use crate::Timings;

/// Some conversations that begin alike, a raw text that repeats itself, and a short one.
fn queries() -> Vec<Query> {
    let system = Message::System { content: "You are a frog that fixes leaves. ".repeat(3) };
    let asks = |question: &str| conversation(&[system.clone(), user(question)]);
    let drawn = |seed| Sampling { seed: Some(seed), max_tokens: 40, ..Sampling::default() };
    let penalised =
        Sampling { presence_penalty: 0.7, repetition_penalty: 1.2, temperature: 1.0, ..drawn(7) };
    let mut queries = vec![
        query(asks("Where is the leaf?"), sampling(60)),
        query(asks("Where is the pond?"), drawn(3)),
        query(asks("Where is the leaf?"), drawn(4)),
        query(asks("Sing."), penalised),
        text(&"one two three four one two three four ".repeat(4), 60),
        query(Source::Ids(vec![5]), drawn(5)),
        query(
            call(ToolChoice::Required, &["look", "leap"], &[user("Where is the leaf?")]),
            Sampling { thinking: false, ..drawn(6) },
        ),
    ];
    queries.iter_mut().for_each(|query| query.n_logprobs = Some(2));
    queries
}

/// Each alone, on an engine that knows nothing, without drafts and with the prompt in one batch.
fn expected(dtype: Dtype) -> Vec<Vec<(u32, u32)>> {
    let options = Options { dtype: Some(dtype), n_draft: 0, prefill_tokens: 4096, ..options() };
    queries()
        .into_iter()
        .map(|query| {
            let (shared, model) = load(&options);
            let mut worker = Worker::new(&shared, model, plain(), 0, options.limits());
            let seen = answer(&shared, &mut worker, query);
            assert_eq!(seen.finished().timings.n_cached, 0);
            seen.tokens()
        })
        .collect()
}

/// What weights are kept as while these are tested: in the tests' own form, and as people have them.
const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::Int8];

#[test]
fn tokens_and_their_probabilities_depend_on_the_query_alone() {
    let counts = DTYPES.map(depend_on_the_query_alone);
    let sum = |of: fn(&Timings) -> usize| counts.iter().map(of).sum::<usize>();
    let (n_drafted, n_accepted) = (sum(|each| each.n_drafted), sum(|each| each.n_accepted));
    // All of it was tried.
    assert!(0 < n_accepted && n_accepted < n_drafted, "{n_accepted} of {n_drafted}");
    assert!(counts.iter().all(|each| each.n_accepted > 0 && each.n_cached > 1000), "{counts:?}");
}

/// What was drafted and cached on the way.
fn depend_on_the_query_alone(dtype: Dtype) -> Timings {
    let expected = expected(dtype);
    assert!(expected.iter().all(|tokens| !tokens.is_empty()));
    let mut counts = Timings::default();
    for (n_draft, prefill_tokens, n_sessions) in [(7, 64, 6), (7, 9, 3), (2, 1, 2), (0, 33, 6)] {
        let options = Options {
            dtype: Some(dtype),
            n_draft,
            prefill_tokens,
            n_sessions,
            n_waiting: 9,
            ..options()
        };
        let (shared, model) = load(&options);
        let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
        // The second time everything is cached.
        for _ in 0..2 {
            let all: Vec<Seen> =
                queries().into_iter().map(|query| add(&shared, &mut worker, query)).collect();
            run(&mut worker);
            for (at, (seen, expected)) in all.iter().zip(&expected).enumerate() {
                assert_eq!(&seen.tokens(), expected, "query {at} with {options:?}");
                let timings = seen.finished().timings;
                counts.n_drafted += timings.n_drafted;
                counts.n_accepted += timings.n_accepted;
                counts.n_cached += timings.n_cached;
            }
        }
    }
    counts
}

#[test]
fn a_draft_may_be_wrong_at_any_token() {
    DTYPES.into_iter().for_each(may_be_wrong_at_any_token);
}

fn may_be_wrong_at_any_token(dtype: Dtype) {
    let words: Vec<u32> = (10..40).collect();
    let prompt = [words.as_slice(), &[7, 8, 9], &words[..12]].concat();
    for n_right in 0..12 {
        // It goes on like before for some tokens, then otherwise, then like before again.
        let said = [&words[12..12 + n_right], &[200, 201], words.as_slice()].concat();
        let script: BTreeMap<usize, u32> = (prompt.len()..).zip(said.iter().copied()).collect();
        let run = |n_draft: usize| {
            let options = Options { dtype: Some(dtype), n_draft, ..options() };
            let (shared, model) = load(&options);
            let rows = Rows::default();
            let forward = scripted(script.clone(), &rows);
            let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
            let max_tokens = u32::try_from(said.len()).unwrap();
            let mut query = query(Source::Ids(prompt.clone()), sampling(max_tokens));
            query.n_logprobs = Some(0);
            let seen = answer(&shared, &mut worker, query);
            let ids: Vec<u32> = seen.tokens().into_iter().map(|(id, _)| id).collect();
            assert_eq!(ids, said, "{n_right} {n_draft}");
            let rows: BTreeMap<usize, Vec<u32>> = std::mem::take(&mut rows.lock().unwrap());
            let within = prompt.len()..prompt.len() + said.len();
            let rows: Vec<_> = rows.into_iter().filter(|(at, _)| within.contains(at)).collect();
            (rows, seen.finished().timings)
        };
        let (expected, plain) = run(0);
        let (rows, drafted) = run(7);
        assert!(rows == expected, "{n_right}: the states are others");
        assert_eq!((plain.n_steps, plain.n_drafted), (said.len(), 0));
        assert!(drafted.n_steps < plain.n_steps, "{n_right}: {drafted:?}");
        assert!(drafted.n_accepted < drafted.n_drafted, "{n_right}: {drafted:?}");
    }
}
