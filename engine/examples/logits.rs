//! Writes the logits of every position: `logits MODEL_DIR IDS.json OUT.safetensors [--dtype f32] [--split N]`.
//!
//! `IDS.json` is a list of token ids. With `--split N` the first N tokens are one prefill and the rest come one by one.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use engine::portable::Model;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const USAGE: &str = "logits MODEL_DIR IDS.json OUT.safetensors [--dtype f32] [--split N]";

struct Arguments {
    model: PathBuf,
    ids: PathBuf,
    out: PathBuf,
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
    let mut split = None;
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        match word.as_str() {
            "--dtype" => match given.next().as_deref() {
                Some("f32") => {}
                other => return Err(format!("dtype {other:?} is not built yet; use f32")),
            },
            "--split" => {
                let number = given.next().and_then(|number| number.parse().ok());
                split = Some(number.ok_or_else(|| format!("--split needs a number\n{USAGE}"))?);
            }
            _ => paths.push(PathBuf::from(word)),
        }
    }
    match <[PathBuf; 3]>::try_from(paths) {
        Ok([model, ids, out]) => Ok(Arguments { model, ids, out, split }),
        Err(_) => Err(USAGE.to_owned()),
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let chain = |error: engine::Error| error.to_string();
    let model = Model::load(&arguments.model).map_err(chain)?;
    let shown = arguments.ids.display();
    let text = std::fs::read_to_string(&arguments.ids)
        .map_err(|error| format!("cannot read `{shown}`: {error}"))?;
    let ids: Vec<u32> =
        serde_json::from_str(&text).map_err(|error| format!("cannot use `{shown}`: {error}"))?;
    let (prefill, rest) = ids.split_at(arguments.split.unwrap_or(ids.len()).min(ids.len()));
    let mut sequence = model.sequence();
    let mut logits = Vec::new();
    for piece in std::iter::once(prefill).chain(rest.chunks(1)).filter(|piece| !piece.is_empty()) {
        let unknown =
            || format!("cannot use `{shown}`: an id is not below {}", model.shape().vocab);
        logits.extend(model.forward(&mut sequence, piece).ok_or_else(unknown)?);
    }
    let bytes: Vec<u8> = logits.iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![ids.len(), model.shape().vocab], &bytes)
        .map_err(|error| error.to_string())?;
    safetensors::serialize_to_file(
        [("logits", view)],
        None::<HashMap<String, String>>,
        &arguments.out,
    )
    .map_err(|error| format!("cannot write `{}`: {error}", arguments.out.display()))
}
