//! The types of weights, shapes and parameters that the interface is declared with. They are those of the kernels, which a
//! device may use without the rest of the CPU's backend.

pub use outpost_kernels::{
    Activation, AttentionShape, BLOCK_POSITIONS, Conv1dShape, ConvShape, DType, Dropout, Error, Isa, LstmRecurrence,
    LstmState, NormKind, Pool, RecurrenceShape, RopeLayout, TargetLogit, cross_entropy, dequantise,
};

use crate::error::ModelError;

/// Weights that cannot be packed.
impl From<Error> for ModelError {
    fn from(error: Error) -> Self {
        Self::Checkpoint(error.to_string())
    }
}
