//! What is known of a model without loading it.

use crate::clock_rng::Timestamp;

/// The folder of adapters, which is no model.
pub const LORAS: &str = "loras";

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    Text,
    Embedding,
    /// Judges how well a text answers a question.
    Reranker,
    /// Paints pictures.
    Image,
    Unknown,
}

impl ModelKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "chat",
            Self::Embedding => "embedding",
            Self::Reranker => "reranking",
            Self::Image => "image",
            Self::Unknown => "known",
        }
    }
}

/// A model on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    pub id: String,
    /// When the file was last written.
    pub created: Timestamp,
    pub owned_by: String,
    pub architecture: String,
    pub kind: ModelKind,
    /// `gguf` or `safetensors`.
    pub format: &'static str,
    /// The type of most weights: `Q4_1`, `F32`.
    pub quantization: Option<String>,
    pub parameters: u64,
    pub bytes: u64,
    pub context_window: Option<u32>,
    pub embedding_dimensions: Option<u32>,
    /// Width and height of pictures, where nobody asks for others.
    pub image_size: Option<[usize; 2]>,
    pub loaded: bool,
    /// Why it cannot be used.
    pub problem: Option<String>,
    pub license: Option<String>,
}
