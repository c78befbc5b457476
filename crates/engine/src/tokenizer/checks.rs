//! Checks parts of tokenizers before the `tokenizers` crate uses them: it panics at some merges of byte-pair encoding that make no
//! token, names neither the entry nor its parts at others, and panics at some templates of special tokens.
//!
//! Catching the panic would hide the cause; the checks name the entry.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;

use outpost_common::display::shorten;

/// Checks that the parts of every merge are tokens, and also what they make. `field` names the list in errors. `prefix`: the bytes
/// at the beginning of a second part that the merge leaves out.
pub fn check_merges<'m>(
    field: &str,
    merges: impl IntoIterator<Item = (&'m str, &'m str)>,
    prefix: usize,
    is_token: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let mut made = String::new();
    for (index, (left, right)) in merges.into_iter().enumerate() {
        made.clear();
        made.push_str(left);
        let rest = right.get(prefix..);
        made.push_str(rest.unwrap_or_default());
        let problem = match [left, right, &made].into_iter().find(|text| !is_token(text)) {
            Some(text) => format!("{} is not in the vocabulary", quoted(text)),
            None if rest.is_none() => {
                "the second part is shorter than the model's continuing_subword_prefix".to_owned()
            }
            None => continue,
        };
        let (left, right) = (quoted(left), quoted(right));
        return Err(format!("{field}: entry {} merges {left} and {right}, but {problem}", index + 1));
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    format!("'{}'", shorten(text))
}

/// The parts of a BPE model in `tokenizer.json`.
#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow, default)]
    vocab: Option<&'a RawValue>,
    #[serde(borrow, default)]
    merges: Option<&'a RawValue>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
}

/// Both ways to write merges.
#[derive(Deserialize)]
#[serde(untagged)]
enum Merges {
    Pairs(Vec<(String, String)>),
    Texts(Vec<String>),
}

/// Checks the merges and the templates in the content of a `tokenizer.json`. Other faults are left to the crate.
pub fn check_tokenizer_json(json: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct Whole<'a> {
        #[serde(borrow, default)]
        model: Option<&'a RawValue>,
        #[serde(default)]
        post_processor: Value,
    }
    let Ok(Whole { model, post_processor }) = serde_json::from_slice(json) else { return Ok(()) };
    model.map_or(Ok(()), |model| check_model(model.get()))?;
    check_post_processor(&post_processor)
}

/// Checks the merges in the `model` of a `tokenizer.json`.
fn check_model(model: &str) -> Result<(), String> {
    let Ok(Model { vocab: Some(vocab), merges: Some(merges), continuing_subword_prefix }) = serde_json::from_str(model)
    else {
        return Ok(());
    };
    let vocabulary = serde_json::from_str::<HashMap<String, IgnoredAny>>(vocab.get());
    let (Ok(vocabulary), Ok(merges)) = (vocabulary, serde_json::from_str(merges.get())) else { return Ok(()) };
    let pairs: Vec<(&str, &str)> = match &merges {
        Merges::Pairs(pairs) => pairs.iter().map(|(left, right)| (left.as_str(), right.as_str())).collect(),
        Merges::Texts(texts) => {
            let texts = texts.iter().filter(|text| !text.starts_with("#version"));
            texts.filter_map(|text| text.split_once(' ')).collect()
        }
    };
    let prefix = continuing_subword_prefix.map_or(0, |prefix| prefix.len());
    check_merges("tokenizer.json: model.merges", pairs, prefix, |text| vocabulary.contains_key(text))
}

/// Checks that a template knows its special tokens, and that the template of one text has no second one.
fn check_post_processor(processor: &Value) -> Result<(), String> {
    if let Some(steps) = processor.get("processors").and_then(Value::as_array) {
        return steps.iter().try_for_each(check_post_processor);
    }
    let known = processor.get("special_tokens").and_then(Value::as_object);
    for name in ["single", "pair"] {
        let field = format!("tokenizer.json: post_processor.{name}");
        for piece in processor.get(name).and_then(Value::as_array).into_iter().flatten() {
            let token = piece.pointer("/SpecialToken/id").and_then(Value::as_str);
            if let Some(token) = token.filter(|token| known.is_none_or(|known| !known.contains_key(*token))) {
                return Err(format!("{field} has {}, which is not in special_tokens", quoted(token)));
            }
            if name == "single" && piece.pointer("/Sequence/id").and_then(Value::as_str) == Some("B") {
                return Err(format!("{field} has a second text"));
            }
        }
    }
    Ok(())
}
