//! Builds the tokenizer of a Hugging Face folder: `tokenizer.json`, which the `tokenizers` crate reads, and the special
//! tokens that other files name.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use tokenizers::Tokenizer;

use super::byte_alphabet::{decode_byte_level, decode_piece};
use super::checks::check_tokenizer_json;
use super::fill_in_the_middle::FimTokens;
use super::{ChatTokenizer, EOS_TOKENS, Encoder, Vocabulary, is_template_token, tokenizer_json};
use crate::tokenizer::files::{TextFiles, named_token};
use crate::tokenizer::special_tokens::{SpecialToken, SpecialTokens};

/// The longest decoder in bytes of JSON. Listings read it, too, where nothing else limits its memory.
const MAX_DECODER_BYTES: usize = 64 << 10;

/// The top level of `tokenizer.json`. Values stay unparsed: the vocabulary is large, and only the `tokenizers` crate
/// reads it.
type Parts<'a> = BTreeMap<String, Cow<'a, RawValue>>;

fn wrong(error: impl std::fmt::Display) -> String {
    format!("tokenizer.json cannot be used: {error}")
}

fn damaged(error: impl std::fmt::Display) -> String {
    format!("tokenizer.json: it is damaged: {error}")
}

/// The EOS token IDs in a file.
fn eos_ids(file: &Value) -> Vec<u32> {
    let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match file.get("eos_token_id") {
        Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
        Some(one) => number(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Checks that a folder's tokenizer is supported. Cheap, so listings can use it.
pub fn check(files: &TextFiles) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Head<'a> {
        #[serde(borrow, default)]
        decoder: Option<&'a RawValue>,
    }
    let head: Head<'_> = serde_json::from_slice(tokenizer_json::content(files)?).map_err(damaged)?;
    token_encoding(head.decoder).map(drop)
}

/// How a vocabulary's texts encode bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenEncoding {
    ByteLevel,
    SentencePiece,
}

/// Determined from the decoder's type: the crate cannot give the bytes of single tokens.
fn token_encoding(decoder: Option<&RawValue>) -> Result<TokenEncoding, String> {
    let decoder = decoder.map(RawValue::get).filter(|json| *json != "null");
    let decoder = decoder.ok_or("tokenizer.json has no decoder, which is not supported")?;
    if decoder.len() > MAX_DECODER_BYTES {
        return Err(wrong(format!("its decoder has {} bytes; the limit is {MAX_DECODER_BYTES}", decoder.len())));
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
        None if kinds.contains(&"ByteLevel") => Ok(TokenEncoding::ByteLevel),
        None => Ok(TokenEncoding::SentencePiece),
    }
}

/// An entry of `added_tokens` in `tokenizer.json`.
struct Added {
    special: SpecialToken,
    is_template_token: bool,
    /// Marked as special.
    control: bool,
}

/// The value of a part that is a list; empty if there is none.
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
            return Err(format!(
                "the added token {text} is matched as a single word only (single_word), which is not supported"
            ));
        }
        let special = SpecialToken { text: text.to_owned(), id, lstrip: flag("lstrip"), rstrip: flag("rstrip") };
        let control = flag("special");
        Ok(Self { is_template_token: control || is_template_token(text, template), control, special })
    }
}

impl ChatTokenizer {
    /// `rows` is the number of rows of the token embedding; token IDs must be below it. `template` is the chat
    /// template, whose tokens count as special.
    pub fn from_hugging_face(files: &TextFiles, rows: usize, template: &str) -> Result<(Self, Vocabulary), String> {
        let json = tokenizer_json::content(files)?;
        check_tokenizer_json(json)?;
        let json: BTreeMap<String, &RawValue> = serde_json::from_slice(json).map_err(damaged)?;
        let mut parts: Parts<'_> = json.into_iter().map(|(name, part)| (name, Cow::Borrowed(part))).collect();
        let token_encoding = token_encoding(parts.get("decoder").map(AsRef::as_ref))?;
        let mut rows_of_added = list(&parts, "added_tokens")?;
        let added = rows_of_added.iter().map(|row| Added::read(row, template)).collect::<Result<Vec<_>, _>>()?;
        mark_special(&mut rows_of_added, &added);
        set(&mut parts, "added_tokens", &Value::Array(rows_of_added))?;
        let encoder = encoder(parts)?;
        let Encoder::HuggingFace { tokenizer, .. } = &encoder else { return Err("no tokenizer".to_owned()) };
        let texts = tokenizer.get_vocab(true);
        let count = texts.values().max().map_or(0, |id| *id as usize + 1);
        if count == 0 || count > rows {
            return Err(format!("the tokenizer has {count} tokens, but the model only {rows}"));
        }
        let mut bytes = vec![Vec::new(); count];
        let of = |text: &str| {
            if token_encoding == TokenEncoding::ByteLevel { decode_byte_level(text) } else { decode_piece(text) }
        };
        texts.iter().for_each(|(text, id)| set_bytes(&mut bytes, *id, of(text)));
        added.iter().for_each(|one| set_bytes(&mut bytes, one.special.id, one.special.text.clone().into_bytes()));
        let control = added.iter().filter(|one| one.control).map(|one| one.special.id).collect();
        let special_tokens = added.into_iter().filter(|one| one.is_template_token).map(|one| one.special);
        let special_tokens = SpecialTokens::new(special_tokens.collect())?;
        let config = files.json("tokenizer_config.json")?;
        let id = |key: &str| named_token(&config, key).and_then(|text| tokenizer.token_to_id(text));
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        // transformers, too, does without one that is damaged.
        let generation = files.json("generation_config.json").unwrap_or_default();
        let model = files.json("config.json")?;
        let of_texts = model.get("text_config").map(eos_ids).unwrap_or_default();
        let configured = [eos_ids(&generation), eos_ids(&model), of_texts].concat();
        let all = EOS_TOKENS.iter().filter_map(|text| special_tokens.id(text)).chain(eos).chain(configured);
        let eos_ids: HashSet<u32> = all.filter(|id| (*id as usize) < count).collect();
        let document_bos = bos.filter(|bos| {
            let framed = tokenizer.encode_fast("", true);
            framed.is_ok_and(|framed| framed.get_ids().first() == Some(bos))
        });
        let fim = FimTokens::of_vocabulary(|text| tokenizer.token_to_id(text));
        // TemplateSources write the BOS token themselves; transformers adds none to rendered prompts.
        Ok((
            Self { encoder, special_tokens, prefix: None, document_bos, fim },
            Vocabulary { bytes, control, eos_ids, bos, eos }.with_harmony(),
        ))
    }
}

fn set_bytes(bytes: &mut [Vec<u8>], id: u32, text: Vec<u8>) {
    if let Some(slot) = bytes.get_mut(id as usize) {
        *slot = text;
    }
}

/// Marks the template's tokens as special, so that the crate's tokenizer encodes them as plain text.
fn mark_special(rows: &mut [Value], added: &[Added]) {
    for (row, _) in rows.iter_mut().zip(added).filter(|(_, added)| added.is_template_token) {
        if let Some(row) = row.as_object_mut() {
            row.insert("special".to_owned(), Value::Bool(true));
        }
    }
}

fn encoder(mut parts: Parts<'_>) -> Result<Encoder, String> {
    let tokenizer = Box::new(build(&parts)?);
    let (mut pre_tokenizer, mut normalizer) = (part(&parts, "pre_tokenizer")?, part(&parts, "normalizer")?);
    let mut after_special = None;
    if disable_first_prefix(&mut pre_tokenizer) {
        set(&mut parts, "pre_tokenizer", &pre_tokenizer)?;
        after_special = Some(Box::new(build(&parts)?));
    }
    let mut continuation = None;
    if remove_prepend(&mut normalizer) {
        set(&mut parts, "normalizer", &normalizer)?;
        continuation = Some(Box::new(build(&parts)?));
    }
    Ok(Encoder::HuggingFace { tokenizer, after_special, continuation })
}

fn build(parts: &Parts<'_>) -> Result<Tokenizer, String> {
    let json = serde_json::to_vec(parts).map_err(wrong)?;
    let mut tokenizer = tokenizer_json::parse(&json).map_err(wrong)?;
    tokenizer.with_truncation(None).map_err(wrong)?;
    tokenizer.with_padding(None);
    tokenizer.set_encode_special_tokens(true);
    Ok(tokenizer)
}

/// Changes `prepend_scheme` from `first` to `never`, for text after special tokens. `false`: nothing changed.
fn disable_first_prefix(pre_tokenizer: &mut Value) -> bool {
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

/// Removes `Prepend` normalizers, for text that continues another. `false`: there are none.
fn remove_prepend(normalizer: &mut Value) -> bool {
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
