//! The types that describe types of weights, shapes and parameters.

pub use outpost_kernels::{
    Activation, AttentionShape, BLOCK_POSITIONS, Conv1dShape, ConvShape, DType, Dropout, Error, Isa, LstmRecurrence,
    LstmState, NormKind, Pool, RopeLayout, TargetLogit, cross_entropy, dequantise,
};

use crate::error::ModelError;

/// Weights that cannot be packed.
impl From<Error> for ModelError {
    fn from(error: Error) -> Self {
        Self::Checkpoint(error.to_string())
    }
}
