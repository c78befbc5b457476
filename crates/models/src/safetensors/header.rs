//! Reads and checks the header of a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::backend::DType;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Fp8Format, file_error};
use crate::error::ModelError;

const MAX_HEADER_BYTES: u64 = 64 << 20;
/// The ends of the names of tensors that hold the codes and the scales of a matrix in MXFP4.
pub(crate) const MXFP4_CODES: &str = "_blocks";
pub(crate) const MXFP4_SCALES: &str = "_scales";
/// The ends of the names of tensors that hold the scales of a tensor in FP8.
pub(crate) const FP8_SCALES: [&str; 2] = ["_scale_inv", "_scale"];

/// A checked header: all tensors are inside the file.
#[derive(Clone, Debug)]
pub struct Header {
    /// Bytes of the whole file.
    pub length: u64,
    pub tensors: Vec<TensorInfo>,
    /// The free-form `__metadata__`.
    pub metadata: Map<String, Value>,
}

/// An entry of the header. Its bytes are inside the file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub name: String,
    /// The type's name in the file, such as `F32`, `BF16` or `I64`.
    pub dtype: String,
    pub shape: Vec<usize>,
    pub elements: u64,
    /// Offset from the start of the file.
    pub start: u64,
    pub bytes: u64,
}

#[derive(Deserialize)]
struct TensorEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl TensorInfo {
    /// The type, if it is a supported float type.
    pub fn float(&self) -> Option<DType> {
        match self.dtype.as_str() {
            "F32" => Some(DType::F32),
            "F16" => Some(DType::F16),
            "BF16" => Some(DType::BF16),
            _ => None,
        }
    }

    /// The format, if the type is one of eight bits.
    pub fn fp8(&self) -> Option<Fp8Format> {
        Fp8Format::named(&self.dtype)
    }

    /// Bytes of an element, if the type is a float type.
    fn element_bytes(&self) -> Option<u64> {
        let is_byte = self.fp8().is_some() || self.dtype == "F8_E8M0";
        if is_byte { Some(1) } else { self.float().map(|dtype| dtype.block_bytes() as u64) }
    }

    /// Whether the name is that of the scales of a weight in FP8.
    fn is_scale_of_weight(&self) -> bool {
        let is_weight = |ending: &&str| self.name.strip_suffix(*ending).is_some_and(|name| name.ends_with(".weight"));
        FP8_SCALES.iter().any(is_weight)
    }

    /// The type of the weights that it holds, and their number. A byte of codes in MXFP4 holds two. Scales hold none.
    pub fn weights(&self) -> (&str, u64) {
        match self.dtype.as_str() {
            dtype if self.is_scale_of_weight() => (dtype, 0),
            "U8" if self.name.ends_with(MXFP4_CODES) => ("MXFP4", 2 * self.elements),
            "U8" if self.name.ends_with(MXFP4_SCALES) => ("MXFP4", 0),
            dtype => (dtype, self.elements),
        }
    }

    fn read(name: String, entry: Value, data: u64, available: u64) -> Result<Self, String> {
        let entry: TensorEntry = serde_json::from_value(entry).map_err(|error| format!("tensor {name}: {error}"))?;
        let [start, end] = entry.data_offsets;
        if start > end || end > available {
            return Err(format!("the file is truncated: tensor {name} ends at byte {end} of {available}"));
        }
        let bytes = end - start;
        let elements = entry.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
        // A byte holds at most eight elements, so sums of element counts cannot overflow.
        let Some(elements) = elements.filter(|elements| elements / 8 <= bytes) else {
            return Err(format!("tensor {name} has the impossible shape {:?}", entry.shape));
        };
        let info = Self { name, dtype: entry.dtype, shape: entry.shape, elements, start: data + start, bytes };
        match info.element_bytes() {
            Some(size) if elements.checked_mul(size) != Some(bytes) => {
                Err(format!("tensor {} has {bytes} bytes, which do not match its shape {:?}", info.name, info.shape))
            }
            _ => Ok(info),
        }
    }
}

/// Reads and checks the header of an open file; `path` is used in error messages.
pub fn read_header(file: &mut File, path: &Path) -> Result<Header, ModelError> {
    let length = file.metadata().map_err(unreadable).map(|metadata| metadata.len());
    length.and_then(|length| read(file, length)).map_err(|problem| file_error(path, problem))
}

/// Reads and checks the header of a file in memory.
pub fn parse_header(mut bytes: &[u8]) -> Result<Header, ModelError> {
    let length = bytes.len() as u64;
    read(&mut bytes, length).map_err(ModelError::Checkpoint)
}

fn unreadable(error: std::io::Error) -> String {
    format!("the file cannot be read: {error}")
}

/// `length`: bytes of the whole file.
fn read(file: &mut impl Read, length: u64) -> Result<Header, String> {
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(|_| format!("the file is truncated: it has {length} bytes"))?;
    let size = u64::from_le_bytes(prefix);
    if &prefix == b"version " {
        return Err(
            "it is a pointer of Git LFS and not the file itself: run `git lfs pull` in its repository".to_owned()
        );
    }
    let rest = length.saturating_sub(8);
    if size > rest.min(MAX_HEADER_BYTES) {
        return Err(format!("the header has {size} bytes according to its length, but the file has {length}"));
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact(&mut bytes).map_err(unreadable)?;
    let mut entries: Map<String, Value> =
        serde_json::from_slice(&bytes).map_err(|error| format!("the header is damaged: {error}"))?;
    let metadata = match entries.remove("__metadata__") {
        Some(Value::Object(metadata)) => metadata,
        _ => Map::new(),
    };
    let tensors = entries.into_iter().map(|(name, entry)| TensorInfo::read(name, entry, 8 + size, rest - size));
    Ok(Header { length, tensors: tensors.collect::<Result<_, _>>()?, metadata })
}
