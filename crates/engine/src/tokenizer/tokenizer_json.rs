//! Reads a `tokenizer.json` with the `tokenizers` crate.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer, TokenizerImpl,
};

use super::files::TextFiles;

/// A tokenizer whose model is byte-pair encoding.
type BpeTokenizer = TokenizerImpl<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// The fields of [`BPE`] in a `tokenizer.json`.
const BPE_FIELDS: [&str; 10] = [
    "type",
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
    "vocab",
    "merges",
];

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

/// True if the model is byte-pair encoding with fields that the crate knows: it stumbles over others, which it otherwise ignores. Older
/// files do not name the model's type.
fn is_bpe(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Whole<'a> {
        #[serde(borrow)]
        model: BTreeMap<&'a str, &'a RawValue>,
    }
    let Ok(Whole { model }) = serde_json::from_slice(json) else { return false };
    model.get("type").is_some_and(|kind| kind.get() == r#""BPE""#) && model.keys().all(|key| BPE_FIELDS.contains(key))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_model_may_have_fields_that_the_library_does_not_know() {
        let tokenizer = |model: &str| format!(r#"{{"version": "1.0", "added_tokens": [], "model": {{{model}}}}}"#);
        let fields = r#""vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]"#;
        let models = [
            format!(r#""type": "BPE", {fields}"#),
            format!(r#""type": "BPE", "note": {{"a": 1}}, {fields}"#),
            format!(r#"{fields}, "type": "\u0042PE""#),
            fields.to_owned(),
        ];
        for model in models {
            let parsed = parse(tokenizer(&model).as_bytes()).unwrap_or_else(|error| panic!("{model}: {error}"));
            assert_eq!(parsed.encode("ab", false).unwrap().get_ids(), [2], "{model}");
        }
    }
}
