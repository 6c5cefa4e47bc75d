//! What a loaded model still holds of its file.

use std::path::Path;
use std::sync::Weak;

use memmap2::Mmap;

use super::*;
use crate::Shape;
use crate::backend::cpu::{Model, Options};
use crate::checkpoint::Role;
use crate::quantised::{Quantised, write};

/// A model of BF16.
fn source() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/official_layout")
}

/// Loads a folder, and returns the model and its maps once nobody else holds them.
fn loaded(folder: &Path, dtype: Option<Dtype>) -> (Model, Vec<Weak<Mmap>>) {
    let shape = Shape::read(folder).unwrap();
    let checkpoint = Checkpoint::open(folder, &shape).unwrap();
    let maps = checkpoint.maps().map(std::sync::Arc::downgrade).collect();
    let options = Options { dtype, n_threads: 1, isa: Isa::detect() };
    (Model::take(shape, &checkpoint, &options).unwrap(), maps)
}

#[test]
fn a_model_holds_its_file_where_it_reads_weights_in_place_and_only_there() {
    let mut cases = vec![
        (source(), Some(Dtype::Bf16), true),
        (source(), Some(Dtype::F32), false),
        (source(), Some(Dtype::Int8), false),
        (source(), Some(Dtype::Int4), false),
    ];
    let made = tempfile::tempdir().unwrap();
    for form in [Quantised::Int8, Quantised::Int4] {
        let folder = made.path().join(form.name());
        write(&source(), &folder, form, 1, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        cases.push((folder, None, true));
    }
    for (folder, dtype, is_held) in cases {
        let (model, maps) = loaded(&folder, dtype);
        let held = maps.iter().filter(|map| map.upgrade().is_some()).count();
        assert_eq!(held, if is_held { maps.len() } else { 0 }, "{} {dtype:?}", folder.display());
        drop(model);
        assert!(maps.iter().all(|map| map.upgrade().is_none()));
    }
}

#[test]
fn codes_of_a_quantised_folder_are_used_where_they_lie() {
    let made = tempfile::tempdir().unwrap();
    for form in [Quantised::Int8, Quantised::Int4] {
        let folder = made.path().join(form.name());
        write(&source(), &folder, form, 1, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        let (model, _) = loaded(&folder, None);
        let (Weights::Int8(panels) | Weights::Int4(panels)) = &model.embedding.weights else {
            panic!("the embedding is quantised")
        };
        assert!(panels.codes.is_mapped() && panels.scales.is_mapped(), "{form:?}");
    }
}

/// Bytes of a map that are in the memory of this process.
#[cfg(target_os = "linux")]
fn resident_bytes(map: &Mmap) -> usize {
    let start = format!("{:x}-", map.as_ptr().addr());
    let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = all.lines().skip_while(|line| !line.starts_with(&start));
    let line = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    1024 * line.trim().trim_end_matches(" kB").parse::<usize>().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn what_was_converted_is_given_back() {
    let (outputs, inputs) = (2048, 1024);
    let bytes = [0x80, 0x3f].repeat(outputs * inputs);
    let folder = tempfile::tempdir().unwrap();
    let view = safetensors::tensor::TensorView::new(
        safetensors::Dtype::BF16,
        vec![outputs, inputs],
        &bytes,
    );
    let file = folder.path().join("model.safetensors");
    safetensors::serialize_to_file([("x", view.unwrap())], None, &file).unwrap();
    let checkpoint = Checkpoint::of_file(&file).unwrap();
    let tensor =
        Expected { name: "x".into(), dimensions: vec![outputs, inputs], role: Role::Linear };
    let map = checkpoint.maps().next().unwrap();
    let machine = Machine::new(2, Isa::detect()).unwrap();
    for dtype in [Dtype::F32, Dtype::Int8, Dtype::Int4] {
        checkpoint.values(&tensor).unwrap();
        assert!(resident_bytes(map) >= bytes.len() / 2, "reading brings it into memory");
        let rest = vec![tensor.clone()].into_iter();
        let mut load = Loader { machine: &machine, checkpoint: &checkpoint, dtype, rest };
        let matrix = load.matrix().unwrap();
        assert!(matrix.bytes() > bytes.len() / 4);
        let left = resident_bytes(map);
        assert!(left <= bytes.len() / 16, "{dtype:?}: {left} bytes are still in memory");
    }
}
