//! What the fuzz targets do, with bytes that once were too much. So the targets cannot rot either.

#[path = "../fuzz/bodies/loader.rs"]
mod loader;
#[path = "../fuzz/bodies/parser.rs"]
mod parser;

#[test]
fn a_spoiled_folder_is_loaded_or_refused_by_name() {
    let folder = tempfile::tempdir().expect("the temp folder can be written");
    assert!(loader::run(folder.path(), &[]), "without changes it is a good one");
}

#[test]
fn however_a_turn_is_cut_it_says_the_same() {
    parser::run(b"\x20\x03Hm\xf9\n\n\xfa\n<function=Write>\n<parameter=s>\na\n</parameter>\n</function>\n\xfb");
}
