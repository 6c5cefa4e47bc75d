//! Quantised folders: what [`write()`] makes of a model's folder, and [`Checkpoint`](crate::Checkpoint) opens like any other.
//!
//! Beside copies of the source's configuration, tokenizer and template lies one `model.safetensors`. Its `__metadata__` has
//! `format: hyla-panels`, `version: 1`, `dtype: int8` or `int4`, and `group: 64`. A weight `NAME` of a linear layer or of the
//! embedding, [outputs, inputs], is two tensors:
//!
//! * `NAME.codes`, U8, [outputs / 16, inputs / 64, 1024 or 512], both quotients rounded up: the panels that the CPU's kernels
//!   read, as `backend/cpu/matrix.rs` describes them, 8 or 4 bits a code.
//! * `NAME.scales`, BF16, [outputs / 16, inputs / 64, 16]: one for each group of each output of a panel.
//!
//! Every other tensor is as in the source, and so are the two small projections of a Gated DeltaNet layer. In an int4 folder
//! the embedding and the head have 8 bits. All codes come first in the file, from a multiple of 64 bytes on, and take
//! multiples of 64, so that they are used where they lie. They are, bit for bit, what loading the source with this `dtype`
//! makes.
//!
//! What it does not do: quantise a quantised folder again, or keep the names of the source's files.

mod write;

use std::collections::HashMap;
use std::str::FromStr;

use safetensors::Dtype as Stored;

use crate::Expected;
use crate::backend::cpu::{Dtype, GROUP, PANEL};

pub use write::{Progress, write};

/// What the metadata calls the format.
const FORMAT: &str = "hyla-panels";
/// Changes when a file of before would be read wrongly.
const VERSION: &str = "1";

/// The form of a folder's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantised {
    /// 8.25 bits a weight.
    Int8,
    /// 4.25 bits a weight.
    Int4,
}

/// A form that a folder cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot quantise to `{name}`: use int8 or int4")]
pub struct UnknownForm {
    /// What was asked for.
    pub name: String,
}

impl FromStr for Quantised {
    type Err = UnknownForm;

    fn from_str(name: &str) -> Result<Self, UnknownForm> {
        match name {
            "int8" => Ok(Self::Int8),
            "int4" => Ok(Self::Int4),
            _ => Err(UnknownForm { name: name.to_owned() }),
        }
    }
}

impl From<Quantised> for Dtype {
    fn from(form: Quantised) -> Self {
        match form {
            Quantised::Int8 => Self::Int8,
            Quantised::Int4 => Self::Int4,
        }
    }
}

/// One of the two tensors that stand for a weight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// What it adds to the weight's name.
    pub(crate) suffix: &'static str,
    pub(crate) dtype: Stored,
    pub(crate) dimensions: Vec<usize>,
}

impl Part {
    /// Bytes in the file.
    pub(crate) fn n_bytes(&self) -> usize {
        let n: usize = self.dimensions.iter().product();
        if self.dtype == Stored::U8 { n } else { 2 * n }
    }
}

impl Quantised {
    /// As options, metadata and people name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// The form of a tensor.
    pub(crate) fn dtype_of(self, tensor: &Expected) -> Dtype {
        Dtype::from(self).of(tensor.role)
    }

    /// Codes and scales of a tensor; none if it is as in the source.
    pub(crate) fn parts(self, tensor: &Expected) -> Option<[Part; 2]> {
        let group_bytes = match self.dtype_of(tensor) {
            Dtype::F32 | Dtype::Bf16 => return None,
            Dtype::Int8 => GROUP * PANEL,
            Dtype::Int4 => GROUP * PANEL / 2,
        };
        let &[outputs, inputs] = tensor.dimensions.as_slice() else { return None };
        let part = |suffix, dtype, width| {
            let dimensions = vec![outputs.div_ceil(PANEL), inputs.div_ceil(GROUP), width];
            Part { suffix, dtype, dimensions }
        };
        Some([part(".codes", Stored::U8, group_bytes), part(".scales", Stored::BF16, PANEL)])
    }

    /// What stands in the file besides tensors.
    pub(crate) fn metadata(self) -> [(&'static str, String); 4] {
        [
            ("format", FORMAT.to_owned()),
            ("version", VERSION.to_owned()),
            ("dtype", self.name().to_owned()),
            ("group", GROUP.to_string()),
        ]
    }

    /// Reads the metadata of a file; none if it holds plain values. The error is what is wrong with it.
    pub(crate) fn of(metadata: Option<&HashMap<String, String>>) -> Result<Option<Self>, String> {
        let value = |key: &str| metadata.and_then(|all| all.get(key)).map(String::as_str);
        if value("format") != Some(FORMAT) {
            return Ok(None);
        }
        let wrong = |key: &str, known: &str| {
            let found = value(key).unwrap_or_default();
            format!(
                "its metadata has `{key}` `{found}`, but this program reads `{known}`; \
                 quantise the original folder again"
            )
        };
        if value("version") != Some(VERSION) {
            return Err(wrong("version", VERSION));
        }
        if value("group") != Some(GROUP.to_string().as_str()) {
            return Err(wrong("group", &GROUP.to_string()));
        }
        let form = value("dtype").and_then(|name| name.parse().ok());
        form.map(Some).ok_or_else(|| wrong("dtype", "int8` or `int4"))
    }
}
