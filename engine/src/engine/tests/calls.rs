//! Turns that must call a tool, whatever the model would say.

use super::*;
use crate::{Stop, ToolCall};

const QUESTION: &str = "Where is the leaf?";

/// The model with random weights, which says anything, and often what closes a text or ends the turn.
fn restless(shared: &Shared) -> Forward {
    let closing = ["</think>", "<tool_call>", "</tool_call>", "<|im_end|>"];
    let ids = closing.map(|token| shared.encoder.tokenizer().id(token).unwrap() as usize);
    Box::new(move |model, steps| {
        let mut logits = model.forward(steps)?;
        for row in logits.chunks_exact_mut(tiny::VOCAB) {
            ids.iter().for_each(|id| row[*id] += 6.0);
        }
        Ok(logits)
    })
}

fn asks(tool_choice: ToolChoice, names: &[&str], sampling: Sampling) -> Query {
    let mut query = query(call(tool_choice, names, &[user(QUESTION)]), sampling);
    query.n_logprobs = Some(0);
    query
}

#[test]
fn whatever_the_model_says_the_turn_calls_a_tool_that_it_may() {
    let (options, names) = (options(), ["look", "look_up", "leap"]);
    let (shared, model) = load(&options);
    let mut worker = Worker::new(&shared, model, restless(&shared), 1 << 30, options.limits());
    let (mut called, mut n_cut) = (BTreeMap::new(), 0);
    for seed in 0..30 {
        let (choice, expected) = match seed % 3 {
            0 => (ToolChoice::Named("leap".into()), &names[2..]),
            _ => (ToolChoice::Required, &names[..]),
        };
        let temperature = if seed % 4 == 0 { 0.0 } else { 1.5 };
        let sampling = Sampling {
            seed: Some(seed),
            thinking: seed % 2 == 0,
            temperature,
            top_k: 0,
            top_p: 1.0,
            max_tokens: 300,
            ..Sampling::default()
        };
        let seen = answer(&shared, &mut worker, asks(choice, &names, sampling));
        let Reply { calls, stop, usage, .. } = seen.finished().reply;
        let n_tokens = usage.unwrap().completion_tokens as usize;
        if stop == Stop::Length && calls.is_empty() {
            // It goes round and round.
            n_cut += 1;
            continue;
        }
        assert!(!calls.is_empty(), "{seed}: {stop:?} after {n_tokens}");
        // Every token was handed out but the one that ended the turn.
        assert_eq!(seen.tokens().len() + usize::from(stop == Stop::End), n_tokens);
        for ToolCall { name, .. } in calls {
            assert!(expected.contains(&name.as_str()), "{seed}: {name}");
            *called.entry(name).or_insert(0) += 1;
        }
    }
    assert!(called.len() == names.len() && n_cut < 10, "{called:?} {n_cut}");
}

#[test]
fn the_opening_is_what_the_template_writes_and_costs_a_few_steps() {
    for (thinking, said, n_draft) in
        [(true, "I see.</think>\n\n", 7), (false, "", 7), (true, "I see.</think>\n\n", 0)]
    {
        let options = Options { n_draft, ..options() };
        let (shared, model) = load(&options);
        let sampling = Sampling { thinking, ..sampling(200) };
        let source = call(ToolChoice::Named("look".into()), &["look"], &[user(QUESTION)]);
        let prompt = shared.read(source.clone(), &sampling).unwrap().prompt;
        let tokenizer = shared.encoder.tokenizer();
        let spelled = |text: &str| tokenizer.encode(&[Span::Trusted(text)]).unwrap();
        let opening = "<tool_call>\n<function=look>\n";
        let rest = "<parameter=where>\nup\n</parameter>\n</function>\n</tool_call><|im_end|>";
        let whole = spelled(&[said, opening, rest].concat());
        // It would rather speak, and end its turn, where the call is opened.
        let (n_said, n_opening) = (spelled(said).len(), spelled(&[said, opening].concat()).len());
        let end = tokenizer.id("<|im_end|>").unwrap();
        let liked = whole.iter().enumerate().map(|(at, id)| {
            if (n_said.saturating_sub(1)..n_opening).contains(&at) { end } else { *id }
        });
        let script = (prompt.len()..).zip(liked).collect();
        let forward = scripted(script, &Rows::default());
        let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
        let mut query = query(source, sampling);
        query.n_logprobs = Some(1);
        let seen = answer(&shared, &mut worker, query);
        let ids: Vec<u32> = seen.tokens().into_iter().map(|(id, _)| id).collect();
        assert_eq!(tokenizer.decode(&ids), tokenizer.decode(&whole), "{thinking}");
        assert_eq!(ids, whole[..whole.len() - 1]);
        let finished = seen.finished();
        assert_eq!(finished.reply.content, "");
        assert_eq!(finished.reply.calls[0].arguments, r#"{"where":"up"}"#);
        assert_eq!(finished.reply.usage.unwrap().completion_tokens, whole.len() as u64);
        let n_saved = whole.len() - finished.timings.n_steps;
        assert!(if n_draft == 0 { n_saved == 0 } else { n_saved >= 7 }, "{n_saved}");
    }
}

#[test]
fn behind_the_call_of_a_named_tool_no_other_tool_is_called() {
    let options = options();
    for (choice, expected) in [
        (ToolChoice::Named("look".into()), &["look"][..]),
        (ToolChoice::Required, &["look", "leap"]),
    ] {
        let (shared, model) = load(&options);
        let source = call(choice, &["look", "leap"], &[user(QUESTION)]);
        let sampling = Sampling { thinking: false, ..sampling(200) };
        let prompt = shared.read(source.clone(), &sampling).unwrap().prompt;
        let said = "<tool_call>\n<function=look>\n</function>\n</tool_call>\n\
            <function=leap>\n</function><|im_end|>";
        let said = shared.encoder.tokenizer().encode(&[Span::Trusted(said)]).unwrap();
        let forward = scripted((prompt.len()..).zip(said).collect(), &Rows::default());
        let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
        let reply = answer(&shared, &mut worker, query(source, sampling)).finished().reply;
        let names: Vec<&str> = reply.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, expected, "{}", reply.content);
    }
}

#[test]
fn reasoning_that_does_not_end_ends_at_the_limit() {
    let options = options();
    let (shared, model) = load(&options);
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    let seen = answer(&shared, &mut worker, asks(ToolChoice::Required, &["look"], sampling(50)));
    let reply = seen.finished().reply;
    assert_eq!((reply.stop, reply.calls, reply.content.as_str()), (Stop::Length, vec![], ""));
    assert_eq!(reply.usage.unwrap().completion_tokens, 50);
}

#[test]
fn a_call_without_a_tool_for_it_is_refused() {
    let options = options();
    let (shared, model) = load(&options);
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    for (choice, names) in [
        (ToolChoice::Required, &[][..]),
        (ToolChoice::Named("leap".into()), &["look"]),
        (ToolChoice::Required, &["a>b"]),
    ] {
        let refused = try_add(&shared, &mut worker, asks(choice, names, sampling(5)));
        assert!(matches!(refused, Err(Refused::NoTool)), "{names:?}");
    }
    run(&mut worker);
}

#[test]
fn a_turn_of_one_call_ends_with_it_and_is_found_again() {
    let options = options();
    let (shared, model) = load(&options);
    let mut messages = vec![user("Look twice.")];
    let source = |messages: &[Message]| match call(ToolChoice::Auto, &["look"], messages) {
        Source::Conversation { messages, tools, tool_choice, .. } => {
            Source::Conversation { messages, tools, tool_choice, is_one_call: true }
        }
        other => panic!("{other:?}"),
    };
    // With spaces that rendering leaves out.
    let first = "Hm.</think>\n \n<tool_call>\n<function=look>\n\n</function></tool_call>";
    let turn =
        first.to_owned() + "\n<tool_call>\n<function=look>\n</function>\n</tool_call><|im_end|>";
    let forward = scripted(says(&shared, &source(&messages), &turn), &Rows::default());
    let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
    let seen = answer(&shared, &mut worker, query(source(&messages), sampling(500)));
    let reply = seen.finished().reply;
    let n_first = shared.encoder.tokenizer().encode(&[Span::Trusted(first)]).unwrap().len();
    assert_eq!((reply.calls.len(), reply.stop, reply.content.as_str()), (1, Stop::End, ""));
    assert_eq!(reply.usage.unwrap().completion_tokens, n_first as u64);

    let n_prompt = reply.usage.unwrap().prompt_tokens as usize;
    let (content, reasoning, calls) = (reply.content, reply.reasoning, reply.calls);
    messages.push(Message::Assistant { content, reasoning, calls });
    messages.push(Message::Tool { call_id: "call_1".into(), content: "It is green.".into() });
    let seen = answer(&shared, &mut worker, query(source(&messages), sampling(3)));
    assert_eq!(seen.finished().timings.n_cached, n_prompt + n_first - 1);
}

/// A turn that the model says in full, with this choice between two tools.
fn said(choice: ToolChoice, thinking: bool, text: &str) -> Seen {
    let options = options();
    let (shared, model) = load(&options);
    let sampling = Sampling { thinking, ..sampling(200) };
    let source = call(choice, &["look", "leap"], &[user(QUESTION)]);
    let prompt = shared.read(source.clone(), &sampling).unwrap().prompt;
    let ids = shared.encoder.tokenizer().encode(&[Span::Trusted(text)]).unwrap();
    let forward = scripted((prompt.len()..).zip(ids).collect(), &Rows::default());
    let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
    answer(&shared, &mut worker, query(source, sampling))
}

#[test]
fn a_turn_that_may_call_nothing_calls_nothing() {
    let options = options();
    let (shared, model) = load(&options);
    let mut worker = Worker::new(&shared, model, restless(&shared), 1 << 30, options.limits());
    for seed in 0..10 {
        let sampling = Sampling {
            seed: Some(seed),
            thinking: seed % 2 == 0,
            temperature: 1.5,
            top_k: 0,
            top_p: 1.0,
            max_tokens: 100,
            ..Sampling::default()
        };
        let seen = answer(&shared, &mut worker, asks(ToolChoice::None, &["look"], sampling));
        let open = shared.encoder.tokenizer().id("<tool_call>").unwrap();
        assert!(seen.tokens().iter().all(|(id, _)| *id != open), "{seed}");
        assert_eq!(seen.finished().reply.calls, []);
    }
    let bare = "No.\n<function=look>\n</function>\n";
    let seen = said(ToolChoice::None, false, &(bare.to_owned() + "<|im_end|>"));
    let reply = seen.finished().reply;
    assert_eq!((reply.content.as_str(), reply.calls), (bare.trim_end(), vec![]));
}

#[test]
fn behind_the_call_that_was_demanded_no_other_tool_is_called() {
    let call = |name: &str| format!("<function={name}>\n</function>\n");
    let text = format!("<tool_call>\n{}</tool_call>\n{}<|im_end|>", call("look"), call("leap"));
    for (choice, expected) in [
        (ToolChoice::Named("look".into()), &["look"][..]),
        (ToolChoice::Required, &["look", "leap"]),
    ] {
        let reply = said(choice, false, &text).finished().reply;
        let names: Vec<&str> = reply.calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn a_turn_that_is_cut_while_a_call_is_opened_calls_nothing() {
    for n_draft in [0, 7] {
        let options = Options { n_draft, ..options() };
        let (shared, model) = load(&options);
        let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
        for max_tokens in 1..30 {
            let sampling = Sampling { thinking: false, ..sampling(max_tokens) };
            let seen =
                answer(&shared, &mut worker, asks(ToolChoice::Required, &["look"], sampling));
            let reply = seen.finished().reply;
            assert_eq!((reply.stop, reply.calls), (Stop::Length, vec![]));
            // What there is of the call stays visible.
            let begun = "<tool_call>\n<function=look>\n";
            let content = reply.content.as_str();
            assert!(begun.starts_with(content) || content.starts_with(begun), "{content:?}");
            assert_eq!(reply.usage.unwrap().completion_tokens, u64::from(max_tokens));
            assert_eq!((seen.tokens().len(), seen.text()), (max_tokens as usize, reply.content));
        }
    }
}
