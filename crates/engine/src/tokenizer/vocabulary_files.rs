//! BERT's and RoBERTa's tokenizers from the files with their vocabularies, which predate `tokenizer.json`.

use serde_json::{Map, Value, json};

use super::checks::check_merges;
use super::files::TextFiles;

/// BERT's words, one on a line.
pub const WORDS: &str = "vocab.txt";
/// The IDs of byte pair encoding's tokens.
pub const TOKENS: &str = "vocab.json";
pub const MERGES: &str = "merges.txt";

/// Follows transformers' `BertTokenizer`. Returns a `tokenizer.json`.
pub fn bert(files: &TextFiles) -> Result<Value, String> {
    let lines = text(files, WORDS)?;
    let words: Map<String, Value> =
        lines.lines().enumerate().map(|(id, word)| (word.trim_end().to_owned(), id.into())).collect();
    let id = |word: &str| words.get(word).cloned().ok_or_else(|| format!("{WORDS} has no {word}"));
    let (start, end, _) = (id("[CLS]")?, id("[SEP]")?, id("[UNK]")?);
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"].into_iter();
    let special: Vec<Value> = special.filter_map(|word| Some(added(word, words.get(word)?))).collect();
    let config = files.json("tokenizer_config.json")?;
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(true);
    Ok(json!({
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": flag("tokenize_chinese_chars"),
            "strip_accents": config.get("strip_accents").filter(|value| value.is_boolean()),
            "lowercase": flag("do_lower_case")},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", end], "cls": ["[CLS]", start]},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": words},
    }))
}

/// Follows transformers' `RobertaTokenizer`. Returns a `tokenizer.json`.
pub fn roberta(files: &TextFiles) -> Result<Value, String> {
    let tokens = tokens(files)?;
    let id = |token: &str| tokens.get(token).cloned().ok_or_else(|| format!("{TOKENS} has no {token}"));
    let (start, end) = (id("<s>")?, id("</s>")?);
    let special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"].into_iter();
    let mut special: Vec<Value> = special.filter_map(|token| Some(added(token, tokens.get(token)?))).collect();
    if let Some(mask) = special.iter_mut().find(|token| token["content"] == "<mask>") {
        mask["lstrip"] = json!(true);
    }
    let merges = merges(files, &tokens)?;
    let config = files.json("tokenizer_config.json")?;
    let has_space = config.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(false);
    Ok(json!({
        "version": "1.0",
        "added_tokens": special,
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": has_space, "trim_offsets": true, "use_regex": true},
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", end], "cls": ["<s>", start],
            "trim_offsets": true, "add_prefix_space": has_space},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "vocab": tokens, "merges": merges},
    }))
}

/// The tokens of byte pair encoding, with their IDs.
pub fn tokens(files: &TextFiles) -> Result<Map<String, Value>, String> {
    match files.json(TOKENS)? {
        Value::Object(tokens) => Ok(tokens),
        _ => Err(format!("{TOKENS} is not an object")),
    }
}

/// The merges of byte pair encoding, whose parts and results are `tokens`.
pub fn merges(files: &TextFiles, tokens: &Map<String, Value>) -> Result<Vec<[String; 2]>, String> {
    let text = text(files, MERGES)?;
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with("#version"));
    let pair = |line: &str| {
        let (one, other) = line.split_once(' ').ok_or_else(|| format!("{MERGES} has the line {line:?}"))?;
        Ok::<_, String>([one.to_owned(), other.to_owned()])
    };
    let merges = lines.map(pair).collect::<Result<Vec<_>, _>>()?;
    let pairs = merges.iter().map(|[left, right]| (left.as_str(), right.as_str()));
    check_merges(MERGES, pairs, 0, |text| tokens.contains_key(text))?;
    Ok(merges)
}

/// A special token.
fn added(content: &str, id: &Value) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

fn text<'a>(files: &'a TextFiles, name: &str) -> Result<&'a str, String> {
    files.text(name)?.ok_or_else(|| format!("its folder has no {name}"))
}
