//! What is known of a model's tokenizers and templates in the server's own process.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::engine::text::tools::Format;
use crate::engine::tokenizer::Vocabulary;

/// A text encoder's tokenizer in a pipeline for images.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TextSpec {
    pub folder: PathBuf,
    /// ChatTokenizer that the encoder takes.
    pub positions: usize,
    /// The padding token; overrides the folder's.
    pub padding: Option<String>,
}

/// What the server has to know of a chat model's tokenizer and templates.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChatFacts {
    pub vocabulary: Vocabulary,
    /// How the model writes calls of tools.
    pub call_format: Format,
}

/// What an encoder's tokenizer puts around texts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderFacts {
    /// How many tokens there are.
    pub vocabulary: usize,
    /// What stands before and behind every single text.
    pub before: Vec<u32>,
    pub behind: Vec<u32>,
}
