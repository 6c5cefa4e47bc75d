//! Logits, states and caches against those that transformers computed for small models with random weights.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use engine::portable::Model;
use safetensors::SafeTensors;

/// Largest absolute difference of an fp32 logit: the reference's own noise is half of it.
const TOLERANCE: f32 = 2e-4;

struct Reference {
    file: Vec<u8>,
    model: Model,
}

/// The models of this repository, and the larger ones where they lie beside it.
fn folders() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/qwen35");
    let all = [
        own.join("tiny0"),
        own.join("official_layout"),
        shared.join("tiny1"),
        shared.join("tiny_realdims"),
    ];
    all.into_iter().filter(|folder| folder.is_dir()).collect()
}

impl Reference {
    fn open(folder: &Path) -> Self {
        let file = std::fs::read(folder.join("ref.safetensors")).unwrap();
        Self { file, model: Model::load(folder).unwrap() }
    }

    fn ids(&self) -> Vec<u32> {
        let tensors = SafeTensors::deserialize(&self.file).unwrap();
        let bytes = tensors.tensor("ids").unwrap().data().to_vec();
        bytes
            .chunks_exact(8)
            .map(|id| u32::try_from(i64::from_le_bytes(id.try_into().unwrap())).unwrap())
            .collect()
    }

    fn values(&self, name: &str) -> Option<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.file).unwrap();
        let bytes = tensors.tensor(name).ok()?.data().to_vec();
        Some(
            bytes
                .chunks_exact(4)
                .map(|value| f32::from_le_bytes(value.try_into().unwrap()))
                .collect(),
        )
    }

    /// Logits of pieces of the ids, one after the other.
    fn logits(&self, pieces: &[usize]) -> Vec<f32> {
        let (ids, mut sequence, mut from) = (self.ids(), self.model.sequence(), 0);
        let mut logits = Vec::new();
        for piece in pieces {
            logits.extend(self.model.forward(&mut sequence, &ids[from..from + piece]).unwrap());
            from += piece;
        }
        logits
    }
}

fn assert_close(name: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{name}");
    let differences = ours.iter().zip(theirs).map(|(ours, theirs)| (ours - theirs).abs());
    let largest = differences.fold(0.0, f32::max);
    assert!(largest <= TOLERANCE, "{name}: {largest}");
}

#[test]
fn logits_are_the_references_however_the_tokens_come() {
    for folder in folders() {
        let reference = Reference::open(&folder);
        let n = reference.ids().len();
        let steps = vec![1; 80];
        let after = [vec![130], vec![1; n - 130]].concat();
        for (name, pieces) in [
            ("full_eager", vec![n]),
            ("logits_fp32_math", vec![n]),
            ("cached_130", after),
            ("stepwise_80", steps),
            ("chunked_132", vec![70, 57, 3, 1, 1]),
        ] {
            if let Some(theirs) = reference.values(name) {
                let name = format!("{} {name}", folder.display());
                assert_close(&name, &reference.logits(&pieces), &theirs);
            }
        }
    }
}

#[test]
fn states_and_caches_are_the_references() {
    for folder in folders() {
        let reference = Reference::open(&folder);
        let Some(state) = reference.values("l0_rec") else { continue };
        let ids = reference.ids();
        let mut sequence = reference.model.sequence();
        reference.model.forward(&mut sequence, &ids[..132]).unwrap();
        assert_close("recurrent state", sequence.recurrent_state(0).unwrap(), &state);
        let (keys, values) = sequence.keys_and_values(3).unwrap();
        let shape = &reference.model.shape().attention;
        // The reference has [heads, tokens, head].
        let turned = |ours: &[f32]| -> Vec<f32> {
            let heads = 0..shape.n_kv_heads;
            heads
                .flat_map(|head| {
                    (0..132).flat_map(move |token| {
                        let from = (token * shape.n_kv_heads + head) * shape.head;
                        from..from + shape.head
                    })
                })
                .map(|at| ours[at])
                .collect()
        };
        assert_close("keys", &turned(keys), &reference.values("l3_k").unwrap());
        assert_close("values", &turned(values), &reference.values("l3_v").unwrap());
    }
}

#[test]
fn a_snapshot_goes_on_like_the_sequence_itself() {
    let reference = Reference::open(&folders()[0]);
    let ids = reference.ids();
    let mut sequence = reference.model.sequence();
    reference.model.forward(&mut sequence, &ids[..100]).unwrap();
    let mut snapshot = sequence.clone();
    reference.model.forward(&mut sequence, &[5, 6, 7]).unwrap();
    let ours = reference.model.forward(&mut snapshot, &ids[100..]).unwrap();
    let vocab = reference.model.shape().vocab;
    assert_close(
        "after a snapshot",
        &ours,
        &reference.values("full_eager").unwrap()[100 * vocab..],
    );
    assert!(reference.model.forward(&mut snapshot, &[u32::MAX]).is_none());
}
