//! Writes a quantised folder: block by block, into a folder beside the target that takes its name at the end.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safetensors::Dtype as Stored;
use serde_json::{Map, Value, json};

use super::Quantised;
use crate::backend::cpu::Quantiser;
use crate::checkpoint::{Checkpoint, Expected, expected};
use crate::{Error, Shape};

/// The one file of weights.
const WEIGHTS: &str = "model.safetensors";
/// Ends of the names of files that are copied: configuration, tokenizer, template, licence and description.
const COPIED: [&str; 6] = [".json", ".jinja", ".txt", ".md", ".model", "LICENSE"];
/// The end of the name of the source's list of files, which is not true of the copy.
const INDEX: &str = ".index.json";
/// The data begins at, and codes take, multiples of this: a line of the cache.
const ALIGNED: usize = 64;

/// How far the writing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of weights that are written.
    pub written_bytes: u64,
    /// Bytes of all weights.
    pub all_bytes: u64,
}

/// Quantises the model's folder `source` into the folder `out`, which is missing or empty. Each of `progress` is told before
/// the next bytes are written, and may break off; then, as after an error, nothing is left.
///
/// # Errors
/// Names the file that cannot be read or written, or the tensor that is not in order.
pub fn write(
    source: &Path,
    out: &Path,
    form: Quantised,
    n_threads: usize,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), Error> {
    let shape = Shape::read(source)?;
    let checkpoint = Checkpoint::open(source, &shape)?;
    if let Some(form) = checkpoint.quantised() {
        let reason = format!(
            "its weights are quantised to {} already; use the folder that they were made from",
            form.name()
        );
        return Err(Error::File { file: source.to_owned(), reason });
    }
    let quantiser = Quantiser::new(n_threads)?;
    let tensors = expected(&shape);
    let plan = Plan::new(&checkpoint, &tensors, form)?;
    let partial = Partial::begin(out)?;
    partial.copy(source)?;
    let mut writer =
        Writer { file: &partial.weights, path: partial.folder.join(WEIGHTS), written: 0, progress };
    writer.all(&plan, &checkpoint, &quantiser, form)?;
    partial.finish()
}

/// What goes where in the file.
struct Plan<'a> {
    /// Of the file, up to the first tensor.
    header: Vec<u8>,
    /// Each tensor, and where its codes and its scales begin, or its values.
    tensors: Vec<(&'a Expected, Vec<usize>)>,
    all_bytes: usize,
}

/// Part of a tensor, as the header names it.
struct Stretch {
    /// Of the tensor.
    at: usize,
    name: String,
    dtype: Stored,
    dimensions: Vec<usize>,
    n_bytes: usize,
}

impl<'a> Plan<'a> {
    fn new(
        checkpoint: &Checkpoint,
        tensors: &'a [Expected],
        form: Quantised,
    ) -> Result<Self, Error> {
        // The parts of all tensors: first codes, then scales, then what is as in the source.
        let mut sorted: [Vec<Stretch>; 3] = Default::default();
        for (at, tensor) in tensors.iter().enumerate() {
            let (name, dtype, bytes) = checkpoint.bytes(tensor)?;
            match form.parts(tensor) {
                Some(parts) => {
                    for (part, sorted) in parts.into_iter().zip(&mut sorted) {
                        let (name, n_bytes) = (format!("{name}{}", part.suffix), part.n_bytes());
                        let (dtype, dimensions) = (part.dtype, part.dimensions);
                        sorted.push(Stretch { at, name, dtype, dimensions, n_bytes });
                    }
                }
                None => {
                    let (name, dimensions) = (name.to_owned(), tensor.dimensions.clone());
                    let n_bytes = bytes.len();
                    sorted[2].push(Stretch { at, name, dtype, dimensions, n_bytes });
                }
            }
        }
        let metadata: Map<String, Value> = form
            .metadata()
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect();
        let mut entries = Map::from_iter([("__metadata__".to_owned(), metadata.into())]);
        let mut starts = vec![Vec::new(); tensors.len()];
        let mut end = 0;
        for Stretch { at, name, dtype, dimensions, n_bytes } in sorted.into_iter().flatten() {
            let offsets = [end, end + n_bytes];
            let entry = json!({ "dtype": dtype, "shape": dimensions, "data_offsets": offsets });
            entries.insert(name, entry);
            starts[at].push(end);
            end += n_bytes;
        }
        let header = header(&entries);
        let (first, tensors) = (header.len(), tensors.iter().zip(starts));
        let tensors = tensors
            .map(|(tensor, starts)| (tensor, starts.into_iter().map(|at| first + at).collect()))
            .collect();
        Ok(Self { header, tensors, all_bytes: first + end })
    }
}

/// The length of the entries, and the entries, up to where the data begins.
fn header(entries: &Map<String, Value>) -> Vec<u8> {
    let mut text = Value::Object(entries.clone()).to_string().into_bytes();
    let padded = (8 + text.len()).next_multiple_of(ALIGNED) - 8;
    text.resize(padded, b' ');
    [&(padded as u64).to_le_bytes(), text.as_slice()].concat()
}

struct Writer<'a> {
    file: &'a File,
    path: PathBuf,
    written: usize,
    progress: &'a mut dyn FnMut(Progress) -> ControlFlow<()>,
}

impl Writer<'_> {
    fn all(
        &mut self,
        plan: &Plan<'_>,
        checkpoint: &Checkpoint,
        quantiser: &Quantiser,
        form: Quantised,
    ) -> Result<(), Error> {
        self.put(0, &plan.header, plan.all_bytes)?;
        for (tensor, starts) in &plan.tensors {
            match starts.as_slice() {
                &[mut codes_at, mut scales_at] => {
                    let dtype = form.dtype_of(tensor);
                    quantiser.quantise(checkpoint, tensor, dtype, &mut |codes, scales| {
                        self.put(codes_at, codes, plan.all_bytes)?;
                        self.put(scales_at, scales, plan.all_bytes)?;
                        codes_at += codes.len();
                        scales_at += scales.len();
                        Ok(())
                    })?;
                }
                starts => {
                    // Nothing that is not finite goes into the copy.
                    checkpoint.values(tensor)?;
                    let (_, _, bytes) = checkpoint.bytes(tensor)?;
                    for &start in starts {
                        self.put(start, &bytes, plan.all_bytes)?;
                    }
                }
            }
        }
        self.file.sync_all().map_err(|source| self.failed(source))
    }

    fn put(&mut self, at: usize, bytes: &[u8], all_bytes: usize) -> Result<(), Error> {
        let (written_bytes, all_bytes) = (self.written as u64, all_bytes as u64);
        if (self.progress)(Progress { written_bytes, all_bytes }).is_break() {
            return Err(Error::Stopped);
        }
        let sought = self.file.seek(SeekFrom::Start(at as u64));
        let put = sought.and_then(|_| self.file.write_all(bytes));
        put.map_err(|source| self.failed(source))?;
        self.written += bytes.len();
        Ok(())
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Write { file: self.path.clone(), source }
    }
}

/// Whether a file of the source goes into the copy.
fn is_copied(name: &str) -> bool {
    COPIED.iter().any(|end| name.ends_with(end)) && !name.ends_with(INDEX)
}

/// Copies a file onto the disk.
fn copy(from: &Path, to: PathBuf) -> Result<(), Error> {
    let mut source =
        File::open(from).map_err(|source| Error::Read { file: from.to_owned(), source })?;
    let copied = File::create(&to).and_then(|mut target| {
        io::copy(&mut source, &mut target)?;
        target.sync_all()
    });
    copied.map_err(|source| Error::Write { file: to, source })
}

/// Whether a folder is what a killed process has left, and nothing in it is anybody else's: it is going to be cleared.
fn is_left_behind(folder: &Path) -> Result<(), Error> {
    let refused = |reason: String| Error::File { file: folder.to_owned(), reason };
    let failed = |source| Error::Write { file: folder.to_owned(), source };
    if folder.is_symlink() || !folder.is_dir() {
        return Err(refused("it is in the way; remove it, or name another folder to write".into()));
    }
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_file = entry.file_type().map_err(failed)?.is_file();
        if !is_file || (name != WEIGHTS && !is_copied(&name)) {
            let reason = format!(
                "it is in the way and holds `{name}`, which is no part of a model; move that, or name another folder to write"
            );
            return Err(refused(reason));
        }
    }
    Ok(())
}

/// A folder on its way. Unless it is finished, it is removed.
struct Partial {
    out: PathBuf,
    folder: PathBuf,
    /// Locked, so that no other process writes here.
    weights: File,
    is_finished: bool,
}

impl Partial {
    /// Makes the folder, or clears what a killed process has left of it.
    fn begin(out: &Path) -> Result<Self, Error> {
        let failed = |file: &Path| {
            let file = file.to_owned();
            move |source| Error::Write { file, source }
        };
        let out = std::path::absolute(out).map_err(failed(out))?;
        let refused = |reason: &str| Error::File { file: out.clone(), reason: reason.into() };
        let Some(name) = out.file_name() else {
            return Err(refused("it names no folder to make"));
        };
        // Or it would be known at the end: a folder cannot take the name of a link.
        if out.with_file_name(name).is_symlink() {
            return Err(refused("it is a link; name the folder that it should lead to"));
        }
        match fs::read_dir(&out).map(|mut entries| entries.next().is_none()) {
            Ok(true) => {}
            Ok(false) => return Err(refused("it is there and not empty; name another folder")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Write { file: out, source }),
        }
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".partial");
        let folder = out.with_file_name(hidden);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(&folder)(error));
            }
            Ok(()) => {}
            Err(_) => is_left_behind(&folder)?,
        }
        let path = folder.join(WEIGHTS);
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let weights = opened.map_err(failed(&path))?;
        match weights.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(refused("another process is writing it; wait for it"));
            }
            Err(TryLockError::Error(source)) => return Err(failed(&path)(source)),
        }
        let partial = Self { out, folder, weights, is_finished: false };
        partial.clear().map_err(failed(&partial.folder))?;
        Ok(partial)
    }

    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name() != WEIGHTS {
                fs::remove_file(entry.path())?;
            }
        }
        self.weights.set_len(0)
    }

    /// Copies the small files of the source.
    fn copy(&self, source: &Path) -> Result<(), Error> {
        let read = |source_error| Error::Read { file: source.to_owned(), source: source_error };
        for entry in fs::read_dir(source).map_err(read)? {
            let entry = entry.map_err(read)?;
            let name = entry.file_name();
            // Some folders are links into a store.
            if is_copied(&name.to_string_lossy()) && entry.path().is_file() {
                copy(&entry.path(), self.folder.join(&name))?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Error> {
        // Names reach the disk before the folder has its own, so that a power cut leaves it whole or hidden.
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| Error::Write { file: self.folder.clone(), source })?;
        let renamed = fs::rename(&self.folder, &self.out);
        renamed.map_err(|source| Error::Write { file: self.out.clone(), source })?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_finished {
            // Another attempt clears what cannot be removed.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

#[cfg(test)]
mod tests;
