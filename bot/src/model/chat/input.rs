//! Where questions come from: a person with a line editor, or the lines of a file or a program.
//!
//! The editor is `rustyline`: a terminal's own line holds 4,095 bytes and ends at the first pasted line end, and a person
//! wants to correct and repeat what was asked. What was asked is kept in memory alone.

use std::io::IsTerminal;

use anyhow::{Context, bail};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Stdin};
use tokio::task::JoinHandle;

use super::signals::{Signal, Signals};

/// Bytes of a line at most, as many as the server takes: far more than a context holds.
const LINE_BYTES: u64 = 8 << 20;
const PROMPT: &str = "> ";
/// Ends the mode in which a terminal tells pasted text from typed text.
const PASTE_OFF: &str = "\x1b[?2004l";

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Somebody asks.
    Question(String),
    /// The conversation starts over.
    Clear,
    /// A person pressed Ctrl-C.
    Interrupt,
    /// There are no more questions.
    End,
    /// Somebody stops the command although there may be more.
    Stop,
}

/// Where questions come from.
pub(super) enum Input {
    /// A terminal on both sides.
    Person(Box<Terminal>),
    /// Everything else.
    Lines(Lines),
}

impl Input {
    pub(super) fn new() -> anyhow::Result<Self> {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            return Ok(Self::Person(Box::new(Terminal::new()?)));
        }
        Ok(Self::Lines(Lines { reader: BufReader::new(tokio::io::stdin()), n_read: 0 }))
    }

    pub(super) fn is_person(&self) -> bool {
        matches!(self, Self::Person(_))
    }

    /// Waits for what comes next. Lines without words are none.
    pub(super) async fn next(&mut self, signals: &mut Signals) -> anyhow::Result<Next> {
        loop {
            let next = match self {
                Self::Person(terminal) => terminal.next(signals).await?,
                Self::Lines(lines) => tokio::select! {
                    next = lines.next() => next?,
                    _ = signals.next() => Next::Stop,
                },
            };
            match next {
                Next::Question(text) => match text.trim() {
                    "" => {}
                    "/clear" => return Ok(Next::Clear),
                    "/quit" => return Ok(Next::End),
                    text => return Ok(Next::Question(text.to_owned())),
                },
                Next::Clear | Next::Interrupt | Next::End | Next::Stop => return Ok(next),
            }
        }
    }
}

/// The lines of the standard input.
pub(super) struct Lines {
    reader: BufReader<Stdin>,
    n_read: usize,
}

impl Lines {
    async fn next(&mut self) -> anyhow::Result<Next> {
        let mut line = Vec::new();
        let mut limited = (&mut self.reader).take(LINE_BYTES + 1);
        let n = limited.read_until(b'\n', &mut line).await;
        if n.context("cannot read the standard input")? == 0 {
            return Ok(Next::End);
        }
        self.n_read += 1;
        let number = self.n_read;
        if line.len() as u64 > LINE_BYTES {
            bail!("cannot ask line {number}: it has more than {LINE_BYTES} bytes; ask less");
        }
        match String::from_utf8(line) {
            Ok(line) => Ok(Next::Question(line)),
            Err(_) => bail!("cannot ask line {number}: it is no text in UTF-8"),
        }
    }
}

type Read = (DefaultEditor, Result<String, ReadlineError>);

/// A terminal, as it was when the command started.
pub(super) struct Terminal {
    /// None while it reads.
    editor: Option<DefaultEditor>,
    reading: Option<JoinHandle<Read>>,
    mode: Termios,
}

impl Terminal {
    fn new() -> anyhow::Result<Self> {
        let cannot = "cannot use the terminal; give questions as lines of the standard input";
        let mode = tcgetattr(std::io::stdin()).context(cannot)?;
        let editor = DefaultEditor::new().context(cannot)?;
        Ok(Self { editor: Some(editor), reading: None, mode })
    }

    async fn next(&mut self, signals: &mut Signals) -> anyhow::Result<Next> {
        let reading = self.reading.get_or_insert_with(|| {
            let mut editor = self.editor.take().expect("it is here unless it reads");
            tokio::task::spawn_blocking(move || {
                let line = editor.readline(PROMPT);
                (editor, line)
            })
        });
        let read = tokio::select! {
            read = reading => read,
            // Ctrl-C is a key for the editor, but where it finds no terminal that it knows, or from another process, it is
            // a signal. The line is still being read.
            signal = signals.next() => return Ok(match signal {
                Signal::Interrupt => Next::Interrupt,
                Signal::Terminate => Next::Stop,
            }),
        };
        self.reading = None;
        let (mut editor, line) = read.context("cannot read from the terminal")?;
        let next = match line {
            Ok(line) => {
                // Whatever cannot be remembered can still be asked.
                let _ = editor.add_history_entry(&line);
                Next::Question(line)
            }
            Err(ReadlineError::Interrupted) => Next::Interrupt,
            Err(ReadlineError::Eof) => Next::End,
            Err(error) => return Err(error).context("cannot read from the terminal"),
        };
        self.editor = Some(editor);
        Ok(next)
    }
}

impl Drop for Terminal {
    /// An editor that still reads has changed the terminal, and nobody else would change it back.
    fn drop(&mut self) {
        if self.reading.is_none() {
            return;
        }
        // There is nobody to tell if the terminal is gone.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.mode);
        let _ = super::print(&format!("{PASTE_OFF}\n"));
    }
}
