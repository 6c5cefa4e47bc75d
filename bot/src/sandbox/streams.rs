//! What goes to a command and comes from it: files that are nowhere but in memory, and its two streams, read to their ends.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::Stream;
use super::capture::Capture;

/// The first byte of its own on the stream: the sandbox is complete, and the command waits to be let begin.
pub(super) const READY: u8 = 0;
/// Bytes kept of what is said before it.
const WORDS: usize = 8 << 10;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// A file that is nowhere but in memory, to be read from its start.
pub(super) fn memory(content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("hyla", MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// Reads a stream to its end.
pub(super) async fn read(stream: io::PipeReader, mut capture: Capture) -> io::Result<Stream> {
    let mut stream = Receiver::from_owned_fd(stream.into())?;
    let mut bytes = vec![0; CHUNK];
    loop {
        let n = stream.read(&mut bytes).await?;
        if n == 0 {
            return Ok(capture.finish());
        }
        capture.take(&bytes[..n]);
    }
}

/// Reads an error stream to its end. What comes before the byte that says that the sandbox is complete are the words of
/// whoever made it, and all that is returned if there never is one.
pub(super) async fn read_after_ready(
    stream: io::PipeReader,
    begin: impl FnOnce(),
    mut capture: Capture,
) -> io::Result<Stream> {
    let mut stream = Receiver::from_owned_fd(stream.into())?;
    let mut bytes = vec![0; CHUNK];
    let mut words = Capture::new(WORDS, 0);
    let mut begin = Some(begin);
    loop {
        let n = stream.read(&mut bytes).await?;
        let mut read = &bytes[..n];
        if read.is_empty() {
            return Ok(if begin.is_some() { words.finish() } else { capture.finish() });
        }
        if let Some(waiting) = begin.take() {
            let at = read.iter().position(|byte| *byte == READY);
            words.take(&read[..at.unwrap_or(read.len())]);
            let Some(at) = at else {
                begin = Some(waiting);
                continue;
            };
            waiting();
            read = &read[at + 1..];
        }
        capture.take(read);
    }
}
