//! Speed beside llama.cpp, measured in turn in one run: `cargo bench -p engine --bench compare -- [OPTIONS]`.
//!
//! Prints one line for each measurement: `dtype= test= ours= llama= ratio=`, in tokens per second, the median of the rounds.
//! Tests are `pp512` (a prompt of 512 tokens), `tg16` (16 tokens one by one) and `tg16@8192` (the same behind 8,192 others). For
//! decoding, `GB/s=` is what was read and written of weights, cache and states, to be held against `bandwidth=`, which plain
//! threads read right after each round; `peak=` is the most memory of a test.
//!
//! Below each test, from one more round, what the stages of a forward pass cost: `dtype= test= stage= ms= share= GB/s=`.
//!
//! The model has the real 4B shape and random weights; it is made once in `target/bench` (8.4 GB). `engine/benches/llama.sh` puts
//! llama.cpp and its files there; without them `llama=none`.
//!
//! Options: `--model DIR`, `--dtypes bf16,int8,int4`, `--tests pp512,tg16,tg16@512,tg16@2048,tg16@8192,tg16@32768`, `--rounds 3`,
//! `--threads N`, `--llama FOLDER`. All of it takes hours, most of them at the largest depth.

#![expect(clippy::print_stdout, reason = "a measurement is printed")]
#![expect(clippy::cast_precision_loss, reason = "figures for people")]

mod random_model;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use engine::backend::cpu::{Dtype, Isa, Model, Options};
use engine::measure::{Cost, Growth, bandwidth, peak_bytes, per_second, reset_peak};

struct Arguments {
    model: PathBuf,
    llama: PathBuf,
    dtypes: Vec<String>,
    tests: Vec<String>,
    n_rounds: usize,
    n_threads: usize,
}

fn main() -> Result<(), String> {
    let arguments = arguments()?;
    random_model::make(&arguments.model, &random_model::published())?;
    println!("isa={:?} threads={}", Isa::detect(), arguments.n_threads);
    for name in &arguments.dtypes {
        let dtype: Dtype = name.parse().map_err(|error| format!("{error}"))?;
        reset_peak();
        let begun = Instant::now();
        let options =
            Options { dtype: Some(dtype), n_threads: arguments.n_threads, isa: Isa::detect() };
        let model = Model::load(&arguments.model, &options).map_err(|error| error.chain())?;
        println!(
            "dtype={name} test=load seconds={:.1} weights={:.2} GB peak={:.2} GB",
            begun.elapsed().as_secs_f64(),
            model.weight_bytes() as f64 / 1e9,
            peak_gigabytes()
        );
        for test in &arguments.tests {
            compare(&arguments, &model, name, &Test::parse(test)?)?;
        }
    }
    Ok(())
}

fn arguments() -> Result<Arguments, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
    let mut arguments = Arguments {
        model: folder.join("random-4b"),
        llama: folder,
        dtypes: list("bf16,int8,int4"),
        tests: list("pp512,tg16,tg16@512,tg16@2048,tg16@8192,tg16@32768"),
        n_rounds: 3,
        n_threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let mut given = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(option) = given.next() {
        let value = given.next().ok_or_else(|| format!("`{option}` needs a value"))?;
        let number = || value.parse().map_err(|_| format!("`{value}` is no number"));
        match option.as_str() {
            "--model" => arguments.model = PathBuf::from(value),
            "--llama" => arguments.llama = PathBuf::from(value),
            "--dtypes" => arguments.dtypes = list(&value),
            "--tests" => arguments.tests = list(&value),
            "--rounds" => arguments.n_rounds = number()?,
            "--threads" => arguments.n_threads = number()?,
            _ => return Err(format!("`{option}` is no option of this benchmark")),
        }
    }
    Ok(arguments)
}

/// What is measured: `pp` or `tg`, a number of tokens, and how many lie before them.
struct Test {
    name: String,
    is_prefill: bool,
    n_tokens: usize,
    depth: usize,
}

impl Test {
    fn parse(name: &str) -> Result<Self, String> {
        let wrong = || format!("`{name}` is no test: use pp512, tg16 or tg16@8192");
        let (kind, rest) = name.split_at_checked(2).ok_or_else(wrong)?;
        let (n, depth) = rest.split_once('@').unwrap_or((rest, "0"));
        let number = |text: &str| text.parse().map_err(|_| wrong());
        let is_prefill = match kind {
            "pp" => true,
            "tg" => false,
            _ => return Err(wrong()),
        };
        Ok(Self { name: name.to_owned(), is_prefill, n_tokens: number(n)?, depth: number(depth)? })
    }

    fn run(&self, growth: &mut Growth<'_>) -> Duration {
        if self.is_prefill { growth.prefill(self.n_tokens) } else { growth.decode(self.n_tokens) }
    }
}

fn compare(arguments: &Arguments, model: &Model, dtype: &str, test: &Test) -> Result<(), String> {
    let (mut ours, mut theirs, mut bound) = (Vec::new(), Vec::new(), Vec::new());
    reset_peak();
    let mut growth = Growth::new(model);
    growth.prefill(test.depth);
    let start = growth.snapshot();
    let bytes = growth.bytes_of_next_token() as f64;
    let mut peak = 0.0_f64;
    for _ in 0..arguments.n_rounds {
        growth.back(&start);
        ours.push(per_second(test.n_tokens, test.run(&mut growth)));
        peak = peak.max(peak_gigabytes());
        // What it reads is not the model's.
        bound.push(bandwidth(arguments.n_threads) / 1e9);
        reset_peak();
        theirs.extend(llama(arguments, dtype, test)?);
    }
    let (ours, theirs) = (median(&mut ours), median(&mut theirs));
    let shown = |value: Option<f64>| value.map_or("none".to_owned(), |value| format!("{value:.2}"));
    let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
    let read = if test.is_prefill {
        String::new()
    } else {
        let read = ours.map(|ours| ours * bytes / 1e9);
        format!(" GB/s={} bandwidth={}", shown(read), shown(median(&mut bound)))
    };
    println!(
        "dtype={dtype} test={} ours={} llama={} ratio={}{read} peak={peak:.2}",
        test.name,
        shown(ours),
        shown(theirs),
        shown(ratio)
    );
    growth.back(&start);
    let n = test.n_tokens;
    let costs = if test.is_prefill { growth.prefill_costs(n) } else { growth.decode_costs(n) };
    show(dtype, test, &costs);
    Ok(())
}

/// One line for each stage: milliseconds of a forward pass, their share of it, and what was read and written.
fn show(dtype: &str, test: &Test, costs: &[Cost]) {
    let all: f64 = costs.iter().map(|cost| cost.time.as_secs_f64()).sum();
    for Cost { stage, time, bytes } in costs {
        let seconds = time.as_secs_f64();
        println!(
            "dtype={dtype} test={} stage={} ms={:.2} share={:.1}% GB/s={:.2}",
            test.name,
            stage.name(),
            seconds * 1e3,
            100.0 * seconds / all.max(1e-9),
            *bytes as f64 / seconds.max(1e-9) / 1e9
        );
    }
}

/// Tokens per second of llama.cpp, if it is there.
fn llama(arguments: &Arguments, dtype: &str, test: &Test) -> Result<Option<f64>, String> {
    let file = match dtype {
        "bf16" => "bf16.gguf",
        "int8" => "q8_0.gguf",
        "int4" => "q4_0.gguf",
        _ => return Ok(None),
    };
    let (program, file) = (arguments.llama.join("llama-bench"), arguments.llama.join(file));
    if !program.exists() || !file.exists() {
        return Ok(None);
    }
    let n = test.n_tokens.to_string();
    let (prompt, generated) = if test.is_prefill { (n.as_str(), "0") } else { ("0", n.as_str()) };
    let output = Command::new(&program)
        .arg("-m")
        .arg(&file)
        .args(["-t", &arguments.n_threads.to_string(), "-r", "1", "-o", "json"])
        .args(["-p", prompt, "-n", generated, "-d", &test.depth.to_string()])
        .output()
        .map_err(|error| format!("cannot run `{}`: {error}", program.display()))?;
    if !output.status.success() {
        println!("llama-bench ended with {}", output.status);
        return Ok(None);
    }
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cannot read what `{}` says: {error}", program.display()))?;
    Ok(answer[0]["avg_ts"].as_f64())
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// 0 where the system does not tell.
fn peak_gigabytes() -> f64 {
    peak_bytes().unwrap_or(0) as f64 / 1e9
}
