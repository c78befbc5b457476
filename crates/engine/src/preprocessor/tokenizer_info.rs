//! Facts about a model's tokenizers and templates that the server process gets from the sandbox.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::text::reasoning::ReasoningSyntax;
use crate::text::tools::CallFormat;
use crate::tokenizer::Vocabulary;

/// The tokenizer of a text encoder in an image pipeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PromptTokenizerSpec {
    pub folder: PathBuf,
    /// The number of tokens that the encoder takes.
    pub positions: usize,
    /// The padding token; overrides the folder's.
    pub padding: Option<String>,
}

/// A chat model's vocabulary, and how it writes reasoning and tool calls.
#[derive(Debug, Serialize, Deserialize)]
pub struct ChatTokenizerInfo {
    pub vocabulary: Vocabulary,
    /// Whether the tokens of a text begin with a space that the text does not have.
    pub prepends_space: bool,
    /// How the model writes tool calls.
    pub call_format: CallFormat,
    /// How the model marks its reasoning, if it reasons.
    pub reasoning: Option<ReasoningSyntax>,
    /// Set if the model's own template describes tools.
    pub template_describes_tools: bool,
    /// The description that clients get.
    pub description: TokenizerDescription,
}

/// A chat model's special tokens, by their texts, and its chat template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenizerDescription {
    pub bos: Option<String>,
    pub eos: Option<String>,
    pub padding: Option<String>,
    pub unknown: Option<String>,
    /// Set if the BOS token is added to a text.
    pub adds_bos: bool,
    /// The template for conversations without tools.
    pub chat_template: Option<String>,
}

/// An encoder's vocabulary size, special tokens and the tokens that it was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EncoderTokenizerInfo {
    /// The vocabulary size.
    pub vocabulary: usize,
    /// The special tokens before and after every single text.
    pub prefix: Vec<u32>,
    pub suffix: Vec<u32>,
    /// The tokens of [`EncoderTokenizerSpec::words`](crate::embedding::EncoderTokenizerSpec::words).
    pub words: Vec<u32>,
}
