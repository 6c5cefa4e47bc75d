//! What goes to a command and comes from it: files that are nowhere but in memory, and its two streams, read to their ends.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::Stream;
use super::arguments::READY;
use super::capture::Capture;

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
