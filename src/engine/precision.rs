//! The precision of the weights of embedding, reranking and image models.

use std::collections::BTreeMap;

use crate::models::backend::DType;

/// What weights are rounded to when they are loaded.
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

/// The precision by model ID, and the default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Precisions {
    pub usual: Precision,
    pub models: BTreeMap<String, Precision>,
}

impl Precision {
    pub(super) fn kind(self) -> Option<DType> {
        match self {
            Self::Full => None,
            Self::Bf16 => Some(DType::BF16),
            Self::Int8 => Some(DType::Q8_0),
        }
    }
}

impl Precisions {
    pub fn of(&self, id: &str) -> Precision {
        self.models.get(id).copied().unwrap_or(self.usual)
    }
}
