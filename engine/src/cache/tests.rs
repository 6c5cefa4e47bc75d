//! Which sequence a prompt goes on with, on a tiny model.

use super::*;
use crate::backend::cpu::{Dtype, Isa, Options, Step, Wanted};
use crate::tiny;

fn model() -> Model {
    let folder = tiny::folder();
    let options = Options { dtype: Some(Dtype::Bf16), n_threads: 1, isa: Isa::detect() };
    Model::load(folder.path(), &options).unwrap()
}

/// Computes a prompt up to its end, with marks at some places. How many tokens were there.
fn compute(cache: &mut Cache, model: &Model, prompt: &[u32], marks: &[usize]) -> (Key, usize) {
    let key = cache.take(model, prompt);
    let n_cached = cache.n_tokens(key);
    for at in n_cached..prompt.len() {
        let ids = &prompt[at..=at];
        let sequence = cache.sequences(&[key]).remove(0);
        model.forward(&mut [Step { sequence, ids, logits: Wanted::None }]).unwrap();
        cache.append(key, ids);
        if marks.contains(&(at + 1)) {
            cache.mark(key);
        }
    }
    (key, n_cached)
}

fn prompt(n_tokens: u32, changed_from: u32) -> Vec<u32> {
    (0..n_tokens).map(|at| if at < changed_from { at % 50 } else { 100 + at % 50 }).collect()
}

fn cache() -> Cache {
    Cache::new(1 << 30)
}

#[test]
fn a_prompt_goes_on_from_the_last_mark_that_it_shares() {
    let model = model();
    let whole = prompt(100, 100);
    for (other, expected, n_kept) in [
        (prompt(120, 100), 100, 1), // Its end, in place.
        (prompt(100, 100), 90, 1),  // Not all: the last logits are wanted.
        (prompt(91, 91), 90, 1),
        (prompt(90, 90), 40, 2), // Much is behind, so a copy.
        (prompt(100, 89), 40, 2),
        (prompt(100, 40), 40, 2),
        (prompt(100, 39), 0, 2),
        (vec![7], 0, 2),
    ] {
        let mut cache = cache();
        let (key, _) = compute(&mut cache, &model, &whole, &[40, 90]);
        cache.give_back(key);
        let taken = cache.take(&model, &other);
        assert_eq!(cache.n_tokens(taken), expected, "{} {n_kept}", other.len());
        assert_eq!(cache.kept.len(), n_kept, "{}", other.len());
        assert_eq!(taken == key, n_kept == 1);
    }
}

#[test]
fn what_is_used_is_copied_and_stays() {
    let model = model();
    let mut cache = cache();
    let (first, _) = compute(&mut cache, &model, &prompt(60, 60), &[30]);
    // At its end, and at a mark.
    for (other, expected) in [(prompt(80, 60), 60), (prompt(80, 30), 30)] {
        let (key, n_cached) = compute(&mut cache, &model, &other, &[]);
        assert_ne!(key, first);
        assert_eq!(n_cached, expected);
        assert_eq!(cache.sequences(&[first, key])[0].n_tokens(), 60);
        assert_eq!(cache.sequences(&[first, key])[1].n_tokens(), 80);
    }
    assert_eq!(cache.n_tokens(first), 60);
}

#[test]
fn a_copy_says_what_the_whole_says() {
    let model = model();
    let mut cache = cache();
    let (first, _) = compute(&mut cache, &model, &prompt(60, 60), &[30]);
    let (copy, n_cached) = compute(&mut cache, &model, &prompt(60, 40), &[]);
    assert_eq!(n_cached, 30);
    let mut alone = model.sequence();
    let step = Step { sequence: &mut alone, ids: &prompt(60, 40), logits: Wanted::None };
    model.forward(&mut [step]).unwrap();
    let logits = |sequence: &mut Sequence| {
        model.forward(&mut [Step { sequence, ids: &[3], logits: Wanted::Last }]).unwrap()
    };
    let expected = logits(&mut alone);
    let mut both = cache.sequences(&[copy, first]);
    assert_eq!(logits(both[0]), expected);
    assert_ne!(logits(both[1]), expected);
}

#[test]
fn without_room_for_a_copy_the_sequence_itself_goes_back() {
    let model = model();
    let n_bytes = {
        let mut cache = cache();
        compute(&mut cache, &model, &prompt(100, 100), &[40]);
        cache.bytes()
    };
    let mut cache = Cache::new(n_bytes);
    let (key, _) = compute(&mut cache, &model, &prompt(100, 100), &[40]);
    cache.give_back(key);
    let taken = cache.take(&model, &prompt(100, 40));
    assert_eq!((taken, cache.n_tokens(taken)), (key, 40));
    assert_eq!(cache.sequences(&[key])[0].n_tokens(), 40);
    // In use it is not dropped, whatever the budget; its marks are, but for some.
    let mut cache = Cache::new(0);
    let (key, _) = compute(&mut cache, &model, &prompt(100, 100), &[10, 20, 30, 40, 50]);
    cache.evict();
    assert_eq!(cache.n_tokens(key), 100);
    let marks: Vec<usize> = cache.kept[&key].marks.iter().map(|mark| mark.n_tokens()).collect();
    assert_eq!(marks, [10, 50]);
    cache.give_back(key);
    assert_eq!((cache.kept.len(), cache.bytes()), (0, 0));
}

#[test]
fn a_sequence_has_only_so_many_marks_and_copies_share_them() {
    let model = model();
    let mut cache = cache();
    let all: Vec<usize> = (1..60).collect();
    let (key, _) = compute(&mut cache, &model, &prompt(60, 60), &all);
    assert_eq!(cache.kept[&key].marks.len(), N_MARKS);
    let before = cache.bytes();
    let copy = cache.take(&model, &prompt(60, 60));
    // A mark at 59, which is there, and at 1.
    assert_eq!(cache.kept[&copy].marks.len(), N_MARKS);
    let kept = &cache.kept[&copy];
    assert_eq!(cache.bytes() - before, kept.sequence_bytes(), "marks count once");
}
