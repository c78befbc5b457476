//! Reads a `tokenizer.json` with the `tokenizers` crate.

use std::borrow::Cow;

use serde::Deserialize;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer, TokenizerImpl,
};

use super::files::TextFiles;

/// A tokenizer whose model is byte-pair encoding.
type BpeTokenizer = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The content of a folder's `tokenizer.json`.
pub fn content(files: &TextFiles) -> Result<&[u8], String> {
    files.bytes("tokenizer.json").ok_or_else(|| "the folder has no tokenizer.json".to_owned())
}

/// The tokenizer of a `tokenizer.json`.
///
/// The crate's [`Tokenizer`] parses every model as a JSON value first. Gemma's 262,144 tokens and 514,906 merges would take more memory
/// than the sandbox has, so byte-pair encoding is parsed as such.
pub fn parse(json: &[u8]) -> serde_json::Result<Tokenizer> {
    match is_bpe(json) {
        true => serde_json::from_slice::<BpeTokenizer>(json).map(Tokenizer::from),
        false => serde_json::from_slice(json),
    }
}

/// True if the model is byte-pair encoding. Older files do not name the model's type.
fn is_bpe(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Whole<'a> {
        #[serde(borrow)]
        model: Model<'a>,
    }
    #[derive(Deserialize)]
    struct Model<'a> {
        #[serde(borrow, rename = "type")]
        kind: Cow<'a, str>,
    }
    serde_json::from_slice::<Whole<'_>>(json).is_ok_and(|whole| whole.model.kind == "BPE")
}
