//! A folder that is not in order is named by file, and by key or tensor.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;

use engine::backend::cpu::{Dtype as Form, Isa, Model, Options};
use engine::{Checkpoint, Error, Shape, Summary};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

fn fixture(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A copy of a small model that a test spoils.
fn copy(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixture(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    folder
}

fn error(folder: &Path) -> String {
    match Summary::read(folder) {
        Ok(_) => "accepted".into(),
        Err(error) => error.to_string(),
    }
}

fn load(folder: &Path) -> Result<Model, Error> {
    Model::load(folder, &Options { dtype: Some(Form::F32), n_threads: 1, isa: Isa::detect() })
}

#[test]
fn a_config_that_asks_for_something_else_is_refused_by_key() {
    for (key, value, expected) in [
        ("model_type", json!("llama"), "`model_type`: `llama`"),
        ("hidden_act", json!("gelu"), "`hidden_act`"),
        ("attention_bias", json!(true), "`attention_bias`"),
        ("output_gate_type", json!("sigmoid"), "`output_gate_type`"),
        ("layer_types", json!(["linear_attention"]), "1 entries for 4 layers"),
        ("layer_types", json!(["linear_attention", "sliding", "x", "y"]), "`layer_types`"),
        ("hidden_size", json!(0), "`hidden_size`"),
        ("hidden_size", json!(1e300), "`hidden_size`"),
        ("hidden_size", Value::Null, "`hidden_size`"),
        ("head_dim", json!(1025), "`head_dim`: 1025 is not a number from 1 to 1024"),
        ("linear_key_head_dim", json!(4096), "`linear_key_head_dim`"),
        ("linear_value_head_dim", json!(4096), "`linear_value_head_dim`"),
        ("num_hidden_layers", json!(100_000), "`num_hidden_layers`"),
        ("num_attention_heads", json!(3), "`num_attention_heads`"),
        ("linear_num_value_heads", json!(3), "`linear_num_value_heads`"),
        ("rms_norm_eps", json!(-1), "`rms_norm_eps`"),
        ("rope_parameters", json!({ "rope_theta": 1e7, "rope_type": "yarn" }), "rope_type"),
        (
            "rope_parameters",
            json!({ "rope_theta": 1e7, "partial_rotary_factor": 0.01 }),
            "partial_rotary_factor",
        ),
        ("rope_parameters", json!({}), "rope_theta"),
        ("rope_parameters", json!([1e7]), "`rope_parameters`: [10000000.0] is no object"),
        (
            "rope_parameters",
            json!({ "rope_theta": 1e7, "partial_rotary_factor": "0.25" }),
            "`rope_parameters.partial_rotary_factor`: \"0.25\" is no number",
        ),
        (
            "rope_parameters",
            json!({ "rope_theta": 1e7, "factor": 4.0 }),
            "`rope_parameters.factor`: this engine does not know the option, which is 4.0 here",
        ),
        ("rope_parameters", json!({ "rope_theta": 1e7, "rope_type": 3 }), "`3` is not supported"),
        ("partial_rotary_factor", json!(0.5), "it is 0.25 in one place and 0.5 here"),
        ("partial_rotary_factor", json!("0.25"), "`partial_rotary_factor`: \"0.25\" is no number"),
        ("rope_theta", json!(1e4), "`rope_theta`: it is 10000000 in one place and 10000 here"),
        ("rope_scaling", json!({ "type": "yarn" }), "`rope_scaling.type`: `yarn`"),
        ("rope_scaling", json!("yarn"), "`rope_scaling`: \"yarn\" is no object"),
        ("tie_word_embeddings", json!("true"), "\"true\" is neither `true` nor `false`"),
        ("layer_types", json!("x"), "`layer_types`: \"x\" is no list"),
        ("mlp_only_layers", json!([1]), "`mlp_only_layers`"),
        ("mlp_only_layers", json!("x"), "`mlp_only_layers`"),
        ("attn_output_gate", json!("true"), "`attn_output_gate`"),
        ("model_type", json!(5), "`model_type`: `5`"),
        ("text_config", json!("x"), "`model_type`: `null`"),
        ("sliding_window", json!(4096), "`sliding_window`: this engine does not know the option"),
        ("final_logit_softcapping", json!(30.0), "`final_logit_softcapping`"),
        ("quantization_config", json!({ "quant_method": "gptq" }), "`quantization_config`"),
        ("rms_norm_eps", json!("1e-6"), "`rms_norm_eps`"),
        ("rms_norm_eps", json!(1e-300), "`rms_norm_eps`"),
    ] {
        let folder = copy("tiny0");
        let file = folder.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        config[key] = value.clone();
        std::fs::write(&file, config.to_string()).unwrap();
        let error = error(folder.path());
        assert!(
            error.contains(expected) && error.contains("config.json"),
            "{key} = {value} gave: {error}"
        );
    }
}

/// The shape after a change of `config.json`.
fn changed(name: &str, change: impl Fn(&mut Value)) -> Result<Shape, Error> {
    let folder = copy(name);
    let file = folder.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&file, config.to_string()).unwrap();
    Shape::read(folder.path())
}

#[test]
fn what_a_config_leaves_out_is_as_in_the_reference() {
    let published = changed("tiny0", |_| ()).unwrap();
    assert_eq!(published.attention.rotary, 8);
    let same: [fn(&mut Value); 6] = [
        |config| config["rope_parameters"] = json!({ "rope_theta": 1e7 }),
        |config| config["rope_parameters"]["partial_rotary_factor"] = Value::Null,
        // As older programs write it.
        |config| {
            let rotation = config["rope_parameters"].take();
            config["rope_scaling"] = json!({ "type": "default" });
            config["rope_theta"] = rotation["rope_theta"].clone();
        },
        |config| config["partial_rotary_factor"] = json!(0.25),
        |config| config["rms_norm_eps"] = Value::Null,
        // What is off, and what changes no logit.
        |config| {
            config["use_sliding_window"] = json!(false);
            config["sliding_window"] = Value::Null;
            config["_name_or_path"] = json!("x");
            config["torch_dtype"] = json!("bfloat16");
        },
    ];
    for (number, change) in same.into_iter().enumerate() {
        assert_eq!(changed("tiny0", change).unwrap(), published, "{number}");
    }
}

#[test]
fn a_nested_config_may_say_once_or_twice_but_not_two_things_whether_the_head_is_tied() {
    let tied = |inner: Value, outer: Value| {
        changed("official_layout", |config| {
            config["text_config"]["tie_word_embeddings"] = inner.clone();
            config["tie_word_embeddings"] = outer.clone();
        })
        .map(|shape| shape.is_tied)
    };
    for (inner, outer, expected) in [
        (json!(true), json!(true), true),
        (json!(true), Value::Null, true),
        (Value::Null, json!(true), true),
        (json!(false), Value::Null, false),
        (Value::Null, Value::Null, false),
    ] {
        assert_eq!(tied(inner.clone(), outer.clone()).unwrap(), expected, "{inner} {outer}");
    }
    let error = tied(json!(true), json!(false)).unwrap_err().to_string();
    assert!(error.contains("says the opposite of the whole file"), "{error}");
    assert!(tied(json!(true), json!("true")).is_err());
}

/// Tensors by name: type, dimensions, bytes.
type All = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;
type Change = Box<dyn Fn(&mut All)>;

/// Rewrites the one file of tiny0 with its tensors changed.
fn rewrite(folder: &Path, change: impl Fn(&mut All)) {
    let file = folder.join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: All = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut all);
    let views = all.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::write(&file, safetensors::serialize(views, None).unwrap()).unwrap();
}

#[test]
fn a_tensor_that_is_not_in_order_is_named() {
    let gate = "model.layers.1.mlp.gate_proj.weight";
    let cases: Vec<(&str, Change)> = vec![
        (
            "layers.1.mlp.gate_proj.weight`: it is missing",
            Box::new(move |all| drop(all.remove(gate))),
        ),
        (
            "`model.layers.9.x`: this model has no such tensor",
            Box::new(move |all| {
                drop(all.insert("model.layers.9.x".into(), (Dtype::F32, vec![1], vec![0; 4])))
            }),
        ),
        (
            "it is [64, 96], expected [96, 64]",
            Box::new(move |all| all.get_mut(gate).unwrap().1 = vec![64, 96]),
        ),
        ("its type is I32", Box::new(move |all| all.get_mut(gate).unwrap().0 = Dtype::I32)),
        (
            "it is there twice",
            Box::new(move |all| {
                let again = all[gate].clone();
                all.insert("model.language_model.layers.1.mlp.gate_proj.weight".into(), again);
            }),
        ),
    ];
    for (expected, change) in cases {
        let folder = copy("tiny0");
        rewrite(folder.path(), change);
        let error = error(folder.path());
        assert!(error.contains(expected) && error.contains("tensor `"), "{expected} gave: {error}");
    }
    for (value, expected) in
        [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (1e30, "1000000000000000000000000000000")]
    {
        let folder = copy("tiny0");
        rewrite(folder.path(), |all| {
            all.get_mut(gate).unwrap().2[..4].copy_from_slice(&value.to_le_bytes())
        });
        let Err(error) = load(folder.path()) else { panic!("{value}") };
        let error = error.to_string();
        assert!(error.contains("gate_proj") && error.contains(expected), "{error}");
    }
}

#[test]
fn a_file_that_is_not_whole_is_named() {
    let folder = copy("tiny0");
    let file = folder.path().join("model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    for length in [0, 4, 8, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..length]).unwrap();
        assert!(error(folder.path()).contains("model.safetensors"), "{length} bytes");
    }
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    std::fs::write(&file, &huge).unwrap();
    assert!(error(folder.path()).contains("no whole safetensors file"));
    std::fs::remove_file(&file).unwrap();
    assert!(error(folder.path()).contains("cannot read"));

    let folder = copy("official_layout");
    let index = folder.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).unwrap();
    for (from, to, expected) in [
        (
            "model.safetensors-00002-of-00002.safetensors",
            "../x.safetensors",
            "outside of the folder",
        ),
        (
            "model.safetensors-00002-of-00002.safetensors",
            "missing.safetensors",
            "missing.safetensors",
        ),
        ("weight_map", "weight_mop", "index.json"),
    ] {
        std::fs::write(&index, text.replace(from, to)).unwrap();
        let error = error(folder.path());
        assert!(error.contains(expected), "{to} gave: {error}");
    }
    for name in ["config.json", "model.safetensors.index.json"] {
        let folder = copy("official_layout");
        // Nothing but holes, so it takes no place.
        let large = std::fs::File::create(folder.path().join(name)).unwrap();
        large.set_len(1 << 40).unwrap();
        let error = error(folder.path());
        assert!(error.contains(name) && error.contains("it is larger than"), "{error}");
    }
}

#[test]
fn an_untied_head_and_other_types_are_read() {
    let folder = copy("tiny0");
    let file = folder.path().join("config.json");
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    std::fs::write(&file, text).unwrap();
    assert!(error(folder.path()).contains("`lm_head.weight`: it is missing"));
    rewrite(folder.path(), |all| {
        let head = all["model.embed_tokens.weight"].clone();
        all.insert("lm_head.weight".into(), head);
        let (dtype, _, data) = all.get_mut("model.norm.weight").unwrap();
        *dtype = Dtype::F16;
        *data = data
            .chunks_exact(4)
            .flat_map(|four| {
                half::f16::from_f32(f32::from_le_bytes(four.try_into().unwrap())).to_le_bytes()
            })
            .collect();
    });
    assert!(load(folder.path()).is_ok());
}

#[test]
fn files_that_do_not_belong_together_are_named() {
    // A tensor that the index does not know is a left-over.
    let folder = copy("official_layout");
    let index = folder.path().join("model.safetensors.index.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
    let name = "model.language_model.layers.1.mlp.gate_proj.weight";
    value["weight_map"].as_object_mut().unwrap().remove(name).unwrap();
    std::fs::write(&index, value.to_string()).unwrap();
    let text = error(folder.path());
    assert!(text.contains(name) && text.contains("the index does not name it"), "{text}");

    // Files that are quantised and files that are not.
    let folder = copy("official_layout");
    let file = folder.path().join("model.safetensors-00001-of-00002.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let metadata =
        [("format", "hyla-panels"), ("version", "1"), ("dtype", "int8"), ("group", "64")];
    let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mixed = safetensors::serialize(tensors.tensors(), Some(metadata.into())).unwrap();
    std::fs::write(&file, mixed).unwrap();
    let text = error(folder.path());
    assert!(text.contains("00002-of-00002"), "{text}");
    assert!(text.contains("it is not quantised as the folder's other files are"), "{text}");
}

/// The published configuration, and the figures of its specification.
#[test]
fn the_published_shape_has_the_published_figures() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/fixtures/qwen35/config_qwen3.5-4b.json");
    if !config.is_file() {
        eprintln!("skipped: there are no shared fixtures here");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(config, folder.path().join("config.json")).unwrap();
    let shape = Shape::read(folder.path()).unwrap();
    let tensors = engine::expected(&shape);
    let parameters: usize =
        tensors.iter().map(|tensor| tensor.dimensions.iter().product::<usize>()).sum();
    assert_eq!((tensors.len(), parameters), (426, 4_205_751_296));
    assert!(Checkpoint::open(folder.path(), &shape).is_err());
}

/// Numbers that look random and are the same in every run.
fn numbers() -> impl FnMut(usize) -> usize {
    let mut state = 1_u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(state >> 33).unwrap() % below
    }
}

/// Spoils some bytes, or cuts the file.
fn spoil(bytes: &mut Vec<u8>, reach: usize, draw: &mut impl FnMut(usize) -> usize) {
    for _ in 0..=draw(3) {
        let at = draw(reach.min(bytes.len()));
        match draw(8) {
            0 => bytes.truncate(at),
            1 => bytes[at] = b"0[]{}\",-"[draw(8)],
            2 => bytes[at] = b'9',
            _ => bytes[at] ^= 1 << draw(8),
        }
        if bytes.is_empty() {
            bytes.push(b'{');
        }
    }
}

#[test]
fn a_spoiled_folder_is_loaded_or_refused_and_nothing_else() {
    let folder = copy("tiny0");
    let mut draw = numbers();
    for (name, n_rounds) in [("config.json", 400), ("model.safetensors", 400)] {
        let whole = std::fs::read(folder.path().join(name)).unwrap();
        // What is behind the header of the tensors is only numbers.
        let reach = match name {
            "config.json" => whole.len(),
            _ => 64 + usize::try_from(u64::from_le_bytes(*whole.first_chunk().unwrap())).unwrap(),
        };
        let mut n_refused = 0;
        for _ in 0..n_rounds {
            let mut bytes = whole.clone();
            spoil(&mut bytes, reach, &mut draw);
            std::fs::write(folder.path().join(name), bytes).unwrap();
            let summary = Summary::read(folder.path());
            n_refused += usize::from(summary.is_err());
            // Larger ones would only cost memory; their sizes are told before they are loaded.
            if summary.is_ok_and(|summary| summary.parameters < 10_000_000) {
                let _ = load(folder.path());
            }
        }
        std::fs::write(folder.path().join(name), whole).unwrap();
        assert!(n_refused > n_rounds / 4, "{name}: {n_refused}");
    }
}
