//! The table of families that one decoder serves. A new row is a new family.

pub use super::rope::RopeStyle;

/// What differs between decoders of the Llama kind.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// `general.architecture` in GGUF.
    pub name: &'static str,
    pub rope: RopeStyle,
    /// Whether the query, key and value projections must have biases.
    pub biases: bool,
}

pub const FAMILIES: &[Family] = &[
    Family { name: "llama", rope: RopeStyle::Interleaved, biases: false },
    Family { name: "qwen2", rope: RopeStyle::Halves, biases: true },
];

pub fn find(architecture: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.name == architecture)
}

/// For messages: `llama, qwen2`.
pub fn names() -> String {
    FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().join(", ")
}
