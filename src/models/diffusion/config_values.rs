//! Readers for values in a component's `config.json`, beyond those that decoders need.

use serde_json::Value;

use crate::models::config_json::ConfigJson;
use crate::models::error::{Result, reject_config};

/// An integer from 1 to `most`.
pub(super) fn positive(value: &Value, most: usize) -> Option<usize> {
    non_negative(value, most).filter(|number| *number > 0)
}

/// An integer from 0 to `most`.
pub(super) fn non_negative(value: &Value, most: usize) -> Option<usize> {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|number| *number <= most)
}

/// An integer for each of `count` blocks, from a list or from one value for all.
pub(super) fn per_block(
    config: &ConfigJson<'_>,
    key: &str,
    count: usize,
    most: usize,
    usual: Option<usize>,
) -> Result<Vec<usize>> {
    let wrong = |value: &Value| {
        reject_config(format!(
            "{}{key} is {value}, it must be a number from 1 to {most}, or {count} of them",
            config.path
        ))
    };
    match (config.get(key), usual) {
        (None, Some(usual)) => Ok(vec![usual; count]),
        (None, None) => reject_config(format!("{}{key} is missing", config.path)),
        (Some(value @ Value::Array(all)), _) => {
            let numbers: Option<Vec<_>> = all.iter().map(|one| positive(one, most)).collect();
            numbers.filter(|numbers| numbers.len() == count).map_or_else(|| wrong(value), Ok)
        }
        (Some(value), _) => positive(value, most).map_or_else(|| wrong(value), |number| Ok(vec![number; count])),
    }
}

/// Height and width, from two values or one for both.
pub(super) fn size_pair(config: &ConfigJson<'_>, key: &str, most: usize) -> Result<Option<[usize; 2]>> {
    match config.get(key) {
        None => Ok(None),
        Some(Value::Array(_)) => {
            let pair = per_block(config, key, 2, most, None)?;
            Ok(pair.first_chunk().copied())
        }
        Some(_) => Ok(config.integer(key, most)?.map(|size| [size; 2])),
    }
}

/// Refuses a value that is not supported.
pub(super) fn require(config: &ConfigJson<'_>, key: &str, supported: &[Value]) -> Result<()> {
    match config.get(key) {
        Some(value) if !supported.contains(value) => {
            let all: Vec<String> = supported.iter().map(Value::to_string).collect();
            let or = if all.is_empty() { "null".to_owned() } else { all.join(" or ") };
            reject_config(format!("{}{key} is {value}, only {or} is supported", config.path))
        }
        _ => Ok(()),
    }
}

/// A list of strings.
pub(super) fn string_list<'a>(config: &ConfigJson<'a>, key: &str) -> Result<Option<Vec<&'a str>>> {
    config.list(key, Value::as_str)
}
