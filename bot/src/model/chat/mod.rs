//! The command `hyla model chat`: a conversation with a model in this process, at a terminal or by lines on the standard
//! input.
//!
//! Answers go to the standard output and all that is said about them to the standard error stream. Nothing is kept on the
//! disk. The model has no tools here.

mod input;
mod screen;
mod signals;
mod talk;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use engine::backend::cpu::Dtype;
use engine::{Engine, Event, Failure, Finished, Query, Refused, Sampling};

use super::local::{self, name_of};
use super::serve::{at_least_one, some_threads};
use crate::halt::chain;
use crate::reply;
use input::{Input, Next};
use screen::{Reasoning, Screen, Style};
use signals::{Signal, Signals};
use talk::Talk;

/// Bytes of a file with a system message at most; a longer one is no instruction.
const SYSTEM_BYTES: u64 = 1 << 20;

/// What `hyla model chat` is told.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The model's folder: config.json, safetensors files, tokenizer.json and chat_template.jinja.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// How weights are kept in memory: bf16, int8 or int4. If left out, as `hyla model quantize` has written them, and as bf16
    /// in any other folder.
    #[arg(long)]
    dtype: Option<Dtype>,
    /// Threads that compute; one for each core if left out.
    #[arg(long, value_name = "N", value_parser = some_threads)]
    threads: Option<usize>,
    /// Tokens of the whole conversation, at most.
    #[arg(long, value_name = "N", default_value = "131072", value_parser = at_least_one)]
    context: usize,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// A text file with the same.
    #[arg(long, value_name = "FILE", conflicts_with = "system")]
    system_file: Option<PathBuf>,
    /// Tokens of an answer at most, reasoning included.
    #[arg(long, value_name = "N", default_value = "8192", value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// How freely words are chosen, from 0 (always the likeliest) to 2.
    #[arg(long, value_name = "X", default_value = "0.6", value_parser = temperature)]
    temperature: f32,
    /// Only the likeliest tokens that together have this probability, from 0 to 1.
    #[arg(long, value_name = "X", default_value = "0.95", value_parser = probability)]
    top_p: f32,
    /// Only so many of the likeliest tokens; 0 is all of them.
    #[arg(long, value_name = "N", default_value_t = 20)]
    top_k: u32,
    /// A number that makes the same questions have the same answers.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Do not show what the model thinks before it answers.
    #[arg(long)]
    no_reasoning: bool,
}

fn temperature(text: &str) -> Result<f32, String> {
    within(text, 2.0)
}

fn probability(text: &str) -> Result<f32, String> {
    match within(text, 1.0)? {
        number if number < f32::MIN_POSITIVE => Err("it must be above 0".into()),
        number => Ok(number),
    }
}

fn within(text: &str, most: f32) -> Result<f32, String> {
    let number = text.parse().map_err(|error| format!("{error}"))?;
    if !(0.0..=most).contains(&number) {
        return Err(format!("it must be from 0 to {most}"));
    }
    Ok(number)
}

impl Arguments {
    fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            seed: self.seed,
            max_tokens: self.max_tokens,
            ..Sampling::default()
        }
    }

    fn system(&self) -> anyhow::Result<Option<String>> {
        let Some(file) = &self.system_file else { return Ok(self.system.clone()) };
        let cannot = || format!("cannot use --system-file `{}`", file.display());
        let size = std::fs::metadata(file).with_context(cannot)?.len();
        if size > SYSTEM_BYTES {
            bail!("{}: it has {size} bytes, more than {SYSTEM_BYTES}", cannot());
        }
        std::fs::read_to_string(file).map(Some).with_context(cannot)
    }

    async fn open(&self) -> anyhow::Result<Engine> {
        let usual = engine::Options::default();
        let options = engine::Options {
            dtype: self.dtype,
            n_threads: self.threads.unwrap_or(usual.n_threads),
            n_sessions: 1,
            context_tokens: self.context,
            ..usual
        };
        let folder = self.folder.clone();
        let open = move || Engine::open(&folder, &options);
        Ok(tokio::task::spawn_blocking(open).await.context("cannot load the model")??)
    }
}

/// Talks until the person or the input ends it.
///
/// # Errors
/// An argument or the folder is not in order, a line of the standard input has no answer, or the command was stopped.
pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    let mut talk = Talk::new(arguments.system()?, arguments.sampling());
    let mut input = Input::new()?;
    let is_person = input.is_person();
    if is_person {
        tell(&format!("loading {}\n", name_of(&arguments.folder)));
    }
    let engine = tokio::select! {
        engine = arguments.open() => engine?,
        _ = signals.next() => bail!("stopped while the model was loading"),
    };
    if is_person {
        tell("Ctrl-C stops an answer; /clear starts over; /quit or Ctrl-D ends\n");
    }
    let reasoning = if arguments.no_reasoning { Reasoning::Hidden } else { Reasoning::Shown };
    // Whether the next Ctrl-C ends the command: the one before has just been said to do nothing more.
    let mut is_warned = false;
    loop {
        let question = match input.next(&mut signals).await? {
            Next::Question(question) => question,
            Next::Clear => {
                talk.clear();
                is_warned = false;
                tell("the conversation starts over\n");
                continue;
            }
            Next::Interrupt if !is_warned => {
                is_warned = true;
                tell("Ctrl-C once more, or Ctrl-D, ends\n");
                continue;
            }
            Next::Interrupt | Next::End => return Ok(()),
            Next::Stop => bail!("stopped before the end of the conversation"),
        };
        let mut screen = Screen::new(style(), reasoning);
        let answered = answer(&engine, talk.query(&question), &mut screen, &mut signals).await?;
        print(&screen.end())?;
        is_warned = matches!(answered, Answered::Interrupted) && is_person;
        match answered {
            Answered::Whole(finished) => {
                tell(&screen::figures(&finished, arguments.max_tokens));
                talk.keep(question, &finished.reply);
            }
            Answered::Interrupted if is_person => {
                let kept = talk.keep_part(question, screen.into_answer());
                tell(&format!("stopped; {kept}; Ctrl-C once more ends\n"));
            }
            Answered::Interrupted | Answered::Stopped => {
                bail!("stopped before the end of the conversation")
            }
            Answered::Refused(refused) if is_person => {
                tell(&format!("hyla: {}; {}\n", chain(&refused), advice(&refused)));
            }
            Answered::Refused(refused) => bail!("{}; {}", chain(&refused), advice(&refused)),
            Answered::Failed(failure) => bail!(failure),
        }
    }
}

/// How a question ended.
enum Answered {
    Whole(Box<Finished>),
    /// By Ctrl-C.
    Interrupted,
    /// By somebody who stops the whole command.
    Stopped,
    Refused(Refused),
    Failed(Failure),
}

/// Shows an answer as it comes. It ends only once the engine has nothing more to do with it.
async fn answer(
    engine: &Engine,
    query: Query,
    screen: &mut Screen,
    signals: &mut Signals,
) -> anyhow::Result<Answered> {
    let (turn, mut events) = match local::start(engine, query).await {
        Ok(Ok(started)) => started,
        Ok(Err(refused)) => return Ok(Answered::Refused(refused)),
        Err(failure) => return Ok(Answered::Failed(failure)),
    };
    let mut is_interrupted = false;
    loop {
        let event = tokio::select! {
            biased;
            signal = signals.next() => match signal {
                Signal::Interrupt => {
                    is_interrupted = true;
                    turn.cancel();
                    continue;
                }
                Signal::Terminate => return Ok(Answered::Stopped),
            },
            event = events.recv() => event,
        };
        match event {
            // What was on its way when it was stopped is not wanted any more.
            Some(Event::Piece(_) | Event::Token(_)) if is_interrupted => {}
            Some(Event::Piece(piece)) => print(&screen.piece(piece))?,
            Some(Event::Token(_)) => {}
            // It may have come to its end by itself at the same moment.
            Some(Event::End(Ok(finished))) if !is_interrupted => {
                return Ok(Answered::Whole(Box::new(finished)));
            }
            Some(Event::End(Ok(_) | Err(Failure::Cancelled))) => return Ok(Answered::Interrupted),
            Some(Event::End(Err(failure))) => return Ok(Answered::Failed(failure)),
            None => return Ok(Answered::Failed(Failure::Closed)),
        }
    }
}

/// What a person does about it.
fn advice(refused: &Refused) -> &'static str {
    match refused {
        Refused::TooLong { .. } => "ask less, start over with /clear, or give --context more",
        Refused::Encode(_) => "ask in other words",
        Refused::Busy { .. }
        | Refused::Empty
        | Refused::NoTool
        | Refused::UnknownToken(_)
        | Refused::Closed => "start the command again",
    }
}

fn style() -> Style {
    if std::io::stdout().is_terminal() { Style::Terminal } else { Style::Plain }
}

/// Text that is harmless already.
fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.context("cannot write the answer")
}

/// Words about the conversation, dimmed at a terminal.
fn tell(text: &str) {
    let text = reply::lines(text);
    let mut stderr = std::io::stderr().lock();
    let text = if stderr.is_terminal() { screen::dimmed(&text) } else { text };
    // A closed stream is no reason to stop the conversation.
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}
