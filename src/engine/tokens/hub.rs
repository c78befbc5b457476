//! The vocabulary of a Hugging Face folder: `tokenizer.json`, which the `tokenizers` crate reads,
//! and what the files beside it say about single tokens.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value;
use tokenizers::Tokenizer;

use super::letters::{letters, piece};
use super::{ENDS, Encoder, Tokens, privileged};
use crate::engine::specials::{Special, Specials};
use crate::models::safetensors::read_json;

/// A folder's files about tokens, read.
pub struct Hub {
    tokenizer: Value,
    config: Value,
    generation: Value,
    tokenizer_config: Value,
}

/// A file that the folder may do without.
fn optional(path: &Path) -> Result<Value, String> {
    if path.exists() { read_json(path).map_err(|error| error.to_string()) } else { Ok(Value::Null) }
}

impl Hub {
    pub fn read(folder: &Path, config: &Value) -> Result<Self, String> {
        let tokenizer = folder.join("tokenizer.json");
        if !tokenizer.exists() {
            return Err("the folder has no tokenizer.json".to_owned());
        }
        let hub = Self {
            tokenizer: read_json(&tokenizer).map_err(|error| error.to_string())?,
            config: config.clone(),
            generation: optional(&folder.join("generation_config.json"))?,
            tokenizer_config: optional(&folder.join("tokenizer_config.json"))?,
        };
        spelling(&hub.tokenizer)?;
        Ok(hub)
    }

    /// A token that `tokenizer_config.json` names, as a text or as an object with one.
    fn named(&self, key: &str) -> Option<&str> {
        let token = self.tokenizer_config.get(key)?;
        token.as_str().or_else(|| token.get("content")?.as_str())
    }

    /// The ids that the model ends its answers with.
    fn ends(&self) -> Vec<u32> {
        let number = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = |file: &Value| match file.get("eos_token_id") {
            Some(Value::Array(all)) => all.iter().filter_map(number).collect(),
            Some(one) => number(one).into_iter().collect(),
            None => Vec::new(),
        };
        [ids(&self.generation), ids(&self.config)].concat()
    }
}

/// How a vocabulary's texts stand for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    Letters,
    Pieces,
}

/// Told by the decoder, of which there is no other way to get single tokens' bytes.
fn spelling(tokenizer: &Value) -> Result<Spelling, String> {
    let decoder = tokenizer.get("decoder").filter(|decoder| !decoder.is_null());
    let decoder = decoder.ok_or("tokenizer.json has no decoder, which is not supported")?;
    let steps = match decoder.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.iter().collect(),
        None => vec![decoder],
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
    special: Special,
    privileged: bool,
    /// Marked as special.
    control: bool,
}

fn added(tokenizer: &Value, template: &str) -> Result<Vec<Added>, String> {
    let rows = tokenizer.get("added_tokens").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    rows.iter().map(|row| Added::read(row, template)).collect()
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
        let special = Special { text: text.to_owned(), id, strips_left: flag("lstrip"), strips_right: flag("rstrip") };
        let control = flag("special");
        Ok(Self { privileged: control || privileged(text, template), control, special })
    }
}

impl Tokens {
    /// `rows` is the number of embeddings: no token may lie beyond. `template` tells which tokens
    /// are its own.
    pub fn of_hub(hub: Hub, rows: usize, template: &str) -> Result<Self, String> {
        let spelling = spelling(&hub.tokenizer)?;
        let added = added(&hub.tokenizer, template)?;
        let encoder = encoder(&hub.tokenizer, &added)?;
        let Encoder::Merges { tokenizer, .. } = &encoder else { return Err("no tokenizer".to_owned()) };
        let vocabulary: BTreeMap<u32, String> =
            tokenizer.get_vocab(true).into_iter().map(|(text, id)| (id, text)).collect();
        let count = vocabulary.keys().next_back().map_or(0, |id| *id as usize + 1);
        if count == 0 || count > rows {
            return Err(format!("the tokenizer has {count} tokens, the model {rows}"));
        }
        let mut bytes = vec![Vec::new(); count];
        let of = |text: &str| if spelling == Spelling::Letters { letters(text) } else { piece(text) };
        vocabulary.iter().for_each(|(id, text)| keep(&mut bytes, *id, of(text)));
        added.iter().for_each(|one| keep(&mut bytes, one.special.id, one.special.text.clone().into_bytes()));
        let control = added.iter().filter(|one| one.control).map(|one| one.special.id).collect();
        let specials = added.into_iter().filter(|one| one.privileged).map(|one| one.special);
        let specials = Specials::new(specials.collect())?;
        let id = |key: &str| hub.named(key).and_then(|text| tokenizer.token_to_id(text));
        let (bos, eos) = (id("bos_token"), id("eos_token"));
        let ends: HashSet<u32> =
            ENDS.iter().filter_map(|text| specials.id(text)).chain(eos).chain(hub.ends()).collect();
        // Templates write the first token themselves: transformers adds none to what they render.
        Ok(Self { encoder, specials, bytes, control, ends, bos, eos, add_bos: false })
    }
}

fn keep(bytes: &mut [Vec<u8>], id: u32, text: Vec<u8>) {
    if let Some(slot) = bytes.get_mut(id as usize) {
        *slot = text;
    }
}

/// The crate's tokenizer, to which the template's tokens are plain text.
fn encoder(json: &Value, added: &[Added]) -> Result<Encoder, String> {
    let mut json = json.clone();
    if let Some(rows) = json.get_mut("added_tokens").and_then(Value::as_array_mut) {
        for (row, _) in rows.iter_mut().zip(added).filter(|(_, added)| added.privileged) {
            if let Some(row) = row.as_object_mut() {
                row.insert("special".to_owned(), Value::Bool(true));
            }
        }
    }
    let first = build(json.clone())?;
    let inside = never_first(&mut json).then(|| build(json.clone())).transpose()?;
    let continued = never_prepended(&mut json).then(|| build(json)).transpose()?;
    Ok(Encoder::Merges { tokenizer: Box::new(first), inside: inside.map(Box::new), continued: continued.map(Box::new) })
}

fn build(json: Value) -> Result<Tokenizer, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("tokenizer.json cannot be used: {error}");
    let mut tokenizer: Tokenizer = serde_json::from_value(json).map_err(|error| wrong(&error))?;
    tokenizer.with_truncation(None).map_err(|error| wrong(&error))?;
    tokenizer.with_padding(None);
    tokenizer.set_encode_special_tokens(true);
    Ok(tokenizer)
}

/// Turns "a space before the text's very first word" into "no space": for text that follows special
/// tokens. `false`: the tokenizer makes no such difference.
fn never_first(json: &mut Value) -> bool {
    let Some(cut) = json.get_mut("pre_tokenizer") else { return false };
    let steps = match cut.get_mut("pretokenizers") {
        Some(Value::Array(steps)) => steps.iter_mut().collect(),
        _ => vec![cut],
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
fn never_prepended(json: &mut Value) -> bool {
    let is_prepend = |step: &Value| step.get("type").and_then(Value::as_str) == Some("Prepend");
    let Some(normalizer) = json.get_mut("normalizer") else { return false };
    if is_prepend(normalizer) {
        *normalizer = Value::Null;
        return true;
    }
    let Some(steps) = normalizer.get_mut("normalizers").and_then(Value::as_array_mut) else { return false };
    let before = steps.len();
    steps.retain(|step| !is_prepend(step));
    steps.len() < before
}
