//! Writes the logits of every position:
//! `logits MODEL_DIR IDS.json OUT.safetensors [--dtype f32|bf16|int8|int4] [--split N]`.
//!
//! `IDS.json` is a list of token ids. Weights are kept as f32 unless `--dtype` or a quantised folder says otherwise. With `--split N` the first N tokens are one prefill and the rest come one by one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use engine::backend::cpu::{Dtype, Isa, Model, Options, Step, Wanted};
use engine::{Checkpoint, Shape};
use safetensors::tensor::TensorView;

const USAGE: &str =
    "logits MODEL_DIR IDS.json OUT.safetensors [--dtype f32|bf16|int8|int4] [--split N]";

struct Arguments {
    model: PathBuf,
    ids: PathBuf,
    out: PathBuf,
    dtype: Option<Dtype>,
    split: Option<usize>,
}

fn main() -> ExitCode {
    match arguments().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ =
                std::io::Write::write_all(&mut std::io::stderr(), format!("{error}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<Arguments, String> {
    let mut paths = Vec::new();
    let (mut dtype, mut split) = (None, None);
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--dtype" => {
                let name = given.next().unwrap_or_default();
                dtype = Some(name.parse().map_err(|error| format!("{error}\n{USAGE}"))?);
            }
            "--split" => {
                let number = given.next().and_then(|number| number.parse().ok());
                split = Some(number.ok_or_else(|| format!("--split needs a number\n{USAGE}"))?);
            }
            _ => paths.push(PathBuf::from(word)),
        }
    }
    match <[PathBuf; 3]>::try_from(paths) {
        Ok([model, ids, out]) => Ok(Arguments { model, ids, out, dtype, split }),
        Err(_) => Err(USAGE.to_owned()),
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let chain = |error: engine::Error| error.chain();
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let shape = Shape::read(&arguments.model).map_err(chain)?;
    let is_plain = Checkpoint::open(&arguments.model, &shape).map_err(chain)?.quantised().is_none();
    let dtype = arguments.dtype.or(is_plain.then_some(Dtype::F32));
    let options = Options { dtype, n_threads, isa: Isa::detect() };
    let model = Model::load(&arguments.model, &options).map_err(chain)?;
    let shown = arguments.ids.display();
    let text = std::fs::read_to_string(&arguments.ids)
        .map_err(|error| format!("cannot read `{shown}`: {error}"))?;
    let ids: Vec<u32> =
        serde_json::from_str(&text).map_err(|error| format!("cannot use `{shown}`: {error}"))?;
    let (prefill, rest) = ids.split_at(arguments.split.unwrap_or(ids.len()).min(ids.len()));
    let mut sequence = model.sequence();
    let mut logits = Vec::new();
    for piece in std::iter::once(prefill).chain(rest.chunks(1)).filter(|piece| !piece.is_empty()) {
        let step = Step { sequence: &mut sequence, ids: piece, logits: Wanted::All };
        let computed = model.forward(&mut [step]);
        logits.extend(computed.map_err(|error| format!("cannot use `{shown}`: {error}"))?);
    }
    let bytes: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view =
        TensorView::new(safetensors::Dtype::F32, vec![ids.len(), model.shape().vocab], &bytes)
            .map_err(|error| error.to_string())?;
    safetensors::serialize_to_file(
        [("logits", view)],
        None::<HashMap<String, String>>,
        &arguments.out,
    )
    .map_err(|error| format!("cannot write `{}`: {error}", arguments.out.display()))
}
