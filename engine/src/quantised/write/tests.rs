//! A disk that is full, and the layout of the file.

use super::*;
use crate::quantised::Part;

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/official_layout")
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    let shape = Shape::read(&source()).unwrap();
    let (checkpoint, tensors) = (Checkpoint::open(&source(), &shape).unwrap(), expected(&shape));
    let plan = Plan::new(&checkpoint, &tensors, Quantised::Int8).unwrap();
    // What is written to this device always finds no space.
    let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut writer = Writer {
        file: &file,
        path: "/models/out/model.safetensors".into(),
        written: 0,
        progress: &mut |_| ControlFlow::Continue(()),
    };
    let quantiser = Quantiser::new(1).unwrap();
    let error = writer.all(&plan, &checkpoint, &quantiser, Quantised::Int8).unwrap_err();
    assert_eq!(error.to_string(), "cannot write `/models/out/model.safetensors`");
    let Error::Write { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn codes_lie_on_whole_lines_of_the_cache_and_everything_has_its_place() {
    let shape = Shape::read(&source()).unwrap();
    let (checkpoint, tensors) = (Checkpoint::open(&source(), &shape).unwrap(), expected(&shape));
    for form in [Quantised::Int8, Quantised::Int4] {
        let plan = Plan::new(&checkpoint, &tensors, form).unwrap();
        let mut places = Vec::new();
        for (tensor, starts) in &plan.tensors {
            let sizes = match form.parts(tensor) {
                Some(parts) => {
                    assert_eq!(starts[0] % ALIGNED, 0, "{}", tensor.name);
                    parts.iter().map(Part::n_bytes).collect()
                }
                None => vec![checkpoint.bytes(tensor).unwrap().2.len()],
            };
            assert_eq!(sizes.len(), starts.len());
            places.extend(starts.iter().copied().zip(sizes));
        }
        places.sort_unstable();
        let end = places.into_iter().fold(plan.header.len(), |end, (start, size)| {
            assert_eq!(start, end, "no gap, and nothing twice");
            start + size
        });
        assert_eq!(end, plan.all_bytes);
    }
}
