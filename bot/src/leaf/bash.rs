//! `Bash`: one command in the sandbox, its exit code and both streams, cut at the limit.

use std::borrow::Cow;
use std::time::Duration;

use crate::sandbox::{Command, End, Finished, Sandbox, Stream};
use crate::workspace::Workspace;

use super::arguments::Arguments;
use super::text::Cut;
use super::{Failure, Limits};

/// Above it a time limit is in milliseconds, as the original reads it.
const SECONDS_AT_MOST: f64 = 1000.0;

/// The shortest time limit, in seconds.
const SECONDS_AT_LEAST: f64 = 0.1;

/// Linux takes no longer argument: `MAX_ARG_STRLEN` with its final zero.
const SCRIPT_BYTES: usize = 128 * 1024 - 1;

/// What a shell reports for a process that was killed: 128 and the number of `SIGKILL`.
const KILLED: i32 = 137;

pub(super) async fn bash(
    workspace: &Workspace,
    sandbox: &dyn Sandbox,
    limits: &Limits,
    arguments: &Arguments,
) -> Result<String, Failure> {
    let script = arguments.text("command")?.filter(|script| !script.is_empty());
    let script = script.ok_or_else(|| Failure::value("command is required"))?;
    if script.contains('\0') {
        return Err(Failure::value("command contains a NUL byte"));
    }
    if script.len() > SCRIPT_BYTES {
        let message = format!(
            "command is longer than {SCRIPT_BYTES} bytes; write it into a file and run that"
        );
        return Err(Failure::Model { kind: "OSError", message });
    }
    let timeout = timeout(arguments, limits)?;
    let command = Command {
        script: script.to_owned(),
        timeout,
        // A character has at most four bytes: what may be shown is kept, and no more.
        head_bytes: limits.bash_chars.saturating_mul(4),
        ..Command::default()
    };
    let finished = sandbox.run(workspace, &command).await.map_err(Failure::Setup)?;
    Ok(show(&finished, timeout, limits.bash_chars))
}

fn timeout(arguments: &Arguments, limits: &Limits) -> Result<Duration, Failure> {
    let seconds = match arguments.number("timeout")? {
        Some(number) if number > SECONDS_AT_MOST => Some(number / 1000.0),
        Some(number) => Some(number),
        None => arguments.number("timeout_ms")?.map(|number| number / 1000.0),
    };
    let asked = match seconds {
        Some(seconds) => {
            Duration::try_from_secs_f64(seconds.max(SECONDS_AT_LEAST)).unwrap_or(Duration::MAX)
        }
        None => limits.bash_timeout,
    };
    Ok(asked.min(limits.bash_timeout_limit))
}

fn show(finished: &Finished, timeout: Duration, limit_chars: usize) -> String {
    let (first, note) = match finished.end {
        End::Exited(code) => (format!("Exit code: {code}"), ""),
        End::TimedOut => (format!("Timed out after {:.1}s", timeout.as_secs_f64()), ""),
        End::DiskFull => (format!("Exit code: {KILLED}"), "[killed: the disk limit is reached]"),
        End::OutOfMemory => {
            (format!("Exit code: {KILLED}"), "[killed: the memory limit is reached]")
        }
    };
    let mut text = Cut::new(limit_chars);
    text.push(&first);
    text.push("\nSTDOUT:\n");
    push_stream(&mut text, &finished.stdout);
    text.push("\nSTDERR:\n");
    push_stream(&mut text, &finished.stderr);
    if !note.is_empty() && finished.stderr.head.last().is_some_and(|byte| *byte != b'\n') {
        text.push("\n");
    }
    text.push(note);
    text.finish()
}

/// Bytes that were not kept count as characters: their text is gone.
fn push_stream(text: &mut Cut, stream: &Stream) {
    if stream.dropped_bytes == 0 {
        let kept: Cow<'_, [u8]> = match stream.tail.is_empty() {
            true => Cow::Borrowed(&stream.head),
            false => Cow::Owned([stream.head.as_slice(), &stream.tail].concat()),
        };
        text.push(&String::from_utf8_lossy(&kept));
        return;
    }
    text.push(&String::from_utf8_lossy(&stream.head));
    text.cut(stream.dropped_bytes);
    text.push(&String::from_utf8_lossy(&stream.tail));
}
