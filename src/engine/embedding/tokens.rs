//! Texts as tokens, with what an encoder wants around them.

use serde_json::{Value, json};
use tokenizers::utils::truncation::truncate_encodings;
use tokenizers::{Tokenizer, TruncationParams};

use crate::models::encoder::Tokenized;
use crate::models::gguf::Metadata;
use crate::models::safetensors::{Folder, read_json};

pub(super) struct TextTokens {
    tokenizer: Tokenizer,
    lower_case: bool,
    /// What stands before and behind every single text.
    before: Vec<u32>,
    behind: Vec<u32>,
}

/// Whether a GGUF file's vocabulary is of a kind that can be read.
pub fn check_gguf(metadata: &Metadata) -> Result<(), String> {
    match metadata.text("tokenizer.ggml.model") {
        Some("bert") => Ok(()),
        other => Err(format!("the tokenizer {} is not supported for embeddings", other.unwrap_or("of no name"))),
    }
}

impl TextTokens {
    pub fn of_folder(folder: &Folder, lower_case: bool) -> Result<Self, String> {
        let path = folder.path.join("tokenizer.json");
        if !path.is_file() {
            return Err("the folder has no tokenizer.json".to_owned());
        }
        Self::new(read_json(&path).map_err(|error| error.to_string())?, lower_case)
    }

    /// BERT's word pieces. A GGUF file marks those that begin a word, Hugging Face those that do not.
    pub fn of_gguf(metadata: &Metadata) -> Result<Self, String> {
        check_gguf(metadata)?;
        let tokens = metadata.texts("tokenizer.ggml.tokens").ok_or("the file has no tokens")?;
        let word = |text: &String| match text.strip_prefix('\u{2581}') {
            Some(start) => start.to_owned(),
            None if text.starts_with('[') && text.ends_with(']') => text.clone(),
            None => format!("##{text}"),
        };
        let vocabulary: serde_json::Map<String, Value> =
            tokens.iter().enumerate().map(|(id, text)| (word(text), json!(id))).collect();
        let special = |text: &str| {
            let id = vocabulary.get(text).ok_or_else(|| format!("the vocabulary has no {text}"))?;
            Ok::<_, String>(json!({"id": text, "ids": [id], "tokens": [text]}))
        };
        let (cls, sep) = (special("[CLS]")?, special("[SEP]")?);
        let added = |text: &&str| {
            let id = vocabulary.get(*text)?;
            Some(json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}))
        };
        let added: Vec<Value> = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].iter().filter_map(added).collect();
        let part = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
        let mark = |id: &str, kind: u32| json!({"SpecialToken": {"id": id, "type_id": kind}});
        let (begin, end, other) = (mark("[CLS]", 0), mark("[SEP]", 0), mark("[SEP]", 1));
        Self::new(
            json!({
                "version": "1.0",
                "added_tokens": added,
                "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                    "strip_accents": null, "lowercase": true},
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "post_processor": {"type": "TemplateProcessing",
                    "single": [begin, part("A", 0), end],
                    "pair": [begin, part("A", 0), end, part("B", 1), other],
                    "special_tokens": {"[CLS]": cls, "[SEP]": sep}},
                "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                    "max_input_chars_per_word": 100, "vocab": vocabulary},
            }),
            false,
        )
    }

    fn new(json: Value, lower_case: bool) -> Result<Self, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("its tokenizer cannot be used: {error}");
        let mut tokenizer: Tokenizer = serde_json::from_value(json).map_err(|error| wrong(&error))?;
        tokenizer.with_truncation(None).map_err(|error| wrong(&error))?;
        tokenizer.with_padding(None);
        let bare = tokenizer.encode_fast("a", false).map_err(|error| wrong(&error))?;
        let whole = tokenizer.encode_fast("a", true).map_err(|error| wrong(&error))?;
        let (bare, whole) = (bare.get_ids(), whole.get_ids());
        let at = whole.windows(bare.len().max(1)).position(|part| part == bare);
        let at = at.ok_or_else(|| wrong(&"it does not keep texts in what it makes of them"))?;
        let (before, behind) = (whole.get(..at), whole.get(at + bare.len()..));
        let (before, behind) = (before.unwrap_or_default().to_vec(), behind.unwrap_or_default().to_vec());
        Ok(Self { tokenizer, lower_case, before, behind })
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    pub fn encode(&self, text: &str) -> Result<Tokenized, String> {
        let encoding = match self.lower_case {
            true => self.tokenizer.encode_fast(text.to_lowercase(), true),
            false => self.tokenizer.encode_fast(text, true),
        };
        encoding.map(|encoding| Tokenized::new(encoding.get_ids().to_vec())).map_err(|error| error.to_string())
    }

    /// A question and a text that may answer it, of `limit` tokens at most where there is one: then the longer text
    /// loses its end first.
    pub fn encode_pair(&self, first: &str, second: &str, limit: Option<usize>) -> Result<Tokenized, String> {
        let text = |error: tokenizers::Error| error.to_string();
        let mut pair = self.tokenizer.encode_fast((first, second), true).map_err(text)?;
        if let Some(limit) = limit.filter(|limit| pair.len() > *limit) {
            let one = |text: &str, kind: u32| {
                let mut one = self.tokenizer.encode_fast(text, false)?;
                one.set_type_ids(vec![kind; one.len()]);
                Ok(one)
            };
            let (one, other) = (one(first, 0).map_err(text)?, one(second, 1).map_err(text)?);
            let added = pair.len() - one.len() - other.len();
            let rule = TruncationParams { max_length: limit.saturating_sub(added), ..TruncationParams::default() };
            let (one, other) = truncate_encodings(one, Some(other), &rule).map_err(text)?;
            pair = self.tokenizer.post_process(one, other, true).map_err(text)?;
        }
        let ids = pair.get_ids().to_vec();
        let second = pair.get_type_ids().iter().position(|kind| *kind == 1).unwrap_or(ids.len());
        Ok(Tokenized { ids, second })
    }

    /// A text's tokens, which a caller has made himself, with what belongs around them.
    pub fn wrap(&self, ids: &[u32]) -> Tokenized {
        let whole = ids.len() >= self.before.len() + self.behind.len()
            && ids.starts_with(&self.before)
            && ids.ends_with(&self.behind);
        let parts = [self.before.as_slice(), ids, self.behind.as_slice()];
        Tokenized::new(if whole { ids.to_vec() } else { parts.concat() })
    }

    /// Leaves out what is too much of a single text, before what stands behind every text.
    pub fn cut(&self, text: &mut Tokenized, limit: usize) {
        if text.ids.len() > limit {
            text.ids.truncate(limit.saturating_sub(self.behind.len()));
            text.ids.extend(&self.behind);
            text.second = text.ids.len();
        }
    }
}
