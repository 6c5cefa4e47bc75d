//! How long callers wait: `cargo bench -p engine --bench latency -- [OPTIONS]`.
//!
//! Prints one line for each figure, `dtype= name= value=`, through the whole engine: batches, cache, drawing, text.
//!
//! - `sessions`: for 1, 2 and 4 turns at once, each a few seconds after the one before, the time to the first token and the
//!   gaps between tokens. Prompts share nothing.
//! - `conversation`: how long the second turn of a conversation takes to its first token, as a part of what the first turn
//!   took. The second prompt is the first one, what was generated, and 64 tokens more.
//! - `busy`: tokens per second of one turn alone, and beside a process that keeps one core busy, in turn.
//!
//! The model is that of the other benchmark, made once in `target/bench`; its folder gets a tokenizer unless it has one. The
//! weights are random, so prompts are ids drawn by chance, and drafts play no part.
//!
//! Options: `--model DIR`, `--dtype int8`, `--tests sessions,conversation,busy`, `--sessions 1,2,4`, `--prompt 512`, `--tokens
//! 32`, `--stagger SECONDS`, `--conversation 8000`, `--rounds 3`, `--threads N`.

#![expect(clippy::print_stdout, reason = "a measurement is printed")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

mod random_model;
mod text_folder;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use engine::backend::cpu::{Dtype, Isa};
use engine::{Engine, Event, Options, Query, Sampling, Shape, Source, Timings};

/// The option with which this program is the busy process.
const SPIN: &str = "--spin";
/// Tokens that a turn adds to its conversation.
const ADDED: usize = 64;
/// Tokens before those whose speed is measured beside a busy process.
const SHORT: usize = 16;
/// Bytes for what turns leave: one long conversation, and no more, because nothing else is read again.
const MEMORY_BYTES: usize = 2 << 30;

struct Arguments {
    model: PathBuf,
    dtype: String,
    tests: Vec<String>,
    sessions: Vec<usize>,
    n_prompt: usize,
    n_tokens: usize,
    stagger: Duration,
    n_conversation: usize,
    n_rounds: usize,
    n_threads: usize,
}

fn main() -> Result<(), String> {
    if std::env::args().any(|word| word == SPIN) {
        spin();
    }
    let arguments = arguments()?;
    random_model::make(&arguments.model, &random_model::published())?;
    let has_text = arguments.model.join("tokenizer.json").exists();
    let made = if has_text { None } else { Some(text_folder::make(&arguments.model)?) };
    let folder = made.as_ref().map_or(arguments.model.as_path(), |made| made.path());
    let options = Options {
        dtype: Some(arguments.dtype.parse().map_err(|error| format!("{error}"))?),
        n_threads: arguments.n_threads,
        n_sessions: arguments.sessions.iter().copied().max().unwrap_or(1),
        memory_bytes: MEMORY_BYTES,
        ..Options::default()
    };
    let n_ids = Shape::read(folder).map_err(|error| error.chain())?.vocab;
    let engine = Engine::open(folder, &options).map_err(|error| error.chain())?;
    println!("isa={:?} threads={}", Isa::detect(), arguments.n_threads);
    let bench = Bench { engine, arguments: &arguments, drawn: Drawn { state: 1, n_ids } };
    bench.run()
}

fn arguments() -> Result<Arguments, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut arguments = Arguments {
        model: folder.join("random-4b"),
        dtype: "int8".into(),
        tests: list("sessions,conversation,busy"),
        sessions: vec![1, 2, 4],
        n_prompt: 512,
        n_tokens: 32,
        stagger: Duration::from_secs(2),
        n_conversation: 8000,
        n_rounds: 3,
        n_threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut given = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(option) = given.next() {
        let value = given.next().ok_or_else(|| format!("`{option}` needs a value"))?;
        let number =
            |text: &str| text.parse::<usize>().map_err(|_| format!("`{text}` is no number"));
        match option.as_str() {
            "--model" => arguments.model = PathBuf::from(value),
            "--dtype" => {
                let dtype: Result<Dtype, _> = value.parse();
                dtype.map_err(|error| error.to_string())?;
                arguments.dtype = value;
            }
            "--tests" => arguments.tests = list(&value),
            "--sessions" => {
                let numbers = value.split(',').map(number);
                arguments.sessions = numbers.collect::<Result<_, _>>()?;
            }
            "--prompt" => arguments.n_prompt = number(&value)?.max(1),
            "--tokens" => arguments.n_tokens = number(&value)?.max(2),
            "--stagger" => {
                let seconds = value.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
                arguments.stagger = seconds.ok_or_else(|| format!("`{value}` is no time"))?;
            }
            "--conversation" => arguments.n_conversation = number(&value)?.max(1),
            "--rounds" => arguments.n_rounds = number(&value)?.max(1),
            "--threads" => arguments.n_threads = number(&value)?.max(1),
            _ => return Err(format!("`{option}` is no option of this benchmark")),
        }
    }
    Ok(arguments)
}

struct Bench<'a> {
    engine: Engine,
    arguments: &'a Arguments,
    drawn: Drawn,
}

/// Prompts that share nothing.
struct Drawn {
    state: u64,
    n_ids: usize,
}

impl Drawn {
    fn ids(&mut self, n_tokens: usize) -> Vec<u32> {
        let one = |_| {
            // Knuth's linear congruential generator for 64 bits.
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005);
            self.state = self.state.wrapping_add(1_442_695_040_888_963_407);
            let id = (self.state >> 33) % self.n_ids as u64;
            u32::try_from(id).unwrap_or_default()
        };
        (0..n_tokens).map(one).collect()
    }
}

/// What one turn looked like to its caller.
struct Seen {
    /// From its start to its first token.
    first: Duration,
    /// Between tokens.
    gaps: Vec<Duration>,
    ids: Vec<u32>,
    timings: Timings,
}

impl Bench<'_> {
    fn run(mut self) -> Result<(), String> {
        for test in self.arguments.tests.clone() {
            match test.as_str() {
                "sessions" => self.sessions()?,
                "conversation" => self.conversation()?,
                "busy" => self.busy()?,
                _ => return Err(format!("`{test}` is no test of this benchmark")),
            }
        }
        Ok(())
    }

    fn print(&self, name: &str, value: f64, unit: &str) {
        println!("dtype={} name={name} value={value:.2} {unit}", self.arguments.dtype);
    }

    fn sessions(&mut self) -> Result<(), String> {
        for &n_sessions in &self.arguments.sessions {
            let prompts: Vec<_> =
                (0..n_sessions).map(|_| self.drawn.ids(self.arguments.n_prompt)).collect();
            let (engine, stagger) = (&self.engine, self.arguments.stagger);
            let n_tokens = self.arguments.n_tokens;
            let seen = std::thread::scope(|scope| -> Result<Vec<Seen>, String> {
                let turns: Vec<_> = (0..)
                    .zip(prompts)
                    .map(|(number, ids)| {
                        scope.spawn(move || {
                            std::thread::sleep(stagger * number);
                            turn(engine, ids, n_tokens, Watch::Pieces)
                        })
                    })
                    .collect();
                let ends = turns.into_iter().map(|turn| turn.join());
                ends.map(|end| end.map_err(|_| "a turn panicked".to_owned())?).collect()
            })?;
            let firsts = seen.iter().map(|seen| seen.first).collect();
            let gaps = seen.into_iter().flat_map(|seen| seen.gaps).collect();
            self.spread("first_token", n_sessions, firsts);
            self.spread("gap", n_sessions, gaps);
        }
        Ok(())
    }

    fn spread(&self, name: &str, n_sessions: usize, mut times: Vec<Duration>) {
        times.sort();
        let last = times.len().saturating_sub(1);
        for (part, at) in [("median", last / 2), ("p95", (last * 95).div_ceil(100)), ("max", last)]
        {
            let value = times.get(at).map_or(f64::NAN, Duration::as_secs_f64);
            self.print(&format!("{name}_{part} sessions={n_sessions}"), value * 1e3, "ms");
        }
    }

    fn conversation(&mut self) -> Result<(), String> {
        let mut ids = self.drawn.ids(self.arguments.n_conversation);
        let first = turn(&self.engine, ids.clone(), self.arguments.n_tokens, Watch::Tokens)?;
        ids.extend(&first.ids);
        ids.extend(self.drawn.ids(ADDED));
        let second = turn(&self.engine, ids, self.arguments.n_tokens, Watch::Tokens)?;
        let (first_s, second_s) = (first.first.as_secs_f64(), second.first.as_secs_f64());
        self.print("first_turn_prefill", first_s, "s");
        self.print("second_turn_prefill", second_s, "s");
        self.print("second_turn_tokens", second.timings.n_prefilled as f64, "tokens");
        self.print("second_turn_part", 100.0 * second_s / first_s, "%");
        Ok(())
    }

    fn busy(&mut self) -> Result<(), String> {
        let (mut alone, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..self.arguments.n_rounds {
            alone.push(self.decode()?);
            let busy = Busy::start()?;
            beside.push(self.decode()?);
            drop(busy);
        }
        let (alone, beside) = (median(alone), median(beside));
        self.print("decode_alone", alone, "tokens/s");
        self.print("decode_beside_busy", beside, "tokens/s");
        self.print("decode_beside_busy_ratio", beside / alone, "of alone");
        Ok(())
    }

    /// Tokens per second of one turn.
    fn decode(&mut self) -> Result<f64, String> {
        let ids = self.drawn.ids(SHORT);
        let seen = turn(&self.engine, ids, self.arguments.n_tokens, Watch::Pieces)?;
        let time: Duration = seen.gaps.iter().sum();
        Ok(seen.gaps.len() as f64 / time.as_secs_f64())
    }
}

/// What tells that a token came.
#[derive(Clone, Copy)]
enum Watch {
    /// Its piece: costs nothing, and a token that is a part of a character comes with the next one.
    Pieces,
    /// Its log probability, which tells its id.
    Tokens,
}

fn turn(engine: &Engine, ids: Vec<u32>, n_tokens: usize, watch: Watch) -> Result<Seen, String> {
    let max_tokens = u32::try_from(n_tokens).unwrap_or(u32::MAX);
    let query = Query {
        source: Source::Ids(ids),
        sampling: Sampling { max_tokens, seed: Some(1), ..Sampling::default() },
        stop_strings: Vec::new(),
        n_logprobs: match watch {
            Watch::Pieces => None,
            Watch::Tokens => Some(0),
        },
    };
    let (sender, events) = channel();
    let begun = Instant::now();
    let started = engine.start(query, move |event| {
        // Nobody listens only if the caller gave up.
        let _ = sender.send((Instant::now(), event));
    });
    let _turn = started.map_err(|error| error.to_string())?;
    let (mut times, mut ids) = (Vec::new(), Vec::new());
    for (time, event) in events {
        match (event, watch) {
            (Event::Piece(_), Watch::Pieces) => times.push(time),
            (Event::Piece(_), Watch::Tokens) => {}
            (Event::Token(token), _) => {
                times.push(time);
                ids.push(token.drawn.id);
            }
            (Event::End(result), _) => {
                let timings = result.map_err(|error| error.to_string())?.timings;
                let first = times.first().ok_or("a turn ended without a token")?;
                let gaps = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
                return Ok(Seen { first: *first - begun, gaps, ids, timings });
            }
        }
    }
    Err("a turn did not end".into())
}

/// A process that keeps one core busy until this is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let child = Command::new(program).arg(SPIN).stdin(Stdio::piped()).spawn();
        child.map(Self).map_err(|error| format!("cannot start a busy process: {error}"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // It also ends by itself when this process is gone.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Keeps one core busy until whoever started this process closes its input.
fn spin() -> ! {
    std::thread::spawn(|| {
        let mut rest = Vec::new();
        let _ = std::io::stdin().read_to_end(&mut rest);
        std::process::exit(0);
    });
    let mut n: u64 = 0;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
