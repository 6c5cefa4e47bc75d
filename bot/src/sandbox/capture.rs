//! A stream of a command, kept at its two ends; the middle is counted and forgotten, so a flood costs no memory.

use std::collections::VecDeque;

use super::Stream;

/// Takes bytes as they come.
pub(super) struct Capture {
    stream: Stream,
    tail: VecDeque<u8>,
    head_bytes: usize,
    tail_bytes: usize,
}

impl Capture {
    pub(super) fn new(head_bytes: usize, tail_bytes: usize) -> Self {
        Self { stream: Stream::default(), tail: VecDeque::new(), head_bytes, tail_bytes }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        let room = self.head_bytes - self.stream.head.len();
        let (head, rest) = bytes.split_at(room.min(bytes.len()));
        self.stream.head.extend_from_slice(head);
        let kept = &rest[rest.len().saturating_sub(self.tail_bytes)..];
        let pushed_out = (self.tail.len() + kept.len()).saturating_sub(self.tail_bytes);
        self.tail.drain(..pushed_out);
        self.tail.extend(kept);
        self.stream.dropped_bytes += (pushed_out + rest.len() - kept.len()) as u64;
    }

    pub(super) fn finish(self) -> Stream {
        Stream { tail: self.tail.into(), ..self.stream }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_kept_however_the_bytes_arrive() {
        let bytes: Vec<u8> = (0..=99).collect();
        for size in 1..=100 {
            let mut capture = Capture::new(10, 5);
            bytes.chunks(size).for_each(|piece| capture.take(piece));
            let stream = capture.finish();
            assert_eq!(
                (stream.head.as_slice(), stream.tail.as_slice()),
                (&bytes[..10], &bytes[95..]),
                "in pieces of {size}"
            );
            assert_eq!(stream.dropped_bytes, 85);
        }
        let mut short = Capture::new(10, 5);
        short.take(b"abc");
        let short = short.finish();
        assert_eq!(
            (short.head.as_slice(), short.tail.len(), short.dropped_bytes),
            (&b"abc"[..], 0, 0)
        );
    }
}
