//! Tables that one forward pass leaves for the next. A fresh table of some megabytes is handed out by the system page by
//! page, each cleared first; for a prompt of 512 tokens that took as long as a tenth of its arithmetic.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::{Mutex, PoisonError};

use super::matrix::Line;

/// Tables that are kept: more than a layer needs at a time.
const KEPT: usize = 24;

/// A stock of tables that nobody uses. They begin at a line of the cache, as vectors and tiles that cross lines are read
/// at half the speed.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// In the order of their sizes.
    free: Mutex<Vec<Vec<Line>>>,
}

/// A table that goes back into its stock.
#[derive(Debug)]
pub(super) struct Table<'s, T> {
    lines: Vec<Line>,
    n: usize,
    home: &'s Scratch,
    values: PhantomData<T>,
}

/// Values of which any bits are one, with an alignment of no more than a line's.
///
/// # Safety
/// As it says, without padding.
pub(super) unsafe trait Bits: Copy {}

// SAFETY: any four bytes are an f32.
unsafe impl Bits for f32 {}
// SAFETY: any two bytes are a u16.
unsafe impl Bits for u16 {}
// SAFETY: any four bytes are an i32.
unsafe impl Bits for i32 {}
// SAFETY: any byte is an i8.
unsafe impl Bits for i8 {}
// SAFETY: as one of them.
unsafe impl<T: Bits, const N: usize> Bits for [T; N] {}

impl Scratch {
    /// A table of `n` values. What they are is left over from whoever had it before.
    pub(super) fn table<T: Bits>(&self, n: usize) -> Table<'_, T> {
        let n_lines = (n * size_of::<T>()).div_ceil(size_of::<Line>());
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.partition_point(|lines| lines.len() < n_lines);
        let kept = if at < free.len() { Some(free.remove(at)) } else { free.pop() };
        drop(free);
        let lines = kept.filter(|lines| lines.len() >= n_lines);
        let lines = lines.unwrap_or_else(|| vec![Line([0; 64]); n_lines]);
        Table { lines, n, home: self, values: PhantomData }
    }
}

impl<T: Bits> Deref for Table<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: there are lines for `n` values, aligned for them, and any bits are values.
        unsafe { from_raw_parts(self.lines.as_ptr().cast(), self.n) }
    }
}

impl<T: Bits> DerefMut for Table<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; any values are lines.
        unsafe { from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.n) }
    }
}

impl<T> Drop for Table<'_, T> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.partition_point(|other| other.len() < lines.len());
        free.insert(at, lines);
        if free.len() > KEPT {
            free.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_table_that_is_large_enough_is_used_again() {
        let scratch = Scratch::default();
        let sizes = |scratch: &Scratch| -> Vec<usize> {
            scratch.free.lock().unwrap().iter().map(Vec::len).collect()
        };
        let tables = [160, 480, 320].map(|n| scratch.table::<f32>(n));
        assert_eq!(tables.each_ref().map(|table| table.len()), [160, 480, 320]);
        drop(tables);
        assert_eq!(sizes(&scratch), [10, 20, 30]);
        let mut table = scratch.table::<u16>(11 * 32 - 1);
        table.fill(7);
        assert_eq!((table.len(), sizes(&scratch)), (11 * 32 - 1, vec![10, 30]));
        // One that is too small makes room for a larger one.
        let larger = scratch.table::<[i8; 64]>(40);
        assert_eq!((larger.len(), sizes(&scratch)), (40, vec![10]));
        drop((table, larger));
        assert_eq!(sizes(&scratch), [10, 20, 40]);
        assert!(scratch.table::<i32>(0).is_empty());
    }

    #[test]
    fn only_some_tables_are_kept() {
        let scratch = Scratch::default();
        drop((0..2 * KEPT).map(|n| scratch.table::<f32>(16 * n)).collect::<Vec<_>>());
        let free = scratch.free.lock().unwrap();
        assert_eq!((free.len(), free[0].len()), (KEPT, KEPT));
    }
}
