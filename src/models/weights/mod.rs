//! One source of named tensors for the decoder: a GGUF file, or a folder of safetensors.
//!
//! The decoder asks by stems in the words of GGUF (`blk.3.attn_q`); a source knows how its own
//! checkpoint calls them. What no question reached is an error: a tensor that the decoder does not
//! know would have changed its results.

mod gguf;
mod hub;
mod loader;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};

use super::ModelError;
use super::hyper::Hyper;
use super::linear::weight_bytes;
pub(super) use loader::{Candidate, Loader};

/// Whether a tensor is multiplied with or added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Weight,
    Bias,
}

/// A checkpoint that a decoder can be loaded from.
pub trait Weights {
    /// Sizes and constants, checked against each other.
    fn hyper(&self) -> Result<Hyper, ModelError>;

    /// The checkpoint's own name for a stem; `None` if it has no such thing.
    fn name(&self, stem: &str, role: Role) -> Option<String>;

    /// The shape of the tensor of this very name, outermost dimension first.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// Its type, if that can be computed with.
    fn kind(&self, name: &str) -> Option<GgmlDType>;

    /// `count` rows from `first` on, as a `[count, columns]` tensor of the checkpoint's own type;
    /// dimensions before the last count as one. A vector is its numbers: each is a row.
    fn rows(&self, name: &str, first: usize, count: usize) -> Result<QTensor, ModelError>;

    /// Names of tensors that must be of use; some that change nothing are left out.
    fn names(&self) -> Vec<String>;
}

/// What a checkpoint takes in memory; bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// All tensors, as the decoder keeps them.
    pub weights: u64,
    /// What reading takes beside those: a tensor as the file has it, before it is packed.
    pub reading: u64,
}

impl Footprint {
    pub fn of(source: &dyn Weights) -> Self {
        let mut all = Self::default();
        for name in source.names() {
            let (Some(shape), Some(kind)) = (source.shape(&name), source.kind(&name)) else { continue };
            let (parts, one) = match shape.as_slice() {
                // Vectors become f32.
                [size] => (1, size * size_of::<f32>()),
                // Experts are read and packed one by one.
                [parts @ .., rows, columns] => (parts.iter().product(), weight_bytes(kind, *rows, *columns)),
                [] => continue,
            };
            all.weights += (parts * one) as u64;
            all.reading = all.reading.max(one as u64);
        }
        all
    }
}

/// What a block's cast from bytes asks for at most.
const BLOCK_ALIGNMENT: usize = 64;

/// Reads `bytes` bytes at `start` as a tensor of this shape and type.
fn read(mut file: &File, start: u64, bytes: u64, kind: GgmlDType, shape: &[usize]) -> Result<QTensor, ModelError> {
    let count = usize::try_from(bytes).map_err(|_| ModelError::invalid("a tensor exceeds the address space"))?;
    let mut buffer = vec![0; count + BLOCK_ALIGNMENT];
    let skip = buffer.as_ptr().align_offset(BLOCK_ALIGNMENT);
    let part = buffer
        .get_mut(skip..skip.saturating_add(count))
        .ok_or_else(|| ModelError::invalid("a tensor's buffer cannot be aligned"))?;
    let unreadable = |error: std::io::Error| ModelError::Invalid(format!("the file cannot be read: {error}"));
    file.seek(SeekFrom::Start(start)).map_err(unreadable)?;
    file.read_exact(part).map_err(unreadable)?;
    let storage = QStorage::from_data((&*part).into(), &Device::Cpu, kind)?;
    Ok(QTensor::new(storage, shape)?)
}

/// Where rows of a tensor lie: `(start, bytes, shape)`, given its own start, shape and type.
fn place(
    (start, shape, kind): (u64, &[usize], GgmlDType),
    first: usize,
    count: usize,
) -> Result<(u64, u64, Vec<usize>), ModelError> {
    let (all, columns) = flat(shape);
    if first.checked_add(count).is_none_or(|end| end > all) {
        return Err(ModelError::Invalid(format!("a tensor of {all} rows has no rows {first} and {count} on")));
    }
    let row = (columns / kind.block_size() * kind.type_size()) as u64;
    let shape = if shape.len() < 2 { vec![count] } else { vec![count, columns] };
    Ok((start + first as u64 * row, count as u64 * row, shape))
}

/// Rows and columns of a shape whose dimensions before the last count as one.
fn flat(shape: &[usize]) -> (usize, usize) {
    match shape {
        [] => (1, 1),
        [numbers] => (*numbers, 1),
        [outer @ .., columns] => (outer.iter().product(), *columns),
    }
}
