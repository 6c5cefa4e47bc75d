//! What a turn leaves is used by the next one.

use super::*;
use crate::ToolCall;
use serde_json::json;

/// A worker on a fresh engine with so many bytes for what is cached.
macro_rules! worker {
    ($shared:ident, $worker:ident, $memory_bytes:expr) => {
        let options = options();
        let ($shared, model) = load(&options);
        let mut $worker = Worker::new(&$shared, model, plain(), $memory_bytes, options.limits());
    };
}

fn tools() -> Vec<Tool> {
    let parameters = json!({ "type": "object", "properties": { "all": { "type": "boolean" },
        "list": { "type": "array" } } });
    vec![Tool { name: "look".into(), description: "Looks.".into(), parameters }]
}

#[test]
fn the_next_turn_computes_only_what_was_added_however_the_model_wrote() {
    let options = options();
    let (shared, model) = load(&options);
    let mut messages = vec![user("Look at the leaf.")];
    let source = |messages: &[Message]| Source::Conversation {
        messages: messages.to_vec(),
        tools: tools(),
        tool_choice: ToolChoice::Auto,
        is_one_call: false,
    };
    // It would be rendered as `True`, with spaces, and trimmed.
    let turn = "Hm.</think>\n I look. \n\n<tool_call>\n<function=look>\n<parameter=all>\ntrue\n</parameter>\n\
        <parameter=list>\n[1,2]\n</parameter>\n</function>\n</tool_call><|im_end|>";
    let script = says(&shared, &source(&messages), turn);
    let n_generated = script.len();
    let prompt = shared.read(source(&messages), &sampling(0)).unwrap().prompt;
    let forward = scripted(script, &Rows::default());
    let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
    let reply = answer(&shared, &mut worker, query(source(&messages), sampling(500))).finished();
    assert_eq!(reply.timings.n_prefilled, prompt.len());
    let reply = reply.reply;
    assert_eq!((reply.content.as_str(), reply.reasoning.as_str()), (" I look. ", "Hm."));
    assert_eq!(reply.calls[0].arguments, r#"{"all":true,"list":[1,2]}"#);
    assert_eq!(reply.usage.unwrap().completion_tokens, n_generated as u64);

    let (content, reasoning, calls) = (reply.content, reply.reasoning, reply.calls);
    messages.push(Message::Assistant { content, reasoning, calls });
    messages.push(Message::Tool { call_id: "call_1".into(), content: "It is green.".into() });
    let next = shared.read(source(&messages), &sampling(0)).unwrap().prompt;
    let timings =
        answer(&shared, &mut worker, query(source(&messages), sampling(3))).finished().timings;
    // The token that ended the turn was drawn, not read.
    assert_eq!(timings.n_cached, prompt.len() + n_generated - 1);
    assert_eq!(timings.n_prefilled, next.len() - timings.n_cached);
}

#[test]
fn a_turn_that_comes_back_changed_is_computed_from_its_prompt_on() {
    worker!(shared, worker, 1 << 30);
    let first = [user("Where is the leaf, and where is the pond?")];
    let source = conversation(&first);
    let prompt = shared.read(source.clone(), &sampling(0)).unwrap().prompt;
    answer(&shared, &mut worker, query(source.clone(), sampling(50)));
    let (content, reasoning, calls) = ("Elsewhere.".into(), String::new(), Vec::<ToolCall>::new());
    let answered = Message::Assistant { content, reasoning, calls };
    let source = conversation(&[first[0].clone(), answered, user("Thanks.")]);
    let timings = answer(&shared, &mut worker, query(source, sampling(2))).finished().timings;
    // All but the words that begin a turn, which the template writes differently now.
    let head = "<|im_start|>assistant\n<think>\n";
    let head = shared.encoder.tokenizer().encode(&[Span::Trusted(head)]).unwrap();
    assert_eq!(timings.n_cached, prompt.len() - head.len());
}

#[test]
fn conversations_that_begin_alike_alternate_without_computing_again() {
    worker!(shared, worker, 1 << 30);
    let system = Message::System { content: "You are a frog that fixes leaves. ".repeat(5) };
    let asks = |question: &str| conversation(&[system.clone(), user(&question.repeat(20))]);
    let (a, b) = (asks("Where is the leaf? "), asks("Sing about the pond! "));
    let mut n_prefilled = |source: &Source| {
        let seen = answer(&shared, &mut worker, query(source.clone(), sampling(50)));
        seen.finished().timings.n_prefilled
    };
    let n_tokens =
        |source: &Source| shared.read(source.clone(), &sampling(0)).unwrap().prompt.len();
    assert_eq!(n_prefilled(&a), n_tokens(&a));
    let n = n_prefilled(&b);
    assert!(n + 100 < n_tokens(&b), "the system message is not shared: {n} of {}", n_tokens(&b));
    for source in [&a, &b, &a, &a, &b] {
        let n = n_prefilled(source);
        assert!(n < 25, "{n} tokens were computed again");
    }
}

#[test]
fn a_turn_goes_on_from_one_that_still_runs() {
    worker!(shared, worker, 1 << 30);
    let source = conversation(&[user(&"Where is the leaf? ".repeat(10))]);
    let first = add(&shared, &mut worker, query(source.clone(), sampling(200)));
    (0..10).for_each(|_| assert!(worker.step()));
    let second = add(&shared, &mut worker, query(source, sampling(20)));
    run(&mut worker);
    let (first, second) = (first.finished(), second.finished());
    assert_eq!(first.timings.n_cached, 0);
    assert!(second.timings.n_prefilled < 25, "{:?}", second.timings);
    assert!(first.reply.reasoning.starts_with(&second.reply.reasoning));
}

#[test]
fn what_is_cached_keeps_the_budget_and_the_latest_stays() {
    let prompt = |id: u32| query(Source::Ids(vec![id; 200]), sampling(2));
    let n_bytes = {
        worker!(shared, worker, 1 << 30);
        answer(&shared, &mut worker, prompt(1));
        worker.cached_bytes()
    };
    let n_cached = |limit: usize, order: &[u32]| {
        worker!(shared, worker, limit);
        let cached = order.iter().map(|id| {
            let seen = answer(&shared, &mut worker, prompt(*id));
            assert!(worker.cached_bytes() <= limit, "{} of {limit}", worker.cached_bytes());
            seen.finished().timings.n_cached > 0
        });
        cached.collect::<Vec<_>>()
    };
    assert_eq!(n_cached(0, &[1, 1]), [false, false]);
    let two = n_bytes * 5 / 2;
    assert_eq!(n_cached(two, &[1, 2, 1, 2]), [false, false, true, true]);
    // The third pushes out the one that was not used for longest.
    assert_eq!(n_cached(two, &[1, 2, 1, 3, 1, 2]), [false, false, true, false, true, false]);
}
