//! The vocabulary of a Hugging Face folder: `tokenizer.json`, which the `tokenizers` crate reads,
//! and what the files beside it say about single tokens.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokenizers::Tokenizer;

use super::letters::{letters, piece};
use super::{ChatTokenizer, ENDS, Encoder, Vocabulary, privileged};
use crate::engine::tokenizer::files::TextFiles;
use crate::engine::tokenizer::special_tokens::{SpecialToken, SpecialTokens};

/// A longer decoder is refused, in bytes of JSON: it is read for listings, too, where nothing else bounds its memory.
const LONGEST_DECODER: usize = 64 << 10;

/// The top level of `tokenizer.json`. Its values stay text: the vocabulary's is large, and only the `tokenizers` crate
/// reads it.
type Parts<'a> = BTreeMap<String, Cow<'a, RawValue>>;

fn wrong(error: impl std::fmt::Display) -> String {
    format!("tokenizer.json cannot be used: {error}")
}

fn damaged(error: impl std::fmt::Display) -> String {
    format!("tokenizer.json: it is damaged: {error}")
}

/// A token that `tokenizer_config.json` names, as a text or as an object with one.
fn named<'a>(config: &'a Value, key: &str) -> Option<&'a str> {
    let token = config.get(key)?;
    token.as_str().or_else(|| token.get("content")?.as_str())
}

/// The ids that a file says the model ends its answers with.
fn ends(file: &Value) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match file.get("eos_token_id") {
        Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
        Some(one) => number(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Whether a folder's tokenizer is one of those that can be built; cheap, for listings.
pub fn check(files: &TextFiles) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow, default)]
        decoder: Option<&'a RawValue>,
    }
    let head: Head<'_> = serde_json::from_slice(tokenizer_json(files)?).map_err(damaged)?;
    spelling(head.decoder).map(drop)
}

/// The content of a folder's `tokenizer.json`.
pub fn tokenizer_json(files: &TextFiles) -> Result<&[u8], String> {
    files.bytes("tokenizer.json").ok_or_else(|| "the folder has no tokenizer.json".to_owned())
}

/// How a vocabulary's texts stand for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    Letters,
    Pieces,
}

/// Told by the decoder, of which there is no other way to get single tokens' bytes.
fn spelling(decoder: Option<&RawValue>) -> Result<Spelling, String> {
    let decoder = decoder.map(RawValue::get).filter(|json| *json != "null");
    let decoder = decoder.ok_or("tokenizer.json has no decoder, which is not supported")?;
    if decoder.len() > LONGEST_DECODER {
        return Err(wrong(format!("its decoder has {} bytes, {LONGEST_DECODER} are the most", decoder.len())));
    }
    let decoder: Value = serde_json::from_str(decoder).map_err(damaged)?;
    let steps = match decoder.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.iter().collect(),
        None => vec![&decoder],
    };
    let kinds: Vec<&str> = steps.iter().filter_map(|step| step.get("type").and_then(Value::as_str)).collect();
    match kinds
        .iter()
        .find(|kind| !["ByteLevel", "ByteFallback", "Fuse", "Replace", "Strip", "Metaspace"].contains(kind))
    {
        Some(other) => Err(format!("the tokenizer's decoder {other} is not supported")),
        None if kinds.contains(&"ByteLevel") => Ok(Spelling::Letters),
        None => Ok(Spelling::Pieces),
    }
}

/// An added token's row in `tokenizer.json`.
struct Added {
    special: SpecialToken,
    privileged: bool,
    /// Marked as special.
    control: bool,
}

/// The value of a part that is a list; empty where there is none.
fn list(parts: &Parts<'_>, name: &str) -> Result<Vec<Value>, String> {
    match part(parts, name)? {
        Value::Array(all) => Ok(all),
        _ => Ok(Vec::new()),
    }
}

fn part(parts: &Parts<'_>, name: &str) -> Result<Value, String> {
    parts.get(name).map_or(Ok(Value::Null), |json| serde_json::from_str(json.get()).map_err(damaged))
}

fn set(parts: &mut Parts<'_>, name: &str, value: &Value) -> Result<(), String> {
    parts.insert(name.to_owned(), Cow::Owned(to_raw_value(value).map_err(damaged)?));
    Ok(())
}

impl Added {
    fn read(row: &Value, template: &str) -> Result<Self, String> {
        let flag = |key: &str| row.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = row.get("content").and_then(Value::as_str).filter(|text| !text.is_empty());
        let id = row.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let (Some(text), Some(id)) = (text, id) else {
            return Err("tokenizer.json has an added token without text or id".to_owned());
        };
        if flag("single_word") {
            return Err(format!("the added token {text} counts as a single word only, which is not supported"));
        }
        let special =
            SpecialToken { text: text.to_owned(), id, strips_left: flag("lstrip"), strips_right: flag("rstrip") };
        let control = flag("special");
        Ok(Self { privileged: control || privileged(text, template), control, special })
    }
}

impl ChatTokenizer {
    /// `rows` is the number of embeddings: no token may lie beyond. `template` tells which tokens
    /// are its own.
    pub fn of_hub(files: &TextFiles, rows: usize, template: &str) -> Result<(Self, Vocabulary), String> {
        let json: BTreeMap<String, &RawValue> = serde_json::from_slice(tokenizer_json(files)?).map_err(damaged)?;
        let mut parts: Parts<'_> = json.into_iter().map(|(name, part)| (name, Cow::Borrowed(part))).collect();
        let spelling = spelling(parts.get("decoder").map(AsRef::as_ref))?;
        let mut rows_of_added = list(&parts, "added_tokens")?;
        let added = rows_of_added.iter().map(|row| Added::read(row, template)).collect::<Result<Vec<_>, _>>()?;
        mark(&mut rows_of_added, &added);
        set(&mut parts, "added_tokens", &Value::Array(rows_of_added))?;
        let encoder = encoder(parts)?;
        let Encoder::Merges { tokenizer, .. } = &encoder else { return Err("no tokenizer".to_owned()) };
        let texts = tokenizer.get_vocab(true);
        let count = texts.values().max().map_or(0, |id| *id as usize + 1);
        if count == 0 || count > rows {
            return Err(format!("the tokenizer has {count} tokens, the model {rows}"));
        }
        let mut bytes = vec![Vec::new(); count];
        let of = |text: &str| if spelling == Spelling::Letters { letters(text) } else { piece(text) };
        texts.iter().for_each(|(text, id)| keep(&mut bytes, *id, of(text)));
        added.iter().for_each(|one| keep(&mut bytes, one.special.id, one.special.text.clone().into_bytes()));
        let control = added.iter().filter(|one| one.control).map(|one| one.special.id).collect();
        let special_tokens = added.into_iter().filter(|one| one.privileged).map(|one| one.special);
        let special_tokens = SpecialTokens::new(special_tokens.collect())?;
        let config = files.json("tokenizer_config.json")?;
        let id = |key: &str| named(&config, key).and_then(|text| tokenizer.token_to_id(text));
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        let told = [ends(&files.json("generation_config.json")?), ends(&files.json("config.json")?)].concat();
        let all = ENDS.iter().filter_map(|text| special_tokens.id(text)).chain(eos).chain(told);
        let ends: HashSet<u32> = all.filter(|id| (*id as usize) < count).collect();
        // Templates write the first token themselves: transformers adds none to what they render.
        Ok((Self { encoder, special_tokens, prefix: None }, Vocabulary { bytes, control, ends, bos, eos }))
    }
}

fn keep(bytes: &mut [Vec<u8>], id: u32, text: Vec<u8>) {
    if let Some(slot) = bytes.get_mut(id as usize) {
        *slot = text;
    }
}

/// Marks the template's tokens as special, so that the crate's tokenizer takes them for plain text.
fn mark(rows: &mut [Value], added: &[Added]) {
    for (row, _) in rows.iter_mut().zip(added).filter(|(_, added)| added.privileged) {
        if let Some(row) = row.as_object_mut() {
            row.insert("special".to_owned(), Value::Bool(true));
        }
    }
}

fn encoder(mut parts: Parts<'_>) -> Result<Encoder, String> {
    let tokenizer = Box::new(build(&parts)?);
    let (mut pre_tokenizer, mut normalizer) = (part(&parts, "pre_tokenizer")?, part(&parts, "normalizer")?);
    let mut inside = None;
    if never_first(&mut pre_tokenizer) {
        set(&mut parts, "pre_tokenizer", &pre_tokenizer)?;
        inside = Some(Box::new(build(&parts)?));
    }
    let mut continued = None;
    if never_prepended(&mut normalizer) {
        set(&mut parts, "normalizer", &normalizer)?;
        continued = Some(Box::new(build(&parts)?));
    }
    Ok(Encoder::Merges { tokenizer, inside, continued })
}

fn build(parts: &Parts<'_>) -> Result<Tokenizer, String> {
    let json = serde_json::to_vec(parts).map_err(wrong)?;
    let mut tokenizer: Tokenizer = serde_json::from_slice(&json).map_err(wrong)?;
    tokenizer.with_truncation(None).map_err(wrong)?;
    tokenizer.with_padding(None);
    tokenizer.set_encode_special_tokens(true);
    Ok(tokenizer)
}

/// Turns "a space before the text's very first word" into "no space": for text that follows special
/// tokens. `false`: the tokenizer makes no such difference.
fn never_first(pre_tokenizer: &mut Value) -> bool {
    let several = pre_tokenizer.get("pretokenizers").is_some_and(Value::is_array);
    let steps = match pre_tokenizer.get_mut("pretokenizers").and_then(Value::as_array_mut) {
        Some(steps) if several => steps.iter_mut().collect(),
        _ => vec![pre_tokenizer],
    };
    let mut changed = false;
    for step in steps.into_iter().filter_map(Value::as_object_mut) {
        if step.get("prepend_scheme").and_then(Value::as_str) == Some("first") {
            step.insert("prepend_scheme".to_owned(), Value::String("never".to_owned()));
            changed = true;
        }
    }
    changed
}

/// Takes out the normalizers that put something before every text: for text that continues another.
/// `false`: there are none.
fn never_prepended(normalizer: &mut Value) -> bool {
    let is_prepend = |step: &Value| step.get("type").and_then(Value::as_str) == Some("Prepend");
    if is_prepend(normalizer) {
        *normalizer = Value::Null;
        return true;
    }
    let Some(steps) = normalizer.get_mut("normalizers").and_then(Value::as_array_mut) else { return false };
    let before = steps.len();
    steps.retain(|step| !is_prepend(step));
    steps.len() < before
}
