//! The command `hyla model bench`: whether a model runs well on this machine.
//!
//! It measures one sequence alone, as a bot with one job has it. What several sessions gain from being computed together
//! is not shown, nor what text that repeats itself gains from drafts.

mod table;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::bail;
use engine::backend::cpu::{self, Dtype, Isa};
use engine::measure::{Growth, bandwidth, peak_bytes, per_second, reset_peak};
use engine::{Checkpoint, Shape, Summary};
use serde::Serialize;

use super::local::name_of;
use super::serve::{count, some_threads};

/// Tokens of the prompt that is timed: as many as the engine computes in one batch.
const PROMPT: usize = 512;
/// Tokens that are timed one by one at each depth: enough to make one interruption small, and still seconds.
const ANSWER: usize = 16;
/// Tokens that a turn of a session reads: some pages of a file or of a test run. An assumption, which the output names.
const TURN_READS: usize = 1000;
/// Tokens that it writes: a thought and a call. An assumption as well.
const TURN_WRITES: usize = 300;

/// What `hyla model bench` is told.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The model's folder: config.json and safetensors files.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// How weights are kept in memory: any of bf16, int8 and int4, each measured in turn. If left out, as
    /// `hyla model quantize` has written them, and all three of any other folder.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    dtype: Vec<Dtype>,
    /// Threads that compute; one for each core if left out.
    #[arg(long, value_name = "N", value_parser = some_threads)]
    threads: Option<usize>,
    /// Tokens of conversation behind which answers are timed. Each is computed first, which takes its time.
    #[arg(long, value_delimiter = ',', default_value = "0,2048,8192", value_name = "LIST", value_parser = count)]
    depths: Vec<usize>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// What was measured of a model on a machine.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The folder's name.
    model: String,
    parameters: u64,
    isa: String,
    threads: usize,
    /// What plain threads read from memory.
    bandwidth_bytes_per_second: f64,
    prompt_tokens: usize,
    turn: Turn,
    results: Vec<Row>,
}

/// A turn of a session, as it is assumed.
#[derive(Debug, Clone, Copy, Serialize)]
struct Turn {
    /// Behind so many tokens.
    depth: usize,
    reads_tokens: usize,
    writes_tokens: usize,
}

/// One form of the weights.
#[derive(Debug, Clone, Serialize)]
struct Row {
    dtype: &'static str,
    /// From nothing to the first token.
    ready_seconds: f64,
    /// The most memory held until then; none where the system does not tell.
    loading_peak_bytes: Option<u64>,
    /// The most memory held from then on.
    running_peak_bytes: Option<u64>,
    weight_bytes: usize,
    prefill_tokens_per_second: f64,
    decode: Vec<Decode>,
    turn_seconds: f64,
}

/// Answering behind a conversation.
#[derive(Debug, Clone, Copy, Serialize)]
struct Decode {
    depth: usize,
    tokens_per_second: f64,
    /// What the memory's bandwidth allows.
    bound_tokens_per_second: f64,
}

impl Report {
    /// For a person.
    pub fn text(&self) -> String {
        table::text(self)
    }
}

/// Measures; takes minutes. `note` is told what is being done.
///
/// # Errors
/// The model's folder or an argument is not in order.
pub fn run(arguments: &Arguments, note: &dyn Fn(&str)) -> anyhow::Result<Report> {
    let folder = arguments.folder.as_path();
    let summary = Summary::read(folder)?;
    let mut depths = arguments.depths.clone();
    depths.sort_unstable();
    depths.dedup();
    let deepest = depths.last().copied().unwrap_or(0);
    let most = summary.max_positions.saturating_sub(ANSWER);
    if deepest > most {
        bail!(
            "cannot measure at a depth of {deepest} tokens: the model was trained for {}; use at most {most}",
            summary.max_positions
        );
    }
    let threads = arguments.threads.unwrap_or_else(|| engine::Options::default().n_threads);
    note("measuring the memory's bandwidth");
    let bandwidth = bandwidth(threads);
    let dtypes = match Checkpoint::open(folder, &Shape::read(folder)?)?.quantised() {
        _ if !arguments.dtype.is_empty() => arguments.dtype.clone(),
        Some(own) => vec![own.into()],
        None => vec![Dtype::Bf16, Dtype::Int8, Dtype::Int4],
    };
    let measured = |dtype: &Dtype| measure(folder, *dtype, threads, &depths, bandwidth, note);
    Ok(Report {
        model: name_of(folder),
        parameters: summary.parameters,
        isa: format!("{:?}", Isa::detect()).to_lowercase(),
        threads,
        bandwidth_bytes_per_second: bandwidth,
        prompt_tokens: PROMPT,
        turn: Turn { depth: deepest, reads_tokens: TURN_READS, writes_tokens: TURN_WRITES },
        results: dtypes.iter().map(measured).collect::<anyhow::Result<_>>()?,
    })
}

fn measure(
    folder: &Path,
    dtype: Dtype,
    n_threads: usize,
    depths: &[usize],
    bandwidth: f64,
    note: &dyn Fn(&str),
) -> anyhow::Result<Row> {
    let name = dtype.name();
    note(&format!("{name}: loading"));
    reset_peak();
    let begun = Instant::now();
    let model = cpu::Model::load(
        folder,
        &cpu::Options { dtype: Some(dtype), n_threads, isa: Isa::detect() },
    )?;
    // Weights of a mapped file are read from the disk only when they are first used.
    Growth::new(&model).decode(1);
    let ready = begun.elapsed();
    let loading_peak_bytes = peak_bytes();
    reset_peak();
    note(&format!("{name}: a prompt of {PROMPT} tokens"));
    let prefill = per_second(PROMPT, Growth::new(&model).prefill(PROMPT));
    let mut growth = Growth::new(&model);
    let mut decode = Vec::new();
    for &depth in depths {
        note(&format!("{name}: answering behind {depth} tokens"));
        // Depths closer together than an answer are as deep as the answer before left it.
        growth.prefill(depth.saturating_sub(growth.n_tokens()));
        let bound = bandwidth / growth.bytes_of_next_token().max(1) as f64;
        decode.push(Decode {
            depth,
            tokens_per_second: per_second(ANSWER, growth.decode(ANSWER)),
            bound_tokens_per_second: bound,
        });
    }
    let deepest = decode.last().map_or(f64::INFINITY, |decode| decode.tokens_per_second);
    Ok(Row {
        dtype: name,
        ready_seconds: seconds(ready),
        loading_peak_bytes,
        running_peak_bytes: peak_bytes(),
        weight_bytes: model.weight_bytes(),
        prefill_tokens_per_second: prefill,
        decode,
        turn_seconds: TURN_READS as f64 / prefill + TURN_WRITES as f64 / deepest,
    })
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
