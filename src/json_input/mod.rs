//! Reads JSON that users send, with errors in plain English.
//!
//! The messages of serde and of its JSON parser name Rust types. Here, every deserializer is wrapped
//! (`wrapped`), so that errors of values are built as [`Fault`]s. Whatever else fails is the syntax, which is
//! then described with its line and column.

mod error;
mod fault;
mod wrapped;

use serde::de::{DeserializeOwned, Deserializer};
use serde_json::{Map, Value};

pub use self::error::InputError;
use self::fault::Fault;
use self::wrapped::{Slot, Wrapped};
use crate::display::shorten;

/// Reads one JSON value and nothing after it.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, InputError> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = read(&mut parser, || InputError::of_syntax(text))?;
    parser.end().map_err(|error| InputError::from(&error))?;
    Ok(value)
}

/// Reads the fields of an object.
pub fn from_object<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, InputError> {
    read(Value::Object(fields), InputError::unreadable)
}

fn read<'de, T: DeserializeOwned>(
    deserializer: impl Deserializer<'de>,
    broken: impl FnOnce() -> InputError,
) -> Result<T, InputError> {
    let slot = Slot::default();
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
