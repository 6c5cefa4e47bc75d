//! The tensors of a model's folder: safetensors files, one or several through their index, mapped and not copied.
//!
//! A checkpoint is what lies on the disk, as published or as [`quantised`](crate::quantised) writes it. Every tensor that a
//! shape asks for is found, of the right size and finite, or the error names it; tensors of the vision tower and of the
//! multi-token-prediction block are skipped, any other is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, Range};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use crate::backend::cpu;
use crate::quantised::{Part, Quantised};
use crate::{Error, Mixer, Shape, file};

/// What the names of the text model's tensors begin with: as published, and as re-saved.
const PREFIXES: [&str; 2] = ["model.language_model.", "model."];
/// What belongs to other parts of the published model.
const SKIPPED: [&str; 3] = ["model.visual.", "visual.", "mtp."];
/// Largest believable weight. Real ones stay below ten; corrupt files hold up to 1e36.
const LARGEST: f32 = 1e4;
/// Largest index that is read, in bytes; the published one has less than a hundred thousand.
const INDEX_BYTES: u64 = 1 << 24;

/// The file that holds everything where there is no index.
const SINGLE: &str = "model.safetensors";

/// Values that are checked together.
const BLOCK: usize = 4096;

/// The types of plain values.
const PLAIN: [Dtype; 3] = [Dtype::BF16, Dtype::F16, Dtype::F32];

/// An open folder.
pub struct Checkpoint {
    folder: PathBuf,
    quantised: Option<Quantised>,
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

impl Place {
    /// Values of a row.
    fn width(&self) -> usize {
        self.dimensions.iter().skip(1).product()
    }

    /// The bytes of some rows of plain values.
    fn rows(&self, rows: &Range<usize>) -> Range<usize> {
        let size = if self.dtype == Dtype::F32 { 4 } else { 2 } * self.width();
        self.bytes.start + rows.start * size..self.bytes.start + rows.end * size
    }
}

/// A tensor that a model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Its name without prefix, such as `layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// Its dimensions, outermost first.
    pub dimensions: Vec<usize>,
    /// What it is to the model.
    pub role: Role,
}

/// What a tensor is to its model, which says in which forms it may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The embedding or the head.
    Table,
    /// A linear layer.
    Linear,
    /// A projection with one output for each head of a Gated DeltaNet layer.
    Gate,
    /// What is no matrix: norms, taps, rates.
    Small,
}

/// Bytes of a mapped file, which stays mapped with them.
pub(crate) struct Mapped {
    map: Arc<Mmap>,
    range: Range<usize>,
}

impl Mapped {
    pub(crate) fn map(&self) -> &Arc<Mmap> {
        &self.map
    }

    #[cfg(test)]
    pub(crate) fn of_file(file: &std::fs::File, range: Range<usize>) -> Self {
        // SAFETY: the test's own file, which nobody else changes.
        #[expect(unsafe_code, reason = "mapping a file")]
        let map = unsafe { Mmap::map(file) }.expect("a file of a test can be mapped");
        Self { map: Arc::new(map), range }
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map[self.range.clone()]
    }
}

/// A quantised tensor, as it lies in the file.
pub(crate) struct Parts {
    pub(crate) codes: Mapped,
    pub(crate) scales: Mapped,
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
        let mut names: BTreeSet<&str> = index.values().map(String::as_str).collect();
        if index.is_empty() {
            names.insert(SINGLE);
        }
        let mut checkpoint = Self {
            folder: folder.to_owned(),
            quantised: None,
            files: Vec::new(),
            places: BTreeMap::new(),
        };
        for name in names {
            checkpoint.add(name, &index)?;
        }
        checkpoint.check(shape)?;
        Ok(checkpoint)
    }

    /// One file, whatever is in it.
    #[cfg(test)]
    pub(crate) fn of_file(file: &Path) -> Result<Self, Error> {
        let (folder, name) = (file.parent(), file.file_name().and_then(std::ffi::OsStr::to_str));
        let folder = folder.expect("a file is in a folder").to_owned();
        let mut checkpoint =
            Self { folder, quantised: None, files: Vec::new(), places: BTreeMap::new() };
        checkpoint.add(name.expect("a test's file has a name"), &BTreeMap::new())?;
        Ok(checkpoint)
    }

    #[cfg(test)]
    pub(crate) fn maps(&self) -> impl Iterator<Item = &Arc<Mmap>> {
        self.files.iter().map(|(_, map)| map)
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
        let wrong = |reason: String| Error::File { file: file.clone(), reason };
        let (n_header, header) =
            SafeTensors::read_metadata(&mapped).map_err(|error| wrong(not_whole(&error)))?;
        let quantised = Quantised::of(header.metadata().as_ref()).map_err(wrong)?;
        if !self.files.is_empty() && quantised != self.quantised {
            return Err(wrong(
                "it is not quantised as the folder's other files are; quantise the original folder again".into(),
            ));
        }
        self.quantised = quantised;
        let at = self.files.len();
        // Behind the header and the number that is its length.
        let data = size_of::<u64>() + n_header;
        for full in header.offset_keys() {
            let full = full.as_str();
            let info = header.info(full).expect("a tensor of this header");
            if SKIPPED.iter().any(|prefix| full.starts_with(prefix)) {
                continue;
            }
            // A tensor that the index gives to another file is a left-over of re-sharding.
            if !index.is_empty() && index.get(full).is_none_or(|owner| owner != name) {
                return Err(self.tensor(
                    &file,
                    full,
                    "the index does not name it for this file; fetch the folder from its source again",
                ));
            }
            let short =
                PREFIXES.iter().find_map(|prefix| full.strip_prefix(prefix)).unwrap_or(full);
            let (start, end) = info.data_offsets;
            let place = Place {
                file: at,
                name: full.to_owned(),
                dtype: info.dtype,
                dimensions: info.shape.clone(),
                bytes: data + start..data + end,
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
        let mut known = BTreeSet::new();
        for tensor in expected(shape) {
            known.extend(self.places_of(&tensor)?.into_iter().map(|(name, _)| name));
        }
        match self.places.iter().find(|(name, _)| !known.contains(*name)) {
            Some((_, place)) => {
                let file = &self.files[place.file].0;
                Err(self.tensor(file, &place.name, "this model has no such tensor"))
            }
            None => Ok(()),
        }
    }

    /// How the weights are quantised; none if they are plain values.
    pub fn quantised(&self) -> Option<Quantised> {
        self.quantised
    }

    /// How weights are kept if somebody asks for this form, or for none: then as they lie here, or as BF16.
    ///
    /// # Errors
    /// They are quantised to another form.
    pub fn dtype(&self, asked: Option<cpu::Dtype>) -> Result<cpu::Dtype, Error> {
        match (self.quantised, asked) {
            (None, asked) => Ok(asked.unwrap_or(cpu::Dtype::Bf16)),
            (Some(own), Some(asked)) if asked != own.into() => {
                let (folder, own) = (self.folder.clone(), own.name());
                Err(Error::Quantised { folder, own, asked: asked.name() })
            }
            (Some(own), Some(_) | None) => Ok(own.into()),
        }
    }

    /// Where a tensor lies, if it is as expected.
    fn place(&self, name: &str, dimensions: &[usize], types: &[Dtype]) -> Result<&Place, Error> {
        let Some(place) = self.places.get(name) else {
            let reason = "it is missing; fetch the folder from its source again";
            return Err(self.tensor(&self.folder, name, reason));
        };
        let file = &self.files[place.file].0;
        if place.dimensions != dimensions {
            let reason = format!("it is {:?}, expected {dimensions:?}", place.dimensions);
            return Err(self.tensor(file, &place.name, &reason));
        }
        if !types.contains(&place.dtype) {
            let names: Vec<String> = types.iter().map(|dtype| format!("{dtype:?}")).collect();
            let reason = format!("its type is {:?}, expected {}", place.dtype, names.join(" or "));
            return Err(self.tensor(file, &place.name, &reason));
        }
        Ok(place)
    }

    /// Where a tensor lies, or its codes and its scales, by their names without prefix.
    fn places_of(&self, expected: &Expected) -> Result<Vec<(String, &Place)>, Error> {
        let Some(parts) = self.quantised.and_then(|form| form.parts(expected)) else {
            return Ok(vec![(expected.name.clone(), self.plain(expected)?)]);
        };
        let place = |part: Part| {
            let name = format!("{}{}", expected.name, part.suffix);
            let place = self.place(&name, &part.dimensions, &[part.dtype])?;
            Ok((name, place))
        };
        parts.into_iter().map(place).collect()
    }

    /// Where a tensor lies that is not quantised.
    fn plain(&self, expected: &Expected) -> Result<&Place, Error> {
        self.place(&expected.name, &expected.dimensions, &PLAIN)
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
        let place = self.plain(expected)?;
        let (file, mapped) = &self.files[place.file];
        let bytes = &mapped[place.rows(&rows)];
        let values: Vec<f32> = match place.dtype {
            Dtype::BF16 => {
                bytes.as_chunks().0.iter().map(|&two| bf16::from_le_bytes(two).to_f32()).collect()
            }
            Dtype::F16 => {
                bytes.as_chunks().0.iter().map(|&two| f16::from_le_bytes(two).to_f32()).collect()
            }
            _ => bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect(),
        };
        match first_bad(&values, |value| value.abs() <= LARGEST) {
            Some(at) => {
                let number = rows.start * place.width() + at;
                Err(self.tensor(file, &place.name, &corrupt(number, values[at])))
            }
            None => Ok(values),
        }
    }

    /// Gives back the memory of some rows that were read; they are read again from the file where they are needed.
    ///
    /// # Errors
    /// The tensor is not as expected.
    pub(crate) fn release(&self, expected: &Expected, rows: &Range<usize>) -> Result<(), Error> {
        let place = self.plain(expected)?;
        forget(&self.files[place.file].1, place.rows(rows));
        Ok(())
    }

    /// A tensor that is not quantised, as it lies in its file: its name there, its type and its bytes.
    ///
    /// # Errors
    /// The tensor is not as expected.
    pub(crate) fn bytes(&self, expected: &Expected) -> Result<(&str, Dtype, Mapped), Error> {
        let place = self.plain(expected)?;
        Ok((&place.name, place.dtype, self.mapped(place)))
    }

    /// A tensor of BF16, where it lies; none if it is of another type.
    ///
    /// # Errors
    /// A value is not finite, or absurdly large.
    pub(crate) fn mapped_bf16(&self, expected: &Expected) -> Result<Option<Mapped>, Error> {
        let place = self.plain(expected)?;
        if place.dtype != Dtype::BF16 {
            return Ok(None);
        }
        self.check_bf16(place)?;
        Ok(Some(self.mapped(place)))
    }

    /// The parts of a quantised tensor; none if it is not quantised.
    ///
    /// # Errors
    /// A scale is not finite, or absurdly large.
    pub(crate) fn parts(&self, expected: &Expected) -> Result<Option<Parts>, Error> {
        match self.places_of(expected)?.as_slice() {
            [(_, codes), (_, scales)] => {
                self.check_bf16(scales)?;
                Ok(Some(Parts { codes: self.mapped(codes), scales: self.mapped(scales) }))
            }
            _ => Ok(None),
        }
    }

    fn mapped(&self, place: &Place) -> Mapped {
        Mapped { map: self.files[place.file].1.clone(), range: place.bytes.clone() }
    }

    fn check_bf16(&self, place: &Place) -> Result<(), Error> {
        let (file, mapped) = &self.files[place.file];
        let values = mapped[place.bytes.clone()].as_chunks::<2>().0;
        // Without the sign, bits of BF16 are ordered like their values, and what is no number lies above all numbers.
        let limit = bf16::from_f32(LARGEST).to_bits();
        match first_bad(values, |two| u16::from_le_bytes(*two) & 0x7fff <= limit) {
            Some(at) => {
                let value = bf16::from_le_bytes(values[at]).to_f32();
                Err(self.tensor(file, &place.name, &corrupt(at, value)))
            }
            None => Ok(()),
        }
    }

    /// Bytes of all tensors of the text model on the disk, and their number of parameters.
    ///
    /// # Errors
    /// The shape is not the one that the folder was opened with.
    pub fn totals(&self, shape: &Shape) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        let kept = self.dtype(None)?;
        let mut by_type = BTreeMap::new();
        for tensor in expected(shape) {
            let n_parameters = tensor.dimensions.iter().product::<usize>() as u64;
            let mut n_bytes = 0;
            for (_, place) in self.places_of(&tensor)? {
                let bytes = place.bytes.len() as u64;
                totals.n_tensors += 1;
                n_bytes += bytes;
                *by_type.entry(place.dtype).or_default() += bytes;
            }
            totals.n_parameters += n_parameters;
            totals.bytes += n_bytes;
            totals.loaded_bytes += match kept.of(tensor.role) {
                cpu::Dtype::F32 => 4 * n_parameters,
                cpu::Dtype::Bf16 => 2 * n_parameters,
                // Only where they lie so.
                cpu::Dtype::Int8 | cpu::Dtype::Int4 => n_bytes,
            };
        }
        let most: Option<(Dtype, u64)> = by_type.into_iter().max_by_key(|(_, bytes)| *bytes);
        totals.dtype = match (self.quantised, most) {
            (Some(form), _) => form.name(),
            (None, Some((Dtype::F32, _))) => "f32",
            (None, Some((Dtype::F16, _))) => "f16",
            (None, _) => "bf16",
        };
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

/// The first value that is not good.
fn first_bad<T>(values: &[T], is_good: impl Fn(&T) -> bool) -> Option<usize> {
    // In blocks, so that a compiler may look at many values at once.
    for (block, values) in values.chunks(BLOCK).enumerate() {
        if !values.iter().fold(true, |good, value| good & is_good(value)) {
            let at = values.iter().position(|value| !is_good(value));
            return at.map(|at| block * BLOCK + at);
        }
    }
    None
}

fn corrupt(number: usize, value: f32) -> String {
    format!("value {number} is {value}; the file is corrupt, fetch it from its source again")
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
    /// Bytes in memory, unless another form is asked for.
    pub loaded_bytes: u64,
    /// The form of most of them.
    pub dtype: &'static str,
}

/// The file of each tensor; empty if there is no index, and one file holds everything.
fn index(folder: &Path) -> Result<BTreeMap<String, String>, Error> {
    let file = folder.join("model.safetensors.index.json");
    let Some(index) = file::json::<Index>(&file, INDEX_BYTES)? else { return Ok(BTreeMap::new()) };
    if index.weight_map.is_empty() {
        return Err(Error::File { file, reason: "it names no tensor".into() });
    }
    Ok(index.weight_map)
}

fn map(file: &Path) -> Result<Mmap, Error> {
    let read = |source| Error::Read { file: file.to_owned(), source };
    let opened = file::open(file)?;
    // SAFETY: the bytes are only read. Whoever cuts or rewrites a model's file while it is in use can make the process
    // read other numbers or end it, as with every engine that maps its weights; nothing else depends on them.
    #[expect(unsafe_code, reason = "mapping a file; copying 8 GB instead would double the memory")]
    unsafe { Mmap::map(&opened) }.map_err(read)
}

fn not_whole(error: &SafeTensorError) -> String {
    format!("it is no whole safetensors file: {error}; fetch it from its source again")
}

/// Takes bytes of a mapped file out of the memory of this process, where the system can do that.
fn forget(map: &Mmap, bytes: Range<usize>) {
    #[cfg(unix)]
    {
        // SAFETY: the map is of a file and read only, so the same bytes are read again whenever somebody looks.
        #[expect(unsafe_code, reason = "as above")]
        let forgotten = unsafe {
            map.unchecked_advise_range(UncheckedAdvice::DontNeed, bytes.start, bytes.len())
        };
        // It is a hint: without it, the bytes stay in memory until the file is closed.
        let _ = forgotten;
    }
    #[cfg(not(unix))]
    let _ = (map, bytes);
}

/// Every tensor of a text model, in the order of use. Linear weights are [out, in].
pub fn expected(shape: &Shape) -> Vec<Expected> {
    let mut list = Vec::new();
    let mut add = |name: String, dimensions: &[usize]| {
        let role = match name.as_str() {
            "embed_tokens.weight" | "lm_head.weight" => Role::Table,
            name if ["in_proj_a.", "in_proj_b."].iter().any(|gate| name.contains(gate)) => {
                Role::Gate
            }
            _ if dimensions.len() == 2 => Role::Linear,
            _ => Role::Small,
        };
        list.push(Expected { name, dimensions: dimensions.to_vec(), role });
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
