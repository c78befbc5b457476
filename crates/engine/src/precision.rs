//! The precision of the weights of embedding, reranking and image models.

use super::per_model::PerModel;
use outpost_models::backend::DType;

/// The type to which weights are rounded when they are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As in the file: 32 bits in most cases.
    #[default]
    Full,
    /// bfloat16: 16 bits with the exponent range of f32.
    Bf16,
    /// 8 bits, with one scale for each 32 weights.
    Int8,
}

/// The precision of each model.
pub type Precisions = PerModel<Precision>;

impl Precision {
    pub(super) fn kind(self) -> Option<DType> {
        match self {
            Self::Full => None,
            Self::Bf16 => Some(DType::BF16),
            Self::Int8 => Some(DType::Q8_0),
        }
    }
}
