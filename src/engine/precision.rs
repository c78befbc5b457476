//! How the weights of models that make no text are kept.

use std::collections::BTreeMap;

use outpost_kernels::DType;

/// What weights are rounded to when they are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// As the file has them: 32 bits, in most.
    #[default]
    Full,
    /// 16 bits with the range of 32.
    Bf16,
    /// 8 bits, with a scale for each 32 weights.
    Int8,
}

/// By model.
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
