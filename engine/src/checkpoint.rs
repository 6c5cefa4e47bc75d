//! The tensors of a model's folder: safetensors files, one or several through their index, mapped and not copied.
//!
//! A checkpoint is what lies on the disk. Every tensor that a shape asks for is found, of the right size and finite, or the
//! error names it; tensors of the vision tower and of the multi-token-prediction block are skipped, any other is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::{Error, Mixer, Shape};

/// What the names of the text model's tensors begin with: as published, and as re-saved.
const PREFIXES: [&str; 2] = ["model.language_model.", "model."];
/// What belongs to other parts of the published model.
const SKIPPED: [&str; 3] = ["model.visual.", "visual.", "mtp."];
/// Largest believable weight. Real ones stay below ten; corrupt files hold up to 1e36.
const LARGEST: f32 = 1e4;

/// Values that are checked together.
const BLOCK: usize = 4096;

/// An open folder.
pub struct Checkpoint {
    folder: PathBuf,
    files: Vec<(PathBuf, Arc<Mmap>)>,
    /// By the name without prefix.
    places: BTreeMap<String, Place>,
}

/// Where a tensor lies.
struct Place {
    /// The number of its file.
    file: usize,
    /// Its name in that file.
    name: String,
    dtype: Dtype,
    dimensions: Vec<usize>,
    /// Its bytes in the file.
    bytes: Range<usize>,
}

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its name without prefix, such as `layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// Its dimensions, outermost first.
    pub dimensions: Vec<usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a folder and checks that it holds every tensor of the shape, and no other.
    ///
    /// # Errors
    /// Names the file and the tensor that is missing, unknown, of another shape or type, or truncated.
    pub fn open(folder: &Path, shape: &Shape) -> Result<Self, Error> {
        let index = index(folder)?;
        let names: BTreeSet<&str> = index.values().map(String::as_str).collect();
        let mut checkpoint =
            Self { folder: folder.to_owned(), files: Vec::new(), places: BTreeMap::new() };
        for name in names {
            checkpoint.add(name, &index)?;
        }
        checkpoint.check(shape)?;
        Ok(checkpoint)
    }

    fn add(&mut self, name: &str, index: &BTreeMap<String, String>) -> Result<(), Error> {
        let is_plain =
            Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
        let file = self.folder.join(name);
        if !is_plain {
            return Err(Error::File {
                file,
                reason: "the index names a file outside of the folder".into(),
            });
        }
        let mapped = map(&file)?;
        let tensors = tensors(&file, &mapped)?;
        let at = self.files.len();
        for (full, view) in tensors.iter() {
            if SKIPPED.iter().any(|prefix| full.starts_with(prefix)) {
                continue;
            }
            // A tensor that the index gives to another file is a left-over of re-sharding.
            if !index.is_empty() && index.get(full).is_none_or(|owner| owner != name) {
                return Err(self.tensor(&file, full, "the index does not name it for this file"));
            }
            let short =
                PREFIXES.iter().find_map(|prefix| full.strip_prefix(prefix)).unwrap_or(full);
            let start = view.data().as_ptr().addr() - mapped.as_ptr().addr();
            let place = Place {
                file: at,
                name: full.to_owned(),
                dtype: view.dtype(),
                dimensions: view.shape().to_vec(),
                bytes: start..start + view.data().len(),
            };
            if self.places.insert(short.to_owned(), place).is_some() {
                return Err(self.tensor(&file, full, "it is there twice"));
            }
        }
        self.files.push((file, Arc::new(mapped)));
        Ok(())
    }

    fn check(&mut self, shape: &Shape) -> Result<(), Error> {
        if shape.is_tied {
            // Some tools write the head although it is the embedding.
            self.places.remove("lm_head.weight");
        }
        let expected = expected(shape);
        for tensor in &expected {
            self.place(tensor)?;
        }
        let known: BTreeSet<&str> = expected.iter().map(|tensor| tensor.name.as_str()).collect();
        match self.places.iter().find(|(name, _)| !known.contains(name.as_str())) {
            Some((_, place)) => {
                let file = &self.files[place.file].0;
                Err(self.tensor(file, &place.name, "this model has no such tensor"))
            }
            None => Ok(()),
        }
    }

    /// Where a tensor lies, if it is as expected.
    fn place(&self, expected: &Expected) -> Result<&Place, Error> {
        let Some(place) = self.places.get(&expected.name) else {
            return Err(self.tensor(&self.folder, &expected.name, "it is missing"));
        };
        let file = &self.files[place.file].0;
        if place.dimensions != expected.dimensions {
            let reason =
                format!("it is {:?}, expected {:?}", place.dimensions, expected.dimensions);
            return Err(self.tensor(file, &place.name, &reason));
        }
        if !matches!(place.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32) {
            let reason = format!("its type is {:?}, expected BF16, F16 or F32", place.dtype);
            return Err(self.tensor(file, &place.name, &reason));
        }
        Ok(place)
    }

    /// A tensor's values as f32, row by row.
    ///
    /// # Errors
    /// A value is not finite, or absurdly large.
    pub fn values(&self, expected: &Expected) -> Result<Vec<f32>, Error> {
        let n_rows = expected.dimensions.first().copied().unwrap_or(0);
        self.rows(expected, 0..n_rows)
    }

    /// Some rows of a tensor as f32.
    ///
    /// # Errors
    /// A value is not finite, or absurdly large.
    ///
    /// # Panics
    /// There are no such rows.
    pub fn rows(&self, expected: &Expected, rows: Range<usize>) -> Result<Vec<f32>, Error> {
        let place = self.place(expected)?;
        let (file, mapped) = &self.files[place.file];
        let width: usize = expected.dimensions.iter().skip(1).product();
        let size = if place.dtype == Dtype::F32 { 4 } else { 2 };
        let whole = &mapped[place.bytes.clone()];
        let bytes = &whole[rows.start * width * size..rows.end * width * size];
        let values: Vec<f32> = match place.dtype {
            Dtype::BF16 => {
                bytes.as_chunks().0.iter().map(|&two| bf16::from_le_bytes(two).to_f32()).collect()
            }
            Dtype::F16 => {
                bytes.as_chunks().0.iter().map(|&two| f16::from_le_bytes(two).to_f32()).collect()
            }
            _ => bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect(),
        };
        match values.iter().position(|value| !value.is_finite() || value.abs() > LARGEST) {
            Some(at) => {
                let number = rows.start * width + at;
                Err(self.tensor(file, &place.name, &corrupt(number, values[at])))
            }
            None => Ok(values),
        }
    }

    /// The file and the place of the first byte of a tensor that is BF16 on the disk; none if it is of another type.
    ///
    /// # Errors
    /// A value is not finite, or absurdly large.
    pub(crate) fn mapped_bf16(
        &self,
        expected: &Expected,
    ) -> Result<Option<(Arc<Mmap>, usize)>, Error> {
        let place = self.place(expected)?;
        if place.dtype != Dtype::BF16 {
            return Ok(None);
        }
        let (file, mapped) = &self.files[place.file];
        let values = mapped[place.bytes.clone()].as_chunks::<2>().0;
        // Without the sign, bits of BF16 are ordered like their values, and what is no number lies above all numbers.
        let limit = bf16::from_f32(LARGEST).to_bits();
        let is_good = |two: &[u8; 2]| u16::from_le_bytes(*two) & 0x7fff <= limit;
        // In blocks, so that a compiler may look at many values at once.
        for (block, values) in values.chunks(BLOCK).enumerate() {
            if values.iter().fold(true, |good, two| good & is_good(two)) {
                continue;
            }
            let at = values.iter().position(|two| !is_good(two)).unwrap_or(0);
            let value = bf16::from_le_bytes(values[at]).to_f32();
            return Err(self.tensor(file, &place.name, &corrupt(block * BLOCK + at, value)));
        }
        Ok(Some((mapped.clone(), place.bytes.start)))
    }

    /// Bytes of all tensors of the text model on the disk, and their number of parameters.
    ///
    /// # Errors
    /// The shape is not the one that the folder was opened with.
    pub fn totals(&self, shape: &Shape) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for tensor in expected(shape) {
            let place = self.place(&tensor)?;
            totals.n_tensors += 1;
            totals.n_parameters += tensor.dimensions.iter().product::<usize>() as u64;
            totals.bytes += place.bytes.len() as u64;
        }
        Ok(totals)
    }

    fn tensor(&self, file: &Path, tensor: &str, reason: &str) -> Error {
        Error::Tensor {
            file: file.to_owned(),
            tensor: tensor.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

fn corrupt(number: usize, value: f32) -> String {
    format!("value {number} is {value}; the file is corrupt")
}

/// How much a checkpoint holds of the text model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tensors.
    pub n_tensors: usize,
    /// Parameters.
    pub n_parameters: u64,
    /// Bytes on the disk.
    pub bytes: u64,
}

/// The file of each tensor; empty if the folder holds one file and no index.
fn index(folder: &Path) -> Result<BTreeMap<String, String>, Error> {
    let file = folder.join("model.safetensors.index.json");
    match std::fs::read(&file) {
        Ok(text) => {
            let index: Index = serde_json::from_slice(&text)
                .map_err(|error| Error::File { file: file.clone(), reason: error.to_string() })?;
            if index.weight_map.is_empty() {
                return Err(Error::File { file, reason: "it names no tensor".into() });
            }
            Ok(index.weight_map)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => single(folder),
        Err(source) => Err(Error::Read { file, source }),
    }
}

/// Without an index, `model.safetensors` holds everything.
fn single(folder: &Path) -> Result<BTreeMap<String, String>, Error> {
    const NAME: &str = "model.safetensors";
    let file = folder.join(NAME);
    let mapped = map(&file)?;
    let tensors = tensors(&file, &mapped)?;
    Ok(tensors.names().into_iter().map(|name| (name.to_owned(), NAME.to_owned())).collect())
}

fn map(file: &Path) -> Result<Mmap, Error> {
    let read = |source| Error::Read { file: file.to_owned(), source };
    let opened = File::open(file).map_err(read)?;
    // SAFETY: the bytes are only read. Whoever cuts or rewrites a model's file while it is in use can make the process
    // read other numbers or end it, as with every engine that maps its weights; nothing else depends on them.
    #[expect(unsafe_code, reason = "mapping a file; copying 8 GB instead would double the memory")]
    unsafe { Mmap::map(&opened) }.map_err(read)
}

fn tensors<'m>(file: &Path, mapped: &'m Mmap) -> Result<SafeTensors<'m>, Error> {
    SafeTensors::deserialize(mapped).map_err(|error| Error::File {
        file: file.to_owned(),
        reason: format!("it is no whole safetensors file: {error}"),
    })
}

/// Every tensor of a text model, in the order of use. Linear weights are [out, in].
pub fn expected(shape: &Shape) -> Vec<Expected> {
    let mut list = Vec::new();
    let mut add = |name: String, dimensions: &[usize]| {
        list.push(Expected { name, dimensions: dimensions.to_vec() });
    };
    let hidden = shape.hidden;
    add("embed_tokens.weight".into(), &[shape.vocab, hidden]);
    for (at, mixer) in shape.layers.iter().enumerate() {
        let mut layer =
            |name: &str, dimensions: &[usize]| add(format!("layers.{at}.{name}"), dimensions);
        layer("input_layernorm.weight", &[hidden]);
        match mixer {
            Mixer::Attention => {
                let attention = &shape.attention;
                // Each head's query is followed by its gate.
                layer("self_attn.q_proj.weight", &[2 * attention.queries(), hidden]);
                layer("self_attn.k_proj.weight", &[attention.keys(), hidden]);
                layer("self_attn.v_proj.weight", &[attention.keys(), hidden]);
                layer("self_attn.o_proj.weight", &[hidden, attention.queries()]);
                layer("self_attn.q_norm.weight", &[attention.head]);
                layer("self_attn.k_norm.weight", &[attention.head]);
            }
            Mixer::Delta => {
                let delta = &shape.delta;
                layer("linear_attn.in_proj_qkv.weight", &[delta.channels(), hidden]);
                layer("linear_attn.in_proj_z.weight", &[delta.values(), hidden]);
                layer("linear_attn.in_proj_b.weight", &[delta.n_value_heads, hidden]);
                layer("linear_attn.in_proj_a.weight", &[delta.n_value_heads, hidden]);
                layer("linear_attn.conv1d.weight", &[delta.channels(), 1, delta.taps]);
                layer("linear_attn.A_log", &[delta.n_value_heads]);
                layer("linear_attn.dt_bias", &[delta.n_value_heads]);
                layer("linear_attn.norm.weight", &[delta.value_head]);
                layer("linear_attn.out_proj.weight", &[hidden, delta.values()]);
            }
        }
        layer("post_attention_layernorm.weight", &[hidden]);
        layer("mlp.gate_proj.weight", &[shape.intermediate, hidden]);
        layer("mlp.up_proj.weight", &[shape.intermediate, hidden]);
        layer("mlp.down_proj.weight", &[hidden, shape.intermediate]);
    }
    add("norm.weight".into(), &[hidden]);
    if !shape.is_tied {
        add("lm_head.weight".into(), &[shape.vocab, hidden]);
    }
    list
}
