//! BERT's tokenizer from `vocab.txt`, which predates `tokenizer.json`.

use serde_json::{Map, Value, json};

use super::{text, wrong};
use crate::engine::tokenizer::files::TextFiles;

pub const VOCABULARY: &str = "vocab.txt";

/// Follows transformers' `BertTokenizer`.
pub fn read(files: &TextFiles) -> Result<Value, String> {
    let lines = text(files, VOCABULARY)?;
    let words: Map<String, Value> =
        lines.lines().enumerate().map(|(id, word)| (word.trim_end().to_owned(), id.into())).collect();
    let id = |word: &str| words.get(word).cloned().ok_or_else(|| wrong(format!("{VOCABULARY} has no {word}")));
    let added = |word: &str| {
        Ok::<_, String>(json!({"id": id(word)?, "content": word, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}))
    };
    let (start, end) = (id("[CLS]")?, id("[SEP]")?);
    let config = files.json("tokenizer_config.json").map_err(wrong)?;
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(true);
    let special = ["[UNK]", "[CLS]", "[SEP]"].into_iter().map(added).collect::<Result<Vec<_>, _>>()?;
    Ok(json!({
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars"),
            "strip_accents": config.get("strip_accents").filter(|value| value.is_boolean()),
            "lowercase": flag("do_lower_case")},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", end], "cls": ["[CLS]", start]},
        "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": words},
    }))
}
