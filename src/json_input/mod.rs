//! Reads JSON that users send, with errors in plain English.
//!
//! The messages of serde and of its JSON parser name Rust types. Here, every deserializer is wrapped
//! (`wrapped`), so that errors of values are built as [`Fault`]s. Whatever else fails is the syntax, which is
//! then described with its line and column.
//!
//! JSON that is kept or passed on as it is, such as a schema, must not change silently. So a number in it that this server
//! cannot represent is an error. In a field with the type of a float, the nearest one is meant.

mod error;
mod fault;
mod numbers;
mod wrapped;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

pub use self::error::InputError;
use self::fault::Fault;
use self::wrapped::{Slot, Wrapped};
use crate::display::shorten;

/// Reads one JSON value and nothing after it.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, InputError> {
    parse(text, text)
}

/// Like [`from_str`], for a text that is itself kept. Numbers of the value may be rounded.
pub fn from_kept_str<T: DeserializeOwned>(text: &str) -> Result<T, InputError> {
    parse(text, "")
}

/// `exact`: the text, if its numbers must not change, or nothing.
fn parse<T: DeserializeOwned>(text: &str, exact: &str) -> Result<T, InputError> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = read(&mut parser, exact, || InputError::of_syntax(text))?;
    parser.end().map_err(|error| InputError::from(&error))?;
    Ok(value)
}

/// Reads the fields of an object.
pub fn from_object<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, InputError> {
    read(Value::Object(fields), "", InputError::unreadable)
}

/// The text of a file or a body: UTF-8, perhaps with a byte order mark. The error is a predicate without a full stop.
pub fn decode(bytes: &[u8]) -> Result<&str, String> {
    let is_utf16 = matches!(bytes, [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] | [0, _, ..] | [_, 0, ..]);
    match std::str::from_utf8(bytes) {
        _ if is_utf16 => Err("is UTF-16 or UTF-32, not UTF-8".to_owned()),
        Ok(text) => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
        Err(bad) => Err(format!("is not valid UTF-8 from byte {} on", bad.valid_up_to())),
    }
}

/// Reads an optional field of any type whose numbers need not be exact.
pub fn with_nearest_numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let raw = Option::<Box<RawValue>>::deserialize(deserializer)?;
    raw.map(|raw| serde_json::from_str(raw.get())).transpose().map_err(D::Error::custom)
}

/// `text`: what the deserializer reads, if its numbers must not change; empty if they may, or if that is not text.
fn read<'de, T: DeserializeOwned>(
    deserializer: impl Deserializer<'de>,
    text: &str,
    broken: impl FnOnce() -> InputError,
) -> Result<T, InputError> {
    let slot = Slot::new(text);
    serde_path_to_error::deserialize(Wrapped::new(deserializer, &slot)).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        match error.into_inner() {
            Fault::Syntax => broken(),
            Fault::Value(problem) => InputError::Value { path: shorten(&path), problem },
            Fault::Field { name, problem } => {
                let is_named = path == name || path.ends_with(&format!(".{name}"));
                let path = match (path.as_str(), is_named) {
                    ("", _) => name,
                    (_, true) => path,
                    (parent, false) => format!("{parent}.{name}"),
                };
                InputError::Value { path: shorten(&path), problem }
            }
        }
    })
}

#[cfg(test)]
mod tests;
