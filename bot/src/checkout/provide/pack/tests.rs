//! Packs against the real `git`, which makes its own index of each.

use std::path::{Path, PathBuf};

use git2::Oid;
use proptest::prelude::*;

use super::*;
use crate::checkout::testing::{git, git_reading};

/// A repository for packs to be looked at in, and the folder of its packs.
fn repository() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "--quiet", "--bare"]);
    let folder = dir.path().join("objects/pack");
    (dir, folder)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Packs blobs, and compares the index with the one that git makes of the same pack.
fn check(blobs: &[Vec<u8>]) {
    let (dir, folder) = repository();
    let mut pack = Writer::new(&folder, blobs.len()).unwrap();
    let ids: Vec<Sum> =
        blobs.iter().map(|blob| pack.add(ObjectType::Blob, blob).unwrap()).collect();
    pack.finish(Lasting::Yes).unwrap();
    let files = names(&folder);
    let [index, pack] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!(index.strip_suffix(".idx"), pack.strip_suffix(".pack"));

    let theirs = dir.path().join("theirs.idx");
    let (pack, theirs) = (folder.join(pack), theirs.to_str().unwrap());
    git(dir.path(), &["index-pack", "--strict", "-o", theirs, pack.to_str().unwrap()]);
    assert_eq!(std::fs::read(folder.join(index)).unwrap(), std::fs::read(theirs).unwrap());
    git(dir.path(), &["verify-pack", "-v", folder.join(index).to_str().unwrap()]);
    for (id, blob) in ids.iter().zip(blobs) {
        assert_eq!(Oid::from_bytes(id).unwrap(), Oid::hash_object(ObjectType::Blob, blob).unwrap());
        let size = git(dir.path(), &["cat-file", "-s", &hex::encode(id)]);
        assert_eq!(size, blob.len().to_string());
    }
}

/// Bytes that do not compress, different ones for each seed.
fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        // xorshift64 of Marsaglia, 2003.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..size).map(|_| next()).collect()
}

#[test]
fn git_agrees_with_the_index_of_objects_at_every_edge_of_size() {
    let sizes = [
        0, 1, 15, 16, 17, 2047, 2048, 2049, 65_534, 65_535, 65_536, 131_071, 131_072, 262_143,
        262_144, 1_000_000, 5_000_000,
    ];
    let noisy = sizes.iter().map(|&size| noise(size as u64, size));
    // Objects of one content are one object, and a pack holds each once.
    let plain = sizes.iter().skip(2).map(|&size| vec![b'a'; size]);
    check(&noisy.chain(plain).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn git_agrees_with_the_index_of_any_objects(
        sizes in prop::collection::vec(prop_oneof![0_usize..100, 0_usize..300_000], 1..30),
        seed in any::<u32>(),
    ) {
        let blob = |(number, &size): (usize, &usize)| {
            // The number tells two short objects apart.
            let mut blob = noise(u64::from(seed) + number as u64, size);
            blob.extend(number.to_le_bytes());
            blob
        };
        check(&sizes.iter().enumerate().map(blob).collect::<Vec<_>>());
    }
}

#[test]
fn an_index_leads_beyond_two_gibibytes() {
    let (dir, _) = repository();
    let offsets = [12, FAR - 1, FAR, FAR + 7, 5 << 32];
    let entry = |(number, &offset): (u8, &u64)| Entry {
        id: [0x90 - number; 20],
        crc: u32::from(number),
        offset,
    };
    let mut entries: Vec<_> = (0..).zip(&offsets).map(entry).collect();
    let path = dir.path().join("far.idx");
    write_index(&mut entries, [7; 20], File::create(&path).unwrap()).unwrap();
    let shown = git_reading(dir.path(), &["show-index"], File::open(&path).unwrap());
    let shown = String::from_utf8(shown.stdout).unwrap();
    let line = |(number, &offset): (u8, &u64)| {
        format!("{offset} {} ({:08x})\n", hex::encode([0x90 - number; 20]), number)
    };
    // In the order of the ids, which is the other way round.
    let expected: Vec<_> = (0..).zip(&offsets).map(line).collect();
    assert_eq!(shown, expected.into_iter().rev().collect::<String>());
}

#[test]
fn a_pack_that_is_not_finished_leaves_nothing() {
    let (_dir, folder) = repository();
    let mut pack = Writer::new(&folder, 2).unwrap();
    pack.add(ObjectType::Blob, b"one").unwrap();
    assert!(names(&folder).iter().all(|name| name.starts_with(GROWING)));
    assert!(pack.finish(Lasting::No).unwrap_err().to_string().contains("1 objects instead of 2"));
    assert_eq!(names(&folder), Vec::<String>::new());
    drop(Writer::new(&folder, 1).unwrap());
    assert_eq!(names(&folder), Vec::<String>::new());
}
