//! Plain values in a row, owned or where they lie in a mapped file.

use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

use memmap2::Mmap;

use super::scratch::Bits;
use crate::checkpoint::Mapped;

/// A value that is in a file as on a little-endian machine.
pub(super) trait Plain: Bits {
    /// A value of its bytes in a file, which are as many as it has.
    fn read(bytes: &[u8]) -> Self;
}

/// Values.
pub(super) struct Values<T> {
    values: *const [T],
    /// None if they are their own.
    map: Option<Arc<Mmap>>,
}

// SAFETY: the values are only read, and given back once.
unsafe impl<T: Send + Sync> Send for Values<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Values<T> {}

impl<T: Plain> Values<T> {
    #[cfg(test)]
    pub(super) fn is_mapped(&self) -> bool {
        self.map.is_some()
    }

    /// Takes whole values where they lie in a file, or copies them if this machine cannot read them in place.
    pub(super) fn mapped(bytes: &Mapped) -> Self {
        let (size, first) = (size_of::<T>(), bytes.as_ptr().cast::<T>());
        debug_assert!(bytes.len().is_multiple_of(size));
        if !first.is_aligned() || cfg!(target_endian = "big") {
            return bytes.chunks_exact(size).map(T::read).collect::<Vec<T>>().into();
        }
        // The range lies in the map, the first value is aligned, and any bits are a value.
        let values = ptr::slice_from_raw_parts(first, bytes.len() / size);
        Self { values, map: Some(bytes.map().clone()) }
    }
}

impl<T> From<Vec<T>> for Values<T> {
    fn from(values: Vec<T>) -> Self {
        Self { values: Box::into_raw(values.into_boxed_slice()), map: None }
    }
}

impl<T> Deref for Values<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: they are values, of `From` or checked by `mapped`, and live as long as this.
        unsafe { &*self.values }
    }
}

impl<T> Drop for Values<T> {
    fn drop(&mut self) {
        if self.map.is_none() {
            // SAFETY: `From` has made it of a box, and nobody else has it.
            drop(unsafe { Box::from_raw(self.values.cast_mut()) });
        }
    }
}

impl Plain for u16 {
    fn read(bytes: &[u8]) -> Self {
        Self::from_le_bytes([bytes[0], bytes[1]])
    }
}

impl<const N: usize> Plain for [u16; N] {
    fn read(bytes: &[u8]) -> Self {
        std::array::from_fn(|at| u16::read(&bytes[2 * at..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::matrix::Line;

    fn mapped(skipped: usize) -> Mapped {
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..=255).collect();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        Mapped::of_file(&file, skipped..skipped + 128)
    }

    #[test]
    fn values_are_used_where_they_lie_or_copied_where_they_cannot_be() {
        for (skipped, in_place) in [(64, true), (0, true), (32, false), (1, false)] {
            let bytes = mapped(skipped);
            let lines: Values<Line> = Values::mapped(&bytes);
            assert_eq!(lines.is_mapped(), in_place, "{skipped}");
            assert_eq!([lines[0].0, lines[1].0].concat(), *bytes, "{skipped}");
        }
        let numbers: Values<u16> = Values::mapped(&mapped(2));
        assert_eq!((numbers.len(), numbers[0], numbers[1]), (64, 0x0302, 0x0504));
        let pairs: Values<[u16; 2]> = Values::mapped(&mapped(1));
        assert_eq!((pairs.len(), pairs[0]), (32, [0x0201, 0x0403]));
    }
}
