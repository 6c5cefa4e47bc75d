//! A table of results that several threads fill, each in columns of its own.

use std::marker::PhantomData;
use std::ops::Range;

/// [rows, columns] of f32.
#[derive(Clone, Copy)]
pub(super) struct Out<'a> {
    start: *mut f32,
    n_rows: usize,
    n_columns: usize,
    table: PhantomData<&'a mut [f32]>,
}

// SAFETY: `part` is unsafe, and its callers promise that no two threads hold the same values.
unsafe impl Send for Out<'_> {}
// SAFETY: as above.
unsafe impl Sync for Out<'_> {}

impl<'a> Out<'a> {
    /// A table of whole rows.
    pub(super) fn new(values: &'a mut [f32], n_columns: usize) -> Self {
        let n_rows = values.len() / n_columns;
        Self { start: values.as_mut_ptr(), n_rows, n_columns, table: PhantomData }
    }

    /// Some columns of a row.
    ///
    /// # Safety
    /// As long as the slice lives, nobody else holds any of these values.
    ///
    /// # Panics
    /// They lie outside of the table.
    #[inline(always)]
    pub(super) unsafe fn part(self, row: usize, columns: Range<usize>) -> &'a mut [f32] {
        assert!(row < self.n_rows && columns.end <= self.n_columns, "outside of the table");
        // SAFETY: checked to lie inside; the caller promises that nobody else holds it.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.start.add(row * self.n_columns + columns.start),
                columns.end.saturating_sub(columns.start),
            )
        }
    }
}
