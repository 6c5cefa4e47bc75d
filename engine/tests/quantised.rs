//! `hyla model quantize`: what it writes computes the same, and everything that can be wrong with it is told.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use engine::backend::cpu::{Dtype, Isa, Model, Options, Step, Wanted};
use engine::quantised::{Progress, Quantised, write};
use engine::{Error, Summary};
use safetensors::tensor::TensorView;
use safetensors::{Dtype as Stored, SafeTensors};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A folder of ours, and its quantised copy in a folder of a test.
fn quantised(source: &Path, form: Quantised) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    make(source, &out, form).unwrap();
    (folder, out)
}

fn make(source: &Path, out: &Path, form: Quantised) -> Result<(), Error> {
    write(source, out, form, 2, &mut |_| ControlFlow::Continue(()))
}

fn load(folder: &Path, dtype: Option<Dtype>, isa: Isa) -> Result<Model, Error> {
    Model::load(folder, &Options { dtype, n_threads: 2, isa })
}

fn logits(model: &Model) -> Vec<u32> {
    let ids: Vec<u32> = (0..40).map(|at| at * 7 % 199).collect();
    let mut sequence = model.sequence();
    let step = Step { sequence: &mut sequence, ids: &ids, logits: Wanted::All };
    model.forward(&mut [step]).unwrap().into_iter().map(f32::to_bits).collect()
}

/// What an error says, with its causes.
fn words(result: Result<impl Sized, Error>) -> String {
    let Err(error) = result else { return "accepted".into() };
    let mut words = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

/// tiny0 with a head of its own.
fn untied() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(fixture("tiny0/config.json")).unwrap();
    let config = config.replace("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let file = folder.path().join("model.safetensors");
    std::fs::copy(fixture("tiny0/model.safetensors"), &file).unwrap();
    rewrite(&file, |all, _| {
        let mut head = all["model.embed_tokens.weight"].clone();
        head.2.rotate_left(64);
        all.insert("lm_head.weight".into(), head);
    });
    folder
}

type All = BTreeMap<String, (Stored, Vec<usize>, Vec<u8>)>;

/// Rewrites a file with its tensors and its metadata changed.
fn rewrite(file: &Path, change: impl Fn(&mut All, &mut HashMap<String, String>)) {
    let bytes = std::fs::read(file).unwrap();
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let mut metadata = metadata.metadata().clone().unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let mut all: All = tensors
        .into_iter()
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut all, &mut metadata);
    let views = all.iter().map(|(name, (dtype, shape, data))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    std::fs::write(file, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
}

#[test]
fn a_quantised_folder_computes_what_quantising_at_load_does_bit_for_bit() {
    let untied = untied();
    for source in [fixture("tiny0"), fixture("official_layout"), untied.path().to_owned()] {
        for (form, dtype) in [(Quantised::Int8, Dtype::Int8), (Quantised::Int4, Dtype::Int4)] {
            let (_folder, out) = quantised(&source, form);
            for isa in Isa::available() {
                let at_load = load(&source, Some(dtype), isa).unwrap();
                let ours = load(&out, None, isa).unwrap();
                assert_eq!(logits(&ours), logits(&at_load), "{} {form:?}", source.display());
                assert_eq!(ours.weight_bytes(), at_load.weight_bytes());
                let named = load(&out, Some(dtype), isa).unwrap();
                assert_eq!(logits(&named), logits(&ours));
            }
            // The serializer of others puts codes where they cannot be used in place: they are copied.
            let file = out.join("model.safetensors");
            rewrite(&file, |all, _| {
                let odd = (Stored::BF16, vec![1], vec![0; 2]);
                drop(all.insert("mtp.odd".into(), odd));
            });
            let copied = load(&out, None, Isa::detect()).unwrap();
            let at_load = load(&source, Some(dtype), Isa::detect()).unwrap();
            assert_eq!(logits(&copied), logits(&at_load), "{} {form:?}", source.display());
        }
    }
}

#[test]
fn a_quantised_folder_says_what_it_is() {
    let source = fixture("official_layout");
    let plain = Summary::read(&source).unwrap();
    assert_eq!(plain.dtype, "bf16");
    assert_eq!(Summary::read(&fixture("tiny0")).unwrap().dtype, "f32");
    for (form, name) in [(Quantised::Int8, "int8"), (Quantised::Int4, "int4")] {
        let (_folder, out) = quantised(&source, form);
        let ours = Summary::read(&out).unwrap();
        assert_eq!((ours.dtype, ours.parameters), (name, plain.parameters));
        assert!(ours.text(100).contains(&format!("dtype                       {name}\n")));
        // What `load` holds of large weights, and a little more for the small ones.
        let kept = load(&out, None, Isa::detect()).unwrap().weight_bytes() as u64;
        assert!((kept..kept + 20_000).contains(&ours.weight_bytes), "{kept} {ours:?}");
    }
}

#[test]
fn a_quantised_folder_is_kept_in_its_own_form_only() {
    let (folder, out) = quantised(&fixture("tiny0"), Quantised::Int8);
    for (dtype, name) in [(Dtype::Bf16, "bf16"), (Dtype::F32, "f32"), (Dtype::Int4, "int4")] {
        let words = words(load(&out, Some(dtype), Isa::detect()));
        let expected = format!(
            "cannot keep the weights of `{}` as {name}: they are quantised to int8; ask for int8, leave the dtype out, or use \
             the folder that they were made from",
            out.display()
        );
        assert_eq!(words, expected);
    }
    let again = words(make(&out, &folder.path().join("again"), Quantised::Int4));
    assert!(again.contains("out`: its weights are quantised to int8 already; use the"), "{again}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left");
}

type Change = Box<dyn Fn(&mut All, &mut HashMap<String, String>)>;

#[test]
fn a_damaged_quantised_folder_is_named_by_file_and_tensor() {
    let codes = "model.layers.1.mlp.gate_proj.weight.codes";
    let scales = "model.layers.1.mlp.gate_proj.weight.scales";
    let set = |key: &'static str, value: &'static str| -> Change {
        Box::new(move |_, metadata| drop(metadata.insert(key.into(), value.into())))
    };
    let scale = |bits: u16| -> Change {
        Box::new(move |all, _| {
            all.get_mut(scales).unwrap().2[64..66].copy_from_slice(&bits.to_le_bytes());
        })
    };
    let cases: Vec<(&str, Change)> = vec![
        (
            "tensor `layers.1.mlp.gate_proj.weight.scales`: it is missing",
            Box::new(move |all, _| drop(all.remove(scales))),
        ),
        (
            "tensor `layers.1.mlp.gate_proj.weight.codes`: it is missing",
            Box::new(move |all, _| drop(all.remove(codes))),
        ),
        (
            "tensor `model.layers.1.mlp.gate_proj.weight.codes`: it is [1, 6, 1024], expected [6, 1, 1024]",
            Box::new(move |all, _| all.get_mut(codes).unwrap().1 = vec![1, 6, 1024]),
        ),
        (
            "tensor `model.layers.1.mlp.gate_proj.weight.scales`: its type is F16, expected BF16",
            Box::new(move |all, _| all.get_mut(scales).unwrap().0 = Stored::F16),
        ),
        (
            "tensor `model.layers.1.mlp.gate_proj.weight`: this model has no such tensor",
            Box::new(move |all, _| {
                let plain = (Stored::F32, vec![1], vec![0; 4]);
                drop(all.insert("model.layers.1.mlp.gate_proj.weight".into(), plain));
            }),
        ),
        (
            "tensor `model.layers.1.mlp.gate_proj.weight.scales`: value 32 is NaN; the file is corrupt",
            scale(0x7fc0),
        ),
        (
            "tensor `model.layers.1.mlp.gate_proj.weight.scales`: value 32 is -inf; the file is corrupt",
            scale(0xff80),
        ),
        (
            "model.safetensors`: its metadata has `version` `2`, but this program reads `1`; quantise the original folder again",
            set("version", "2"),
        ),
        ("`group` `32`, but this program reads `64`", set("group", "32")),
        ("`dtype` `int3`, but this program reads `int8` or `int4`", set("dtype", "int3")),
        // Then they are read as other codes.
        (
            "tensor `model.layers.0.linear_attn.in_proj_qkv.weight.codes`: it is",
            set("dtype", "int4"),
        ),
        ("tensor `embed_tokens.weight`: it is missing", set("format", "pt")),
    ];
    let (_folder, out) = quantised(&fixture("tiny0"), Quantised::Int8);
    let file = out.join("model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    for (expected, change) in cases {
        rewrite(&file, change);
        let found = words(load(&out, None, Isa::detect()));
        assert!(found.contains(expected) && found.contains("cannot use `"), "{expected}: {found}");
        std::fs::write(&file, &whole).unwrap();
    }
    for length in [0, 7, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&file, &whole[..length]).unwrap();
        let found = words(load(&out, None, Isa::detect()));
        let expected = "model.safetensors`: it is no whole safetensors file";
        assert!(found.contains(expected), "{length}: {found}");
    }
}

#[test]
fn a_folder_that_is_there_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture("tiny0");
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("mine"), "x").unwrap();
    let found = words(make(&source, &out, Quantised::Int8));
    assert!(found.contains("out`: it is there and not empty; name another folder"), "{found}");
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);

    for (out, expected) in [
        (out.join("mine"), "cannot write"),
        (folder.path().join("no/such"), "no/.such.partial`: No such file"),
        (folder.path().join(".."), "it names no folder"),
    ] {
        let found = words(make(&source, &out, Quantised::Int8));
        assert!(found.contains(expected), "{found}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left");

    std::fs::remove_file(out.join("mine")).unwrap();
    make(&source, &out, Quantised::Int8).unwrap();
    assert!(load(&out, None, Isa::detect()).is_ok(), "an empty folder is as good as none");
}

#[test]
fn a_writing_that_ends_early_leaves_nothing_under_the_name() {
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (fixture("official_layout"), folder.path().join("out"));
    let partial = folder.path().join(".out.partial");
    let mut seen = Vec::new();
    let stopped = write(&source, &out, Quantised::Int8, 1, &mut |progress| {
        assert!(partial.join("config.json").is_file() && !out.exists());
        seen.push(progress);
        if seen.len() == 20 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(words(stopped), "cannot finish: it was stopped");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    assert!(seen.is_sorted_by_key(|progress| progress.written_bytes));
    assert!(seen.iter().all(|Progress { written_bytes, all_bytes }| written_bytes < all_bytes));

    // What a killed process has left is cleared.
    std::fs::create_dir(&partial).unwrap();
    for name in ["model.safetensors", "generation_config.json"] {
        std::fs::write(partial.join(name), [7; 1 << 20]).unwrap();
    }
    // Another process at the same work is not disturbed.
    let other = std::fs::File::open(partial.join("model.safetensors")).unwrap();
    other.lock().unwrap();
    let found = words(make(&source, &out, Quantised::Int8));
    assert!(found.contains("another process is writing it"), "{found}");
    assert!(partial.join("generation_config.json").is_file() && !out.exists());
    drop(other);
    make(&source, &out, Quantised::Int8).unwrap();
    assert_eq!(names(folder.path()), ["out"]);
    assert_eq!(names(&out), ["config.json", "model.safetensors"]);
    let length = std::fs::metadata(out.join("model.safetensors")).unwrap().len();
    assert_eq!(length, seen[0].all_bytes);
}

#[cfg(unix)]
#[test]
fn what_is_not_its_own_is_neither_cleared_nor_replaced() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    let (source, out) = (fixture("tiny0"), folder.path().join("out"));
    let partial = folder.path().join(".out.partial");
    let refuses = |expected: &str| {
        let found = words(make(&source, &out, Quantised::Int8));
        assert!(found.contains(expected), "{found}");
    };
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("diary"), "x").unwrap();
    refuses("is in the way and holds `diary`");
    assert_eq!(names(&partial), ["diary"]);
    std::fs::rename(&partial, folder.path().join("home")).unwrap();
    symlink("home", &partial).unwrap();
    refuses("it is in the way");
    assert_eq!(names(&folder.path().join("home")), ["diary"]);
    std::fs::remove_file(&partial).unwrap();
    // Nor is the work done first.
    symlink("nowhere", &out).unwrap();
    let stopped = write(&source, &out.join(""), Quantised::Int8, 1, &mut |_| panic!("it writes"));
    assert!(words(stopped).contains("it is a link"));
    std::fs::remove_file(&out).unwrap();

    let copy = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(source.join(name), copy.path().join(name)).unwrap();
    }
    let secret = copy.path().join("tokenizer.json");
    std::fs::write(&secret, "{}").unwrap();
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o000)).unwrap();
    // Some users may read everything.
    if std::fs::File::open(&secret).is_err() {
        let found = words(make(copy.path(), &out, Quantised::Int8));
        assert!(found.starts_with(&format!("cannot read `{}`", secret.display())), "{found}");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn everything_but_the_weights_is_copied() {
    let source = tempfile::tempdir().unwrap();
    for name in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(fixture("tiny0").join(name), source.path().join(name)).unwrap();
    }
    let copied = [
        "LICENSE",
        "README.md",
        "chat_template.jinja",
        "merges.txt",
        "tokenizer.json",
        "vocab.json",
    ];
    for name in copied {
        std::fs::write(source.path().join(name), name).unwrap();
    }
    for name in ["other.bin", ".gitattributes", "model-1.safetensors"] {
        std::fs::write(source.path().join(name), "x").unwrap();
    }
    std::fs::create_dir(source.path().join("onnx.json")).unwrap();
    let (_folder, out) = quantised(source.path(), Quantised::Int4);
    let mut expected = copied.to_vec();
    expected.extend(["config.json", "generation_config.json", "model.safetensors"]);
    expected.sort_unstable();
    assert_eq!(names(&out), expected);
    for name in expected.iter().filter(|name| !name.ends_with(".safetensors")) {
        let read = |folder: &Path| std::fs::read(folder.join(name)).unwrap();
        assert_eq!(read(&out), read(source.path()), "{name}");
    }
}
