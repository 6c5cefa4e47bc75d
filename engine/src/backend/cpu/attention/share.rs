//! The reads of a batch, shared by threads: neighbouring tokens of a key head together, and where those are few, a long context
//! in pieces.
//!
//! A piece is a branch of the tree in which blocks are put together, so the result is the same, bit for bit, however many
//! there are. There are never more pieces than give each thread some, whatever the depth: each takes memory.

use super::Cache;
use super::read::{self, HEADS, Read, Tree, n_together};
use crate::AttentionShape;
use crate::backend::cpu::linear::Machine;
use crate::backend::cpu::out::Out;
use crate::backend::cpu::rows::Element;
use crate::backend::cpu::scratch::Table;

/// Pieces for each thread at most: enough that a thread which comes late leaves little to the others.
const PIECES: usize = 8;

/// The rows of one step.
#[derive(Clone, Copy)]
pub(in crate::backend::cpu) struct Part {
    pub(in crate::backend::cpu) first_row: usize,
    pub(in crate::backend::cpu) n_tokens: usize,
    /// Tokens of the sequence before these.
    pub(in crate::backend::cpu) n_before: usize,
}

/// What is read for a batch.
pub(in crate::backend::cpu) struct Reads<'a, 'c, E> {
    pub(in crate::backend::cpu) sizes: &'a AttentionShape,
    /// One for each step.
    pub(in crate::backend::cpu) parts: &'a [Part],
    /// For each step, one for each key head.
    pub(in crate::backend::cpu) caches: &'a [&'c mut [Cache<E>]],
    /// [rows, heads * head], normed, rotated and scaled.
    pub(in crate::backend::cpu) queries: &'a [f32],
    /// [rows, heads * 2 * head]: each head's query is followed by its gate.
    pub(in crate::backend::cpu) both: &'a [f32],
}

/// Some neighbouring tokens and up to [`HEADS`] query heads of one key head.
struct Place {
    step: usize,
    /// Of the first token.
    row: usize,
    n_tokens: usize,
    kv_head: usize,
    /// Of all query heads.
    first_head: usize,
    n_heads: usize,
    /// Tokens that the first one sees.
    n_visible: usize,
}

impl<E: Element> Reads<'_, '_, E> {
    /// The softmax reads of all rows, gated: [rows, queries].
    pub(in crate::backend::cpu) fn run<'m>(&self, machine: &'m Machine) -> Table<'m, f32> {
        let isa = machine.isa;
        let mut mixed = machine.table(self.queries.len());
        let out = Out::new(&mut mixed, self.sizes.queries());
        let places = self.places(n_together::<E>(isa, self.sizes.head));
        let counts: Vec<usize> = places.iter().map(|place| self.read(place).n_blocks()).collect();
        let size = piece(&counts, PIECES * machine.pool.n_threads());
        if counts.iter().all(|n_blocks| *n_blocks <= size) {
            machine.pool.run(places.len(), &|at| {
                let whole = self.read(&places[at]).all(isa);
                // SAFETY: every place is read once.
                unsafe { self.finish(machine, &places[at], &whole, out) };
            });
            return mixed;
        }
        let mut pieces = Vec::new();
        for (place, n_blocks) in places.iter().zip(&counts) {
            let starts = (0..*n_blocks).step_by(size);
            pieces.extend(starts.map(|from| (place, from..(from + size).min(*n_blocks), None)));
        }
        machine.pool.each(&mut pieces, |(place, blocks, part)| {
            *part = Some(self.read(place).blocks(isa, blocks.clone()));
        });
        let mut left = pieces.into_iter().filter_map(|(_, _, part)| part);
        let mut wholes: Vec<(&Place, Vec<read::Part>)> = places
            .iter()
            .zip(&counts)
            .map(|(place, n)| (place, left.by_ref().take(n.div_ceil(size)).collect()))
            .collect();
        machine.pool.each(&mut wholes, |(place, parts)| {
            let mut tree = Tree::default();
            parts.drain(..).for_each(|part| tree.push(isa, part));
            // SAFETY: every place is finished once.
            unsafe { self.finish(machine, place, &tree.root(isa), out) };
        });
        mixed
    }

    fn read(&self, place: &Place) -> Read<'_, E> {
        let (head, width) = (self.sizes.head, self.sizes.queries());
        Read {
            cache: &self.caches[place.step][place.kv_head],
            queries: &self.queries[place.row * width..(place.row + place.n_tokens) * width],
            width,
            head,
            first_head: place.first_head,
            n_heads: place.n_heads,
            n_tokens: place.n_tokens,
            n_visible: place.n_visible,
        }
    }

    /// Writes what a place has read.
    ///
    /// # Safety
    /// Nobody else holds the columns of its heads in its rows.
    unsafe fn finish(&self, machine: &Machine, place: &Place, whole: &read::Part, out: Out<'_>) {
        let head = self.sizes.head;
        for at in 0..place.n_tokens * place.n_heads {
            let row = place.row + at / place.n_heads;
            let number = place.first_head + at % place.n_heads;
            let gates = &self.both[(row * self.sizes.n_heads + number) * 2 * head + head..][..head];
            // SAFETY: the caller's promise.
            let out = unsafe { out.part(row, number * head..(number + 1) * head) };
            whole.finish(machine.isa, at, gates, out);
        }
    }

    fn places(&self, n_together: usize) -> Vec<Place> {
        let group = self.sizes.n_heads / self.sizes.n_kv_heads;
        let mut places = Vec::new();
        for (step, part) in self.parts.iter().enumerate() {
            // Key head by key head, so that neighbours read the same cache.
            for kv_head in 0..self.sizes.n_kv_heads {
                for token in (0..part.n_tokens).step_by(n_together) {
                    for from in (0..group).step_by(HEADS) {
                        places.push(Place {
                            step,
                            row: part.first_row + token,
                            n_tokens: n_together.min(part.n_tokens - token),
                            kv_head,
                            first_head: kv_head * group + from,
                            n_heads: HEADS.min(group - from),
                            n_visible: part.n_before + token + 1,
                        });
                    }
                }
            }
        }
        places
    }
}

/// Blocks of a piece, a power of two: the fewest with which there are no more pieces than `most`, or one for each place.
fn piece(counts: &[usize], most: usize) -> usize {
    let n_pieces = |size: usize| counts.iter().map(|n| n.div_ceil(size)).sum::<usize>();
    let mut size = 1;
    while n_pieces(size) > most.max(counts.len()) {
        size *= 2;
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_context_is_shared_until_each_thread_has_some_pieces_and_no_further() {
        for (counts, most, expected) in [
            (vec![32; 4], 16, 8),
            (vec![33; 4], 16, 16),
            (vec![1; 4], 16, 1),
            (vec![4, 1, 1, 1], 16, 1),
            (vec![512; 4], 128, 16),
            // Many places are not shared at all, however deep they are.
            (vec![512; 124], 128, 512),
            (vec![512; 500], 128, 512),
            (vec![], 16, 1),
        ] {
            let size = piece(&counts, most);
            assert_eq!(size, expected, "{counts:?} {most}");
            let n_pieces: usize = counts.iter().map(|n| n.div_ceil(size)).sum();
            assert!(n_pieces <= most.max(counts.len()));
        }
    }
}
