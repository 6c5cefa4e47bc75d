//! Every turn ends once, for the reason that it should.

use super::*;
use crate::Stop;
use crate::query::GenerateError;
use std::sync::atomic::{AtomicUsize, Ordering};

fn fresh(change: impl Fn(&mut Options)) -> (Options, Shared, Model) {
    let mut options = options();
    change(&mut options);
    let (shared, model) = load(&options);
    (options, shared, model)
}

#[test]
fn a_turn_ends_at_its_limit_or_at_that_of_the_context() {
    let (options, shared, model) = fresh(|options| options.context_tokens = 20);
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    for (max_tokens, expected) in [(0, 0), (1, 1), (5, 5), (900, 12)] {
        let query = query(Source::Ids(vec![7; 8]), sampling(max_tokens));
        let finished = answer(&shared, &mut worker, query).finished();
        let usage = finished.reply.usage.unwrap();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (8, expected));
        assert_eq!(finished.reply.stop, Stop::Length);
    }
    for (n_tokens, expected) in [(19, true), (20, false), (21, false)] {
        let query = query(Source::Ids(vec![7; n_tokens]), sampling(1));
        match try_add(&shared, &mut worker, query) {
            Ok(_) => assert!(expected),
            Err(Refused::TooLong { n_tokens: n, context_tokens: 20 }) => {
                assert!(!expected && n == n_tokens);
            }
            Err(other) => panic!("{other}"),
        }
    }
    let unknown = query(Source::Ids(vec![384]), sampling(1));
    assert!(matches!(
        try_add(&shared, &mut worker, unknown),
        Err(Refused::UnknownToken(unknown)) if unknown.id == 384
    ));
    let empty = query(Source::Ids(Vec::new()), sampling(1));
    assert!(matches!(try_add(&shared, &mut worker, empty), Err(Refused::Empty)));
    let wrong = query(conversation(&[]), sampling(1));
    match try_add(&shared, &mut worker, wrong) {
        Err(Refused::Encode(error)) => {
            let told = format!("{error}: {}", std::error::Error::source(&error).unwrap());
            assert!(told.contains("chat template: "), "{told}");
            // Clients elsewhere read it.
            assert!(!told.contains(&*FOLDER.path().to_string_lossy()), "{told}");
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    run(&mut worker);
    assert_eq!(shared.n_taken.load(Ordering::Relaxed), 0, "who was refused has no place");
}

#[test]
fn a_turn_ends_at_a_stop_token_or_a_stop_string() {
    let (options, shared, model) = fresh(|_| {});
    let source = conversation(&[user("Hop!")]);
    let said = "I stop.\n</think>\n\nHop, stop. More<|im_end|>";
    let forward = scripted(says(&shared, &source, said), &Rows::default());
    let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
    for (stop_strings, text) in [
        (vec![], "Hop, stop. More"),
        (vec!["stop"], "Hop, "),
        (vec!["stop. M", "x"], "Hop, "),
        (vec!["Mores"], "Hop, stop. More"),
        (vec!["More"], "Hop, stop. "),
    ] {
        let mut query = query(source.clone(), sampling(100));
        query.stop_strings = stop_strings.iter().map(|&each| each.into()).collect();
        let seen = answer(&shared, &mut worker, query);
        let reply = seen.finished().reply;
        assert_eq!(seen.text(), text, "{stop_strings:?}");
        assert_eq!(reply.content, text);
        assert_eq!((reply.reasoning.as_str(), reply.stop), ("I stop.", Stop::End));
    }
}

#[test]
fn a_stop_string_of_newlines_ends_the_turn_before_a_call() {
    let (options, shared, model) = fresh(|_| {});
    let source = call(ToolChoice::Auto, &["look"], &[user("Hop!")]);
    let said = "I\n\nstop.\n</think>\n\nA\n\n<tool_call>\n<function=look>\n</function>\n</tool_call><|im_end|>";
    let forward = scripted(says(&shared, &source, said), &Rows::default());
    let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
    for (stop_strings, n_calls) in [
        (vec![], 1),
        (vec!["\n\n"], 0),
        (vec!["A\n"], 0),
        (vec!["\n"], 0),
        (vec!["\n\n\n", "A\nB"], 1),
    ] {
        let mut query = query(source.clone(), sampling(200));
        query.stop_strings = stop_strings.iter().map(|&each| each.into()).collect();
        let seen = answer(&shared, &mut worker, query);
        let reply = seen.finished().reply;
        let text = if stop_strings.contains(&"A\n") { "" } else { "A" };
        assert_eq!(
            (seen.text().as_str(), reply.content.as_str()),
            (text, text),
            "{stop_strings:?}"
        );
        assert_eq!((reply.calls.len(), reply.stop), (n_calls, Stop::End), "{stop_strings:?}");
    }
}

#[test]
fn a_cancelled_turn_ends_before_its_next_token() {
    let (options, shared, model) = fresh(|options| options.n_sessions = 2);
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    let [other, turn] = [("Sing!", 100), ("Hop!", 4000)].map(|(prompt, max_tokens)| {
        let query = Query { n_logprobs: Some(0), ..text(prompt, max_tokens) };
        add(&shared, &mut worker, query)
    });
    let waiting = add(&shared, &mut worker, text("Wait.", 10));
    (0..5).for_each(|_| assert!(worker.step()));
    turn.turn.cancel();
    waiting.turn.cancel();
    let n_tokens = turn.tokens().len();
    assert!(n_tokens > 0);
    worker.step();
    assert!(matches!(turn.end(), Some(Err(Failure::Cancelled))));
    assert!(matches!(waiting.end(), Some(Err(Failure::Cancelled))));
    assert_eq!(turn.tokens().len(), n_tokens);
    assert!(other.end().is_none());
    let Seen { turn: dropped, events, .. } = add(&shared, &mut worker, text("Drop.", 1000));
    worker.step();
    drop(dropped);
    // What was generated counts, whatever became of it.
    let n_generated = shared.n_generated.load(Ordering::Relaxed);
    assert_eq!(n_generated, (n_tokens + other.tokens().len()) as u64);
    run(&mut worker);
    assert_eq!(other.finished().reply.usage.unwrap().completion_tokens, 100);
    assert!(matches!(events.iter().last(), Some(Event::End(Err(Failure::Cancelled)))));
}

#[test]
fn a_full_queue_is_busy_until_a_turn_ends() {
    let (options, shared, model) = fresh(|options| {
        options.n_sessions = 1;
        options.n_waiting = 1;
    });
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    let turns = ["a", "b"].map(|prompt| add(&shared, &mut worker, text(prompt, 2)));
    let busy = try_add(&shared, &mut worker, text("c", 2));
    assert!(matches!(busy, Err(Refused::Busy { n_turns: 2 })));
    while turns[0].end().is_none() {
        assert!(turns[1].end().is_none(), "they run one after the other");
        worker.step();
    }
    let third = add(&shared, &mut worker, text("c", 2));
    run(&mut worker);
    turns.iter().chain([&third]).for_each(|turn| drop(turn.finished()));
}

#[test]
fn a_receiver_that_panics_ends_its_own_turn_and_no_other() {
    let (options, shared, model) = fresh(|_| {});
    let mut worker = Worker::new(&shared, model, plain(), 1 << 30, options.limits());
    let other = add(&shared, &mut worker, text("Sing!", 300));
    for panics_at_end in [false, true] {
        let (n_events, ends) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, ended) = (n_events.clone(), ends.clone());
        let sink = move |event: Event| {
            counted.fetch_add(1, Ordering::Relaxed);
            match event {
                Event::End(result) => {
                    ended.lock().unwrap().push(result);
                    assert!(!panics_at_end, "the test's own panic");
                }
                Event::Piece(_) | Event::Token(_) => {
                    assert!(panics_at_end, "the test's own panic");
                }
            }
        };
        let (asked, turn) = ask(&shared, text("Hop!", 10), sink).unwrap();
        worker.add(asked);
        (0..15).for_each(|_| assert!(worker.step()));
        let ends = ends.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        assert_eq!(ends.len(), 1);
        if !panics_at_end {
            assert_eq!(ends[0], Err(Failure::Sink));
            assert_eq!(n_events.load(Ordering::Relaxed), 2);
        }
        drop(turn);
    }
    run(&mut worker);
    assert_eq!(other.finished().reply.usage.unwrap().completion_tokens, 300);
}

#[test]
fn a_batch_that_panics_ends_its_turns_and_the_engine_goes_on() {
    let (options, shared, model) = fresh(|options| options.n_sessions = 2);
    let mut n_batches = 0;
    let forward: Forward = Box::new(move |model, steps| {
        n_batches += 1;
        assert_ne!(n_batches, 5, "the test's own panic");
        model.forward(steps)
    });
    let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
    let turns = ["a", "b", "c"].map(|prompt| add(&shared, &mut worker, text(prompt, 9)));
    run(&mut worker);
    assert!(matches!(turns[0].end(), Some(Err(Failure::Defect))));
    assert!(matches!(turns[1].end(), Some(Err(Failure::Defect))));
    assert_eq!(turns[2].finished().reply.usage.unwrap().completion_tokens, 9);
    assert_eq!(shared.n_taken.load(Ordering::Relaxed), 0);
}

#[test]
fn an_engine_that_is_dropped_ends_its_turns() {
    let engine = Engine::open(FOLDER.path(), &options()).unwrap();
    let clone = engine.clone();
    drop(engine);
    let mut pieces = String::new();
    let finished = clone.generate(text("Hop!", 9), &mut |piece| match piece {
        Piece::Text(text) => pieces += &text,
        Piece::Reasoning(_) | Piece::Call(_) => panic!("a raw turn has text only"),
    });
    let finished = finished.unwrap();
    assert_eq!(pieces, finished.reply.content);
    assert_eq!(finished.reply.usage.unwrap().completion_tokens, 9);

    let (sender, events) = channel();
    let turns: Vec<Turn> = (0..8)
        .map(|_| {
            let sender = sender.clone();
            clone.start(text("Hop!", 4000), move |event| sender.send(event).unwrap()).unwrap()
        })
        .collect();
    drop(sender);
    drop(clone);
    // The thread has stopped, so all of them are there.
    let ends = events.try_iter().filter(|event| matches!(event, Event::End(Err(Failure::Closed))));
    assert_eq!(ends.count(), turns.len());
    assert!(matches!(events.try_recv(), Err(TryRecvError::Disconnected)));
}

#[test]
fn an_engine_may_be_dropped_by_its_own_thread() {
    let engine = Engine::open(FOLDER.path(), &options()).unwrap();
    let (sender, ended) = channel();
    let own = engine.clone();
    let turn = engine
        .start(text("Hop!", 3), move |event| {
            let _keeps_it_alive = &own;
            if let Event::End(result) = event {
                sender.send(result).unwrap();
            }
        })
        .unwrap();
    drop(engine);
    assert!(ended.recv().unwrap().is_ok());
    drop(turn);
}

#[test]
fn a_defect_that_no_turn_is_to_blame_for_ends_all_turns_and_the_engine_goes_on() {
    let (options, shared, model) = fresh(|options| options.n_sessions = 2);
    let n_batches = Arc::new(AtomicUsize::new(0));
    let counted = n_batches.clone();
    let mut plain = plain();
    let forward: Forward = Box::new(move |model, steps| {
        let logits = plain(model, steps);
        // Too few logits are read behind the batch.
        if counted.fetch_add(1, Ordering::Relaxed) == 5 { Ok(Vec::new()) } else { logits }
    });
    let mut worker = Worker::new(&shared, model, forward, 1 << 30, options.limits());
    let turns = ["a", "b", "c"].map(|prompt| add(&shared, &mut worker, text(prompt, 9)));
    run(&mut worker);
    turns.iter().for_each(|turn| assert_eq!(turn.end(), Some(Err(Failure::Defect))));
    assert_eq!((shared.n_taken.load(Ordering::Relaxed), worker.cached_bytes()), (0, 0));
    let again = answer(&shared, &mut worker, text("a", 9)).finished();
    let (_, shared, model) = fresh(|_| {});
    let mut worker = Worker::new(&shared, model, self::plain(), 1 << 30, options.limits());
    assert_eq!(answer(&shared, &mut worker, text("a", 9)).finished().reply, again.reply);

    let (options, shared, model) = fresh(|_| {});
    let engine = Engine::run(shared, model, Box::new(|_, _| Ok(Vec::new())), &options).unwrap();
    for _ in 0..3 {
        let failed = engine.generate(text("Hop!", 3), &mut |_| {});
        assert!(matches!(failed, Err(GenerateError::Failed(Failure::Defect))), "{failed:?}");
    }
}

#[test]
fn every_turn_of_many_callers_ends_once() {
    let engine = Engine::open(FOLDER.path(), &Options { n_waiting: 2, ..options() }).unwrap();
    let n_started = AtomicUsize::new(0);
    let (sender, ends) = channel();
    std::thread::scope(|scope| {
        for caller in 0..8_usize {
            let (engine, sender, n_started) = (engine.clone(), sender.clone(), &n_started);
            scope.spawn(move || {
                let mut kept = Vec::new();
                for round in 0..6 {
                    let number = caller * 100 + round;
                    let sender = sender.clone();
                    let sink = move |event| match event {
                        Event::End(_) => sender.send(number).unwrap(),
                        Event::Piece(_) | Event::Token(_) => {
                            assert_ne!(caller, 7, "the test's own panic");
                        }
                    };
                    let query = text(&"Hop! ".repeat(caller + 1), 20 + 5 * round as u32);
                    match engine.start(query, sink) {
                        Ok(turn) => {
                            n_started.fetch_add(1, Ordering::Relaxed);
                            // Some are dropped at once, some while others start.
                            kept.push(turn);
                            kept.truncate(caller % 3);
                        }
                        Err(Refused::Busy { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                    if round % 2 == 0 {
                        // Refused or not, the caller goes on.
                        let query = text("Sing!", 3);
                        match engine.generate(query, &mut |_| {}) {
                            Ok(_) | Err(GenerateError::Refused(Refused::Busy { .. })) => {}
                            Err(other) => panic!("{other}"),
                        }
                    }
                }
            });
        }
    });
    drop(sender);
    let n_started = n_started.into_inner();
    let mut ended: Vec<usize> = ends.iter().collect();
    assert_eq!(ended.len(), n_started);
    ended.sort_unstable();
    ended.dedup();
    assert_eq!(ended.len(), n_started, "each ended once");
    assert_eq!(engine.n_turns(), 0);
}
