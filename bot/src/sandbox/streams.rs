//! What goes to a command and comes from it: files that are nowhere but in memory, and its two streams, read to their ends.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

use super::Stream;
use super::capture::Capture;

/// The first byte of its own on the stream: the sandbox is complete, and the command waits to be let begin.
pub(super) const READY: u8 = 0;

/// A file that is nowhere but in memory, to be read from its start.
pub(super) fn memory(content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("hyla", MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// Reads a stream to its end.
pub(super) async fn read(stream: io::PipeReader, capture: Capture) -> io::Result<Stream> {
    read_with(stream, None, capture).await
}

/// Reads a stream to its end. The first byte may say that the sandbox is complete: then the command is let begin, and the
/// byte is none of its own.
pub(super) async fn read_gated(
    stream: io::PipeReader,
    gate: io::PipeWriter,
    capture: Capture,
) -> io::Result<Stream> {
    read_with(stream, Some(gate), capture).await
}

async fn read_with(
    stream: io::PipeReader,
    mut gate: Option<io::PipeWriter>,
    mut capture: Capture,
) -> io::Result<Stream> {
    let mut stream = Receiver::from_owned_fd(stream.into())?;
    let mut bytes = vec![0; 64 << 10];
    loop {
        let n = stream.read(&mut bytes).await?;
        let mut read = &bytes[..n];
        if read.is_empty() {
            return Ok(capture.finish());
        }
        if let Some(mut gate) = gate.take()
            && read[0] == READY
        {
            read = &read[1..];
            // Whoever has died meanwhile does not read it.
            let _ = gate.write_all(b"\n");
        }
        capture.take(read);
    }
}

/// Reads an error stream to its end. What comes before the byte that says that the container is complete are the engine's
/// own words, and all that is returned if there never is one.
pub(super) async fn read_after_ready(
    stream: io::PipeReader,
    say_ready: oneshot::Sender<()>,
    mut words: Capture,
    mut capture: Capture,
) -> io::Result<Stream> {
    let mut stream = Receiver::from_owned_fd(stream.into())?;
    let mut bytes = vec![0; 64 << 10];
    let mut say_ready = Some(say_ready);
    loop {
        let n = stream.read(&mut bytes).await?;
        let mut read = &bytes[..n];
        if read.is_empty() {
            return Ok(if say_ready.is_some() { words.finish() } else { capture.finish() });
        }
        if say_ready.is_some() {
            let at = read.iter().position(|byte| *byte == READY);
            let before = &read[..at.unwrap_or(read.len())];
            words.take(before);
            let Some(at) = at else { continue };
            read = &read[at + 1..];
            // Whoever waits may have given up.
            let _ = say_ready.take().map(|say| say.send(()));
        }
        capture.take(read);
    }
}
