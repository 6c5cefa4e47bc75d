//! What the fuzz targets do, with the seeds that they begin with: good inputs, and some that once were too much. So the
//! targets cannot rot either.

#[path = "../fuzz/bodies/loader.rs"]
mod loader;
#[path = "../fuzz/bodies/parser.rs"]
mod parser;
#[path = "fuzz/streams.rs"]
mod streams;

use std::path::Path;

use loader::{Folders, Outcome};

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
    let files = std::fs::read_dir(folder).expect("there are seeds");
    files
        .map(|file| std::fs::read(file.expect("it is listed").path()).expect("it is there"))
        .collect()
}

#[test]
fn a_spoiled_folder_is_loaded_or_refused_by_name() {
    let place = tempfile::tempdir().expect("the temp folder can be written");
    let folders = Folders::new(place.path());
    for (form, n_forms) in [(0, 4), (1, 1), (2, 1), (3, 4)] {
        for more in [0, 4, 8] {
            assert_eq!(folders.run(&[form + more]), Outcome::Loaded(n_forms), "{form} {more}");
        }
    }
    assert_eq!(folders.run(&[]), Outcome::Loaded(4));
    // A byte of the length of a file's header.
    assert_eq!(folders.run(&[0, 2, 0, 0, 1, 1, 0xff]), Outcome::Refused);
    for seed in seeds("loader") {
        folders.run(&seed);
    }
}

#[test]
fn however_a_turn_is_cut_it_says_the_same() {
    seeds("parser").iter().for_each(|seed| parser::run(seed));
}
