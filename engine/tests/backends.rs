//! The CPU backend against the reference's logits in f32, and its other forms of weights against that.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use engine::backend::cpu::{Dtype, Isa, Model, Options, Sequence, Step, Wanted};
use safetensors::SafeTensors;

/// Largest absolute difference of an fp32 logit: the reference's own noise is half of it.
const TOLERANCE: f32 = 2e-4;

fn own() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The models of this repository, and the larger ones where they lie beside it.
fn folders() -> Vec<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/qwen35");
    let names = ["tiny1", "tiny_realdims"].map(|name| shared.join(name));
    let all = [own().join("tiny0"), own().join("official_layout")].into_iter().chain(names);
    all.filter(|folder| folder.is_dir()).collect()
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

#[test]
fn other_forms_of_weights_are_near_and_equal_on_every_instruction_set() {
    for folder in folders() {
        let reference = Reference::open(&folder);
        let (ids, exact) = (reference.ids(), reference.values("full_eager"));
        let Some(exact) = exact else { continue };
        let vocab = exact.len() / ids.len();
        let computed = |dtype, isa| {
            let model = load(&folder, dtype, isa);
            logits(&model, &mut model.sequence(), &ids, &[ids.len()])
        };
        let (rms, _) = compare(&computed(Dtype::Bf16, Isa::detect()), &exact, vocab);
        assert!(rms < 0.05, "{}: {rms}", folder.display());
        let halves = computed(Dtype::Bf16, Isa::Portable);
        // Tiny random models exaggerate what rounding does; the limits catch a mistake, not a loss of quality.
        for (dtype, limit) in [(Dtype::Bf16, 0.05), (Dtype::Int8, 0.3), (Dtype::Int4, 2.0)] {
            let first = computed(dtype, Isa::Portable);
            let (rms, same) = compare(&first, &halves, vocab);
            let divergence = divergence(&first, &halves, vocab);
            println!(
                "{} {dtype:?} against bf16: rms {rms:.4}, divergence {divergence:.4}, same best {same:.3}",
                folder.file_name().unwrap().display()
            );
            assert!(rms < limit, "{} {dtype:?}: {rms}", folder.display());
            for isa in Isa::available() {
                let (rms, _) = compare(&computed(dtype, isa), &first, vocab);
                assert!(rms < limit / 5.0, "{} {dtype:?} {isa:?}: {rms}", folder.display());
            }
        }
    }
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
