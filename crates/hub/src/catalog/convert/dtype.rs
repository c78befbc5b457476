//! The element types that conversions keep.

/// Type of a tensor's elements. Values are copied, never converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F16,
    F32,
}

impl Dtype {
    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Its name in safetensors files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "F16",
            Self::F32 => "F32",
        }
    }
}
