//! The CPU backend against the reference's logits in f32, and its other forms of weights against that.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "what is lost, and what is skipped, is printed")]

#[path = "../benches/random_model/mod.rs"]
mod random_model;

use std::path::{Path, PathBuf};

use engine::backend::cpu::{Dtype, Isa, Model, Options, Sequence, Step, Wanted};
use safetensors::SafeTensors;
use serde_json::json;

/// Largest absolute difference of an fp32 logit: the reference's own noise is half of it.
const TOLERANCE: f32 = 2e-4;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The models of this repository, and the larger ones where they lie beside it; it is said where they do not.
fn folders() -> Vec<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/qwen35");
    let names = ["tiny1", "tiny_realdims"].map(|name| shared.join(name));
    let all = [own().join("tiny0"), own().join("official_layout")].into_iter().chain(names);
    all.filter(|folder| {
        let is_there = folder.is_dir();
        if !is_there {
            println!("skipped: there is no `{}`", folder.display());
        }
        is_there
    })
    .collect()
}

fn load(folder: &Path, dtype: Dtype, isa: Isa) -> Model {
    Model::load(folder, &Options { dtype: Some(dtype), n_threads: 3, isa }).unwrap()
}

struct Reference(Vec<u8>);

impl Reference {
    fn open(folder: &Path) -> Self {
        Self(std::fs::read(folder.join("ref.safetensors")).unwrap())
    }

    fn ids(&self) -> Vec<u32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = tensors.tensor("ids").unwrap().data();
        let ids = bytes.as_chunks().0.iter().map(|&id| i64::from_le_bytes(id));
        ids.map(|id| u32::try_from(id).unwrap()).collect()
    }

    fn values(&self, name: &str) -> Option<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let bytes = tensors.tensor(name).ok()?.data();
        Some(bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect())
    }
}

/// Logits of pieces of the ids, one after the other.
fn logits(model: &Model, sequence: &mut Sequence, ids: &[u32], pieces: &[usize]) -> Vec<f32> {
    let (mut logits, mut from) = (Vec::new(), 0);
    for piece in pieces {
        let step = Step { sequence, ids: &ids[from..from + piece], logits: Wanted::All };
        logits.extend(model.forward(&mut [step]).unwrap());
        from += piece;
    }
    logits
}

fn assert_close(name: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{name}");
    let differences = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs());
    let largest = differences.fold(0.0, f32::max);
    assert!(largest <= TOLERANCE, "{name}: {largest}");
}

#[test]
fn logits_are_the_references_on_every_instruction_set_however_the_tokens_come() {
    for folder in folders() {
        let reference = Reference::open(&folder);
        let ids = reference.ids();
        let after = [vec![130], vec![1; ids.len() - 130]].concat();
        for isa in Isa::available() {
            let model = load(&folder, Dtype::F32, isa);
            for (name, pieces) in [
                ("full_eager", vec![ids.len()]),
                ("logits_fp32_math", vec![ids.len()]),
                ("cached_130", after.clone()),
                ("stepwise_80", vec![1; 80]),
                ("chunked_132", vec![70, 57, 3, 1, 1]),
            ] {
                let Some(theirs) = reference.values(name) else { continue };
                let ours = logits(&model, &mut model.sequence(), &ids, &pieces);
                assert_close(&format!("{} {isa:?} {name}", folder.display()), &ours, &theirs);
            }
        }
    }
}

#[test]
fn states_and_caches_are_the_references() {
    for folder in folders() {
        let reference = Reference::open(&folder);
        let Some(state) = reference.values("l0_rec") else { continue };
        let model = load(&folder, Dtype::F32, Isa::detect());
        let mut sequence = model.sequence();
        logits(&model, &mut sequence, &reference.ids(), &[132]);
        let shape = model.shape();
        assert_close("state", &sequence.recurrent_state(0, shape).unwrap(), &state);
        let heads = sequence.keys_and_values(3, shape).unwrap();
        // The reference has [heads, tokens, head], too.
        let (keys, values): (Vec<_>, Vec<_>) = heads.into_iter().unzip();
        assert_close("keys", &keys.concat(), &reference.values("l3_k").unwrap());
        assert_close("values", &values.concat(), &reference.values("l3_v").unwrap());
    }
}

/// The root of the mean square difference, and how often the largest logit is the same one.
fn compare(ours: &[f32], theirs: &[f32], vocab: usize) -> (f64, f64) {
    let squares = ours.iter().zip(theirs).map(|(a, b)| f64::from(a - b) * f64::from(a - b));
    let rms = (squares.sum::<f64>() / ours.len() as f64).sqrt();
    let best = |row: &[f32]| row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    let rows = ours.chunks_exact(vocab).zip(theirs.chunks_exact(vocab));
    let same = rows.filter(|(ours, theirs)| best(ours) == best(theirs)).count();
    (rms, same as f64 / (ours.len() / vocab) as f64)
}

/// The mean Kullback-Leibler divergence of the distributions of all rows, in nats.
fn divergence(ours: &[f32], theirs: &[f32], vocab: usize) -> f64 {
    let distribution = |row: &[f32]| -> Vec<f64> {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weights: Vec<f64> = row.iter().map(|x| f64::from(x - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    };
    let rows = ours.chunks_exact(vocab).zip(theirs.chunks_exact(vocab));
    let each = rows.map(|(ours, theirs)| {
        let (ours, theirs) = (distribution(ours), distribution(theirs));
        theirs.iter().zip(ours).map(|(p, q)| p * (p / q).ln()).sum::<f64>()
    });
    each.sum::<f64>() / (ours.len() / vocab) as f64
}

/// How far a form may be from another: the root of the mean square difference of logits.
struct Limits {
    dtype: Dtype,
    /// From BF16.
    of_form: f64,
    /// From the same form on another instruction set, which rounds activations in other places.
    of_isa: f64,
}

/// Prints what each form of weights loses against BF16, with the first instruction set and then with the others, and holds it to a
/// limit.
fn check_forms(folder: &Path, ids: &[u32], sets: &[Isa], limits: &[Limits]) {
    let computed = |dtype, isa| {
        let model = load(folder, dtype, isa);
        let vocab = model.shape().vocab;
        (logits(&model, &mut model.sequence(), ids, &[ids.len()]), vocab)
    };
    let (halves, vocab) = computed(Dtype::Bf16, sets[0]);
    let name = folder.file_name().unwrap().display();
    for Limits { dtype, of_form, of_isa } in limits {
        let (first, _) = computed(*dtype, sets[0]);
        let (rms, same) = compare(&first, &halves, vocab);
        let divergence = divergence(&first, &halves, vocab);
        println!(
            "{name} {dtype:?} against bf16: rms {rms:.4}, divergence {divergence:.6}, same best {same:.3}"
        );
        assert!(rms <= *of_form, "{name} {dtype:?}: {rms}");
        for isa in sets.iter().skip(1) {
            let (rms, same) = compare(&computed(*dtype, *isa).0, &first, vocab);
            println!(
                "{name} {dtype:?} {isa:?} against {:?}: rms {rms:.5}, same best {same:.3}",
                sets[0]
            );
            assert!(rms <= *of_isa, "{name} {dtype:?} {isa:?}: {rms}");
        }
    }
}

#[test]
fn other_forms_of_weights_are_near_on_every_instruction_set() {
    for folder in folders() {
        let reference = Reference::open(&folder);
        let (ids, exact) = (reference.ids(), reference.values("full_eager"));
        let Some(exact) = exact else { continue };
        let model = load(&folder, Dtype::Bf16, Isa::detect());
        let ours = logits(&model, &mut model.sequence(), &ids, &[ids.len()]);
        let (rms, _) = compare(&ours, &exact, model.shape().vocab);
        assert!(rms < 0.05, "{}: {rms}", folder.display());
        // Tiny random models exaggerate what rounding does; the limits catch a mistake, not a loss of quality.
        let limits = [
            Limits { dtype: Dtype::Bf16, of_form: 0.0, of_isa: 0.05 },
            Limits { dtype: Dtype::Int8, of_form: 0.3, of_isa: 0.05 },
            Limits { dtype: Dtype::Int4, of_form: 2.0, of_isa: 0.05 },
        ];
        let others = Isa::available().into_iter().filter(|isa| *isa != Isa::Portable);
        let sets: Vec<Isa> = std::iter::once(Isa::Portable).chain(others).collect();
        check_forms(&folder, &ids, &sets, &limits);
    }
}

/// Heads of the published widths, and enough of everything that rounding averages out as in a real model.
#[test]
fn other_forms_of_weights_are_near_in_a_larger_random_model() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("random");
    let mut config = random_model::published();
    for (key, size) in [
        ("hidden_size", 512),
        ("intermediate_size", 1536),
        ("vocab_size", 4096),
        ("num_hidden_layers", 8),
        ("num_attention_heads", 4),
        ("num_key_value_heads", 1),
        ("linear_num_key_heads", 4),
        ("linear_num_value_heads", 8),
    ] {
        config[key] = json!(size);
    }
    random_model::make(&folder, &config).unwrap();
    let ids: Vec<u32> = (0..160).map(|at| at * 1237 % 4096).collect();
    let limits = [
        Limits { dtype: Dtype::Bf16, of_form: 0.0, of_isa: 0.05 },
        Limits { dtype: Dtype::Int8, of_form: 0.05, of_isa: 0.05 },
        Limits { dtype: Dtype::Int4, of_form: 0.4, of_isa: 0.05 },
    ];
    // Without vectors it would take minutes.
    check_forms(&folder, &ids, &[Isa::detect()], &limits);
}

#[test]
fn a_sequences_logits_are_the_same_alone_in_company_and_however_it_is_cut() {
    let folder = own().join("tiny0");
    let ids = Reference::open(&folder).ids();
    for isa in Isa::available() {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
            let model = load(&folder, dtype, isa);
            let whole = logits(&model, &mut model.sequence(), &ids, &[ids.len()]);
            let cut =
                logits(&model, &mut model.sequence(), &ids, &[100, 1, 1, 37, ids.len() - 139]);
            assert_eq!(whole, cut, "{isa:?} {dtype:?}");
            let mut sequences = [model.sequence(), model.sequence(), model.sequence()];
            let lengths = [ids.len(), 7, 60];
            let mut steps: Vec<Step<'_>> = sequences
                .iter_mut()
                .zip(lengths)
                .map(|(sequence, n)| Step { sequence, ids: &ids[..n], logits: Wanted::All })
                .collect();
            steps.rotate_left(1);
            let all = model.forward(&mut steps).unwrap();
            let vocab = model.shape().vocab;
            assert_eq!(all[..7 * vocab], whole[..7 * vocab], "{isa:?} {dtype:?}");
            assert_eq!(all[67 * vocab..], whole, "{isa:?} {dtype:?}");
        }
    }
}

#[test]
fn a_long_context_is_read_the_same_by_any_number_of_threads_and_however_it_is_cut() {
    let folder = own().join("tiny0");
    // More than eight blocks of the attention, and no whole number of them.
    let ids: Vec<u32> = (0..2200).map(|at| at * 31 % 199).collect();
    for isa in Isa::available() {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let mut first = None;
            for (n_threads, pieces) in [(1, [512, 1680, 8]), (2, [2199, 1, 0]), (7, [2100, 99, 1])]
            {
                let options = Options { dtype: Some(dtype), n_threads, isa };
                let model = Model::load(&folder, &options).unwrap();
                let all = logits(&model, &mut model.sequence(), &ids, &pieces);
                let last = all[2100 * model.shape().vocab..].to_vec();
                let first = first.get_or_insert_with(|| last.clone());
                assert!(*first == last, "{isa:?} {dtype:?} {n_threads} threads");
            }
        }
    }
}

#[test]
fn a_batch_without_tokens_gives_no_logits_and_changes_nothing() {
    let folder = own().join("tiny0");
    for isa in Isa::available() {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
            let model = load(&folder, dtype, isa);
            assert!(model.forward(&mut []).unwrap().is_empty());
            let (mut empty, mut other) = (model.sequence(), model.sequence());
            for logits in [Wanted::None, Wanted::Last, Wanted::All] {
                let step = Step { sequence: &mut empty, ids: &[], logits };
                assert!(model.forward(&mut [step]).unwrap().is_empty(), "{isa:?} {dtype:?}");
            }
            // Beside others, too.
            let beside = model
                .forward(&mut [
                    Step { sequence: &mut empty, ids: &[], logits: Wanted::All },
                    Step { sequence: &mut other, ids: &[1, 2, 3], logits: Wanted::Last },
                ])
                .unwrap();
            let mut alone = model.sequence();
            assert_eq!(beside, logits(&model, &mut alone, &[1, 2, 3], &[3])[2 * 199..]);
            assert_eq!(logits(&model, &mut empty, &[1, 2, 3], &[3])[2 * 199..], beside);
        }
    }
}

#[test]
fn a_number_of_threads_that_no_machine_has_is_an_error_with_advice() {
    let options = Options { dtype: None, n_threads: usize::MAX, isa: Isa::detect() };
    let Err(error) = Model::load(&own().join("tiny0"), &options) else { panic!("it is loaded") };
    let text = error.to_string();
    assert_eq!(text, format!("cannot start {} threads; set fewer", usize::MAX));
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "the largest number of threads is 4096");
}

#[test]
fn a_sequence_goes_back_to_a_snapshot() {
    let folder = own().join("tiny0");
    let ids = Reference::open(&folder).ids();
    let model = load(&folder, Dtype::Bf16, Isa::detect());
    let whole = logits(&model, &mut model.sequence(), &ids, &[ids.len()]);
    let mut sequence = model.sequence();
    logits(&model, &mut sequence, &ids, &[100]);
    let snapshot = sequence.snapshot();
    logits(&model, &mut sequence, &[5; 30], &[30]);
    sequence.restore(&snapshot, model.shape());
    assert_eq!(sequence.n_tokens(), 100);
    let after = logits(&model, &mut sequence, &ids[100..], &[ids.len() - 100]);
    assert_eq!(after, whole[100 * model.shape().vocab..]);
    let unknown = Step { sequence: &mut sequence, ids: &[1, 9999], logits: Wanted::Last };
    assert!(model.forward(&mut [unknown]).is_err());
    assert_eq!(sequence.n_tokens(), ids.len());
}
