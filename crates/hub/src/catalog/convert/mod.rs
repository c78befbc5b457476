//! Converts checkpoints of other formats to folders that the server reads: safetensors and JSON.
//!
//! A converter runs once, at the end of a pull, on files whose sha256 has been verified. It executes nothing, reads
//! strictly and in bounded memory, and its results are the same bytes everywhere, so that the catalog has their sha256.

mod ctranslate2;
mod ctranslate2_whisper;
mod dtype;
mod kokoro;
mod onnx;
mod openai_whisper;
mod pickle;
mod pickle_value;
mod safetensors_writer;
mod tensor;
#[cfg(test)]
mod tests;
mod tiktoken;
mod torch_checkpoint;
mod whisper_config;
mod whisper_dims;
mod whisper_tokenizer;

use std::path::Path;

use serde::Deserialize;

use super::error::PullError;
use super::staging::Staging;

/// A conversion of checkpoint files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Converter {
    /// An English-only Whisper checkpoint of OpenAI, `checkpoint.pt`, with the ranks of its tokens, `ranks.tiktoken`.
    OpenaiWhisper,
    /// A multilingual Whisper of CTranslate2: `model.bin` and `ctranslate2.json`.
    Ctranslate2Whisper,
    /// The initializers of Kokoro's ONNX graph, `kokoro.onnx`.
    KokoroOnnx,
}

impl Converter {
    /// The names of the files that it reads.
    pub fn inputs(self) -> &'static [&'static str] {
        match self {
            Self::OpenaiWhisper => &[openai_whisper::CHECKPOINT, openai_whisper::RANKS],
            Self::Ctranslate2Whisper => &[ctranslate2_whisper::MODEL, ctranslate2_whisper::CONFIG],
            Self::KokoroOnnx => &[kokoro::GRAPH],
        }
    }
}

/// Converts the files in the folder `inputs` to files of the staged model.
pub(super) fn run(converter: Converter, inputs: &Path, staging: &Staging) -> Result<(), PullError> {
    match converter {
        Converter::OpenaiWhisper => openai_whisper::convert(inputs, staging),
        Converter::Ctranslate2Whisper => ctranslate2_whisper::convert(inputs, staging),
        Converter::KokoroOnnx => kokoro::convert(inputs, staging),
    }
}
