//! Reads of a cache against plain softmax.

use super::read::{Read, n_together};
use super::*;
use crate::backend::cpu::noise::values;

/// What a query that sees `n` tokens reads.
fn plain(query: &[f32], keys: &[f32], values: &[f32], n: usize) -> Vec<f64> {
    let head = query.len();
    let dot = |key: &[f32]| -> f64 {
        key.iter().zip(query).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let scores: Vec<f64> = keys.chunks_exact(head).take(n).map(dot).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut read = vec![0.0; head];
    for (weight, values) in weights.iter().zip(values.chunks_exact(head)) {
        read.iter_mut().zip(values).for_each(|(to, value)| *to += weight / sum * f64::from(*value));
    }
    read
}

/// Reads 19 tokens, over several blocks and from the first token on, together and one by one.
fn check<E: Element>(head: usize, n_heads: usize, n_before: usize, limit: f64) {
    let (n_tokens, n_all) = (19, n_before + 19);
    let (keys, rows) = (values(n_all * head, 1), values(n_all * head, 2));
    let mut cache = Cache::<E>::new();
    for (key, value) in keys.chunks_exact(head).zip(rows.chunks_exact(head)) {
        cache.append(key, value);
    }
    let width = n_heads * head;
    let queries = values(n_tokens * width, 3);
    for isa in Isa::available() {
        let read = |first: usize, n_tokens: usize| {
            let read = Read {
                cache: &cache,
                queries: &queries[first * width..(first + n_tokens) * width],
                width,
                head,
                first_head: 0,
                n_heads,
                n_tokens,
                n_visible: n_before + first + 1,
            };
            let whole = read.all(isa);
            let mut out = vec![0.0; n_tokens * width];
            for (row, out) in out.chunks_exact_mut(head).enumerate() {
                // A gate of 1.
                whole.finish(isa, row, &vec![100.0; head], out);
            }
            out
        };
        let size = n_together::<E>(isa, head);
        for first in (0..n_tokens).step_by(size) {
            let together = read(first, size.min(n_tokens - first));
            for (at, token) in together.chunks_exact(width).enumerate() {
                assert!(read(first + at, 1) == token, "{isa:?} token {}", first + at);
                for (at_head, row) in token.chunks_exact(head).enumerate() {
                    let from = (first + at) * width + at_head * head;
                    let exact =
                        plain(&queries[from..from + head], &keys, &rows, n_before + first + at + 1);
                    for (value, exact) in row.iter().zip(exact) {
                        let error = (f64::from(*value) - exact).abs();
                        assert!(
                            error < limit,
                            "{isa:?} token {}: {value}, not {exact}",
                            first + at
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_read_is_the_softmax_and_the_same_alone_and_together() {
    for n_before in [0, 240, 1000] {
        check::<f32>(64, 4, n_before, 1e-5);
        check::<u16>(64, 4, n_before, 0.02);
        check::<u16>(32, 3, n_before, 0.02);
        check::<u16>(20, 1, n_before, 0.02);
    }
}

#[test]
fn a_cache_takes_little_more_memory_than_what_lies_in_it() {
    let mut cache = Cache::<u16>::new();
    let mut n_moved = 0;
    for n_tokens in 1..=4000 {
        let before = cache.bytes();
        cache.append(&[1.0; 32], &[1.0; 32]);
        n_moved += usize::from(cache.bytes() > before);
        // Keys of 16 tokens and values of 32 are the least.
        let needed = n_tokens * 32 * 2 * 2;
        assert!(cache.live_bytes() >= needed && cache.live_bytes() <= needed + 48 * 64);
        assert!(cache.bytes() <= cache.live_bytes() + cache.live_bytes() / 8 + 64);
    }
    // It grows by a part of itself, so seldom.
    assert!(n_moved < 100, "{n_moved}");
}

#[test]
fn what_was_cut_off_leaves_nothing() {
    let mut cache = Cache::<u16>::new();
    let append =
        |cache: &mut Cache<u16>, seed| cache.append(&values(24, seed), &values(24, seed + 1));
    (0..50).for_each(|seed| append(&mut cache, seed));
    let (prefix, whole) = (cache.prefix(37, 24), cache.table(24));
    cache.truncate(37, 24);
    assert_eq!(cache.table(24), prefix.table(24));
    assert_eq!(cache.table(24).0, whole.0[..37 * 24]);
    (37..50).for_each(|seed| append(&mut cache, seed));
    assert_eq!(cache.table(24), whole);
}
