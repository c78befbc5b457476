//! One source of named tensors for a network: a GGUF file, or a folder of safetensors.
//!
//! Networks ask by stems in the words of GGUF (`blk.3.attn_q`); a source knows how its own
//! checkpoint calls them. What no question reached is an error: a tensor that the network does not
//! know would have changed its results.

mod gguf;
mod loader;
mod rows;
mod safetensors;

use outpost_kernels::{Conv2d, ConvShape, DType, Linear};

use super::decoder_config::DecoderConfig;
use crate::models::error::ModelError;
pub(super) use loader::{Candidate, LoadedMatrix, Loader};
pub use rows::Rows;
pub(in crate::models) use rows::flat;

/// Whether a tensor is multiplied with or added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Weight,
    Bias,
}

/// A checkpoint that a decoder can be loaded from.
pub trait DecoderCheckpoint: Weights {
    /// Sizes and constants, checked against each other.
    fn decoder_config(&self) -> Result<DecoderConfig, ModelError>;
}

/// The tensors of a checkpoint.
pub trait Weights {
    /// The checkpoint's own name for a stem; `None` if it has no such thing.
    fn name(&self, stem: &str, role: Role) -> Option<String>;

    /// The shape of the tensor of this very name, outermost dimension first.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// Its type, if that can be computed with.
    fn dtype(&self, name: &str) -> Option<DType>;

    /// `count` rows from `first` on, of the checkpoint's own type; dimensions before the last count as one.
    /// A vector is its numbers: each is a row.
    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError>;

    /// Names of tensors that must be of use; some that change nothing are left out.
    fn names(&self) -> Vec<String>;
}

/// What a checkpoint takes in memory; bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// All tensors, as the network keeps them.
    pub weights: u64,
    /// What reading takes beside those: parts of a tensor as the file has them, before they are packed.
    pub loading: u64,
}

impl Footprint {
    /// Where so many threads read.
    pub fn new(source: &dyn Weights, threads: usize) -> Self {
        Self::with_precision(source, threads, None)
    }

    /// The same where matrices of floats are rounded to `precision`.
    pub fn with_precision(source: &dyn Weights, threads: usize, precision: Option<DType>) -> Self {
        let mut all = Self::default();
        for name in source.names() {
            let (Some(shape), Some(dtype)) = (source.shape(&name), source.dtype(&name)) else { continue };
            let dtype = match precision {
                Some(rounded) if shape.len() > 1 && Rows::can_round_to(dtype, rounded, flat(&shape).1) => rounded,
                _ => dtype,
            };
            let (weights, loading) = match shape.as_slice() {
                // Vectors become f32.
                [size] => (size * size_of::<f32>(), size * dtype.block_bytes()),
                // A convolution's kernels are read whole.
                &[outputs, inputs, height, width] => {
                    let window = ConvShape { inputs, outputs, kernel: [height, width], stride: 1, padding: [0; 2] };
                    (Conv2d::packed_bytes(dtype, &window), outputs * inputs * height * width * dtype.block_bytes())
                }
                // Experts are read and packed one by one.
                [parts @ .., rows, columns] => {
                    let all = parts.iter().product::<usize>() * Linear::packed_bytes(dtype, *rows, *columns);
                    (all, Linear::packing_bytes(threads, dtype, *rows, *columns))
                }
                [] => continue,
            };
            all.weights += weights as u64;
            all.loading = all.loading.max(loading as u64);
        }
        all
    }
}
