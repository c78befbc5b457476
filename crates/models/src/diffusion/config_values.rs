//! Readers for values in the `config.json` of a component that only diffusion models use.

use serde_json::Value;

use crate::config_json::ConfigJson;
use crate::error::{Result, reject_config};

/// An integer from 1 to `max`.
pub(super) fn positive(value: &Value, max: usize) -> Option<usize> {
    non_negative(value, max).filter(|integer| *integer > 0)
}

/// An integer from 0 to `max`.
pub(super) fn non_negative(value: &Value, max: usize) -> Option<usize> {
    value.as_u64().and_then(|integer| usize::try_from(integer).ok()).filter(|integer| *integer <= max)
}

/// An integer from 1 to `max` for each of `count` blocks. The config has a list, or one value for all blocks.
pub(super) fn per_block(
    config: &ConfigJson<'_>,
    key: &str,
    count: usize,
    max: usize,
    default: Option<usize>,
) -> Result<Vec<usize>> {
    let reject = |value: &Value| {
        reject_config(format!(
            "{}{key} is {value}; it must be an integer from 1 to {max}, or a list of {count}",
            config.path
        ))
    };
    match (config.get(key), default) {
        (None, Some(default)) => Ok(vec![default; count]),
        (None, None) => reject_config(format!("{}{key} is missing", config.path)),
        (Some(value @ Value::Array(elements)), _) => {
            let integers: Option<Vec<_>> = elements.iter().map(|element| positive(element, max)).collect();
            integers.filter(|integers| integers.len() == count).map_or_else(|| reject(value), Ok)
        }
        (Some(value), _) => positive(value, max).map_or_else(|| reject(value), |integer| Ok(vec![integer; count])),
    }
}

/// Height and width. The config has a list of two, or one value for both.
pub(super) fn size_pair(config: &ConfigJson<'_>, key: &str, max: usize) -> Result<Option<[usize; 2]>> {
    match config.get(key) {
        None => Ok(None),
        Some(Value::Array(_)) => {
            let pair = per_block(config, key, 2, max, None)?;
            Ok(pair.first_chunk().copied())
        }
        Some(_) => Ok(config.integer(key, max)?.map(|size| [size; 2])),
    }
}

/// # Errors
/// The field has a value that is not supported.
pub(super) fn require(config: &ConfigJson<'_>, key: &str, supported: &[Value]) -> Result<()> {
    match config.get(key) {
        Some(value) if !supported.contains(value) => {
            let values: Vec<String> = supported.iter().map(Value::to_string).collect();
            let values = if values.is_empty() { "null".to_owned() } else { values.join(" or ") };
            reject_config(format!("{}{key} is {value}; only {values} is supported", config.path))
        }
        _ => Ok(()),
    }
}

/// A list of strings.
pub(super) fn string_list<'a>(config: &ConfigJson<'a>, key: &str) -> Result<Option<Vec<&'a str>>> {
    config.list(key, Value::as_str)
}
