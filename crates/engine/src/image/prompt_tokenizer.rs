//! Tokenizers of prompts, read as diffusers' pipelines read them.

use std::path::Path;

use serde_json::{Value, json};
use tokenizers::{
    AddedToken, PaddingDirection, PaddingParams, PaddingStrategy, PostProcessor as _, Tokenizer, TruncationDirection,
    TruncationParams, TruncationStrategy,
};

use crate::preprocessor::tokenizer_info::PromptTokenizerSpec;
use crate::tokenizer::checks::check_tokenizer_json;
use crate::tokenizer::files::TextFiles;
use crate::tokenizer::tokenizer_json;
use crate::tokenizer::vocabulary_files::{self, MERGES, TOKENS, WORDS};

/// CLIP's pre-tokenizer pattern.
const CLIP_WORDS: &str = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
const START: &str = "<|startoftext|>";
const END: &str = "<|endoftext|>";
const BERT_PADDING: &str = "[PAD]";

/// A text encoder's tokenizer; it pads every text to the same length.
pub struct PromptTokenizer {
    tokenizer: Tokenizer,
}

impl PromptTokenizer {
    /// Checks that a folder has a tokenizer's files. Cheap enough for listings.
    pub fn check(folder: &Path) -> Result<(), String> {
        let has = |name: &str| folder.join(name).is_file();
        match has("tokenizer.json") || (has(TOKENS) && has(MERGES)) || has(WORDS) {
            true => Ok(()),
            false => {
                Err(unusable("its folder has neither tokenizer.json nor vocab.json and merges.txt, nor vocab.txt"))
            }
        }
    }

    /// Reads a tokenizer's files.
    pub fn new(files: &TextFiles, spec: &PromptTokenizerSpec) -> Result<Self, String> {
        let PromptTokenizerSpec { positions, ref padding, .. } = *spec;
        let mut tokenizer = read(files)?;
        let json = |name: &str| files.json(name).map_err(unusable);
        let (config, named) = (json("tokenizer_config.json")?, json("special_tokens_map.json")?);
        let longest =
            config.get("model_max_length").and_then(Value::as_u64).and_then(|length| usize::try_from(length).ok());
        let length = longest.filter(|length| (1..=positions).contains(length)).unwrap_or(positions);
        let special = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        if length < special {
            return Err(unusable(format!(
                "it adds {special} special tokens, but the text encoder has {length} positions"
            )));
        }
        let truncation = TruncationParams {
            max_length: length,
            strategy: TruncationStrategy::LongestFirst,
            stride: 0,
            direction: TruncationDirection::Right,
        };
        tokenizer.with_truncation(Some(truncation)).map_err(unusable)?;
        let pad_token = padding.clone().unwrap_or_else(|| pad_token(&tokenizer, [&named, &config]));
        // transformers also matches it in texts.
        tokenizer.add_special_tokens([AddedToken::from(pad_token.clone(), true)]).map_err(unusable)?;
        let pad_id = tokenizer.token_to_id(&pad_token);
        let pad_id = pad_id.ok_or_else(|| unusable(format!("it has no padding token {pad_token:?}")))?;
        tokenizer.with_padding(Some(PaddingParams {
            strategy: PaddingStrategy::Fixed(length),
            direction: PaddingDirection::Right,
            pad_to_multiple_of: None,
            pad_id,
            pad_type_id: 0,
            pad_token,
        }));
        Ok(Self { tokenizer })
    }

    /// Vocabulary size.
    pub fn len(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Tokenises a text, truncated or padded to the encoder's length. Takes time proportional to the text's length.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        self.tokenizer.encode_fast(text, true).map(|encoding| encoding.get_ids().to_vec()).map_err(unusable)
    }
}

/// The padding token: from the folder's files in order, else the default.
fn pad_token(tokenizer: &Tokenizer, files: [&Value; 2]) -> String {
    let named = |file: &&Value| {
        let token = file.get("pad_token")?;
        token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
    };
    let own = || tokenizer.get_padding().map(|padding| padding.pad_token.clone());
    let default = || [END, BERT_PADDING].into_iter().find(|token| tokenizer.token_to_id(token).is_some());
    let configured = files.iter().find_map(named).or_else(own);
    configured.unwrap_or_else(|| default().unwrap_or(END).to_owned())
}

fn read(files: &TextFiles) -> Result<Tokenizer, String> {
    if let Some(whole) = files.bytes("tokenizer.json") {
        check_tokenizer_json(whole)?;
        return tokenizer_json::parse(whole).map_err(unusable);
    }
    let json = if files.has(WORDS) { vocabulary_files::bert(files) } else { clip(files) };
    serde_json::from_value(json.map_err(unusable)?).map_err(unusable)
}

/// CLIP's tokenizer from `vocab.json` and `merges.txt`, which predate `tokenizer.json`.
fn clip(files: &TextFiles) -> Result<Value, String> {
    let vocab = vocabulary_files::tokens(files)?;
    let id = |text: &str| vocab.get(text).and_then(Value::as_u64).ok_or_else(|| format!("{TOKENS} has no {text}"));
    let (start, end) = (id(START)?, id(END)?);
    let added = |id: u64, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": true, "special": true})
    };
    let merges = vocabulary_files::merges(files, &vocab)?;
    Ok(json!({
        "version": "1.0",
        "added_tokens": [added(start, START), added(end, END)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Lowercase"},
        ]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": CLIP_WORDS}, "behavior": "Removed", "invert": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "post_processor": {"type": "RobertaProcessing", "sep": [END, end], "cls": [START, start],
            "trim_offsets": false, "add_prefix_space": false},
        "decoder": null,
        "model": {"type": "BPE", "dropout": null, "unk_token": END, "continuing_subword_prefix": "",
            "end_of_word_suffix": "</w>", "fuse_unk": false, "vocab": vocab, "merges": merges},
    }))
}

/// The error for a tokenizer that a library refuses.
fn unusable(error: impl std::fmt::Display) -> String {
    format!("its tokenizer cannot be used: {error}")
}

#[cfg(test)]
mod tests {
    use outpost_testing::fixtures::fixture;

    use super::*;
    use outpost_models::safetensors::read_json;

    fn tokens(folder: &Path, positions: usize) -> PromptTokenizer {
        let spec = PromptTokenizerSpec { folder: folder.to_owned(), positions, padding: None };
        PromptTokenizer::new(&TextFiles::read(folder).unwrap(), &spec).unwrap()
    }

    #[test]
    fn tokens_match_transformers() {
        let pipelines = fixture("pipelines");
        let plain = ["sd1", "sd2v", "sdxl", "sd3", "flux", "bert"].map(|name| (name, "tokenizer", "ids", 77));
        let others = [
            ("sd3", "tokenizer_2", "ids_2", 77),
            ("sd3", "tokenizer_3", "ids_3", 48),
            ("flux", "tokenizer_2", "ids_2", 48),
        ];
        for (name, folder, column, length) in plain.into_iter().chain(others) {
            let tokens = tokens(&pipelines.join(name).join(folder), length);
            let reference = read_json(&pipelines.join(format!("{name}.reference.json"))).unwrap();
            let all = reference["tokens"].as_array().unwrap();
            assert!(all.len() > 5);
            for case in all {
                let expected: Vec<u32> = serde_json::from_value(case[column].clone()).unwrap();
                assert_eq!(tokens.encode(case["text"].as_str().unwrap()).unwrap(), expected, "{name}: {case}");
            }
        }
    }

    #[test]
    fn vocab_txt_and_tokenizer_json_give_the_same_tokens() {
        let folder = fixture("pipelines/bert/tokenizer");
        let json = read_json(&folder.join("tokenizer.json")).unwrap();
        let vocab = json["model"]["vocab"].as_object().unwrap();
        let mut vocab: Vec<(u64, &str)> =
            vocab.iter().map(|(word, id)| (id.as_u64().unwrap(), word.as_str())).collect();
        vocab.sort_unstable();
        let lines: String = vocab.iter().map(|(_, word)| format!("{word}\n")).collect();
        let old = tempfile::tempdir().unwrap();
        std::fs::write(old.path().join("vocab.txt"), lines).unwrap();
        let (json, wordpiece) = (tokens(&folder, 32), tokens(old.path(), 32));
        for text in
            ["a photo of a cat", "", "Ein Haus? An der SEE, 12 [PAD] \u{fc}ml\u{e4}ut", "\u{6f22}\u{5b57} and more"]
        {
            assert_eq!(wordpiece.encode(text).unwrap(), json.encode(text).unwrap(), "{text}");
        }
        assert_eq!(wordpiece.len(), json.len());
    }
}
