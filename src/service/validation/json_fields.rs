//! Checks of manually parsed JSON, so that errors can name the field's path.

use serde_json::{Map, Value};

use crate::display::shorten;
use crate::error::{Error, Result};
use crate::spelling;

const MAX_NAME_BYTES: usize = 128;

/// The error for a field: its message is the field's name followed by `what`.
pub fn invalid_field<T>(field: &str, what: &str) -> Result<T> {
    Err(Error::invalid(field, format!("'{field}' {what}.")))
}

/// Refuses unknown fields of an object. Unknown fields that are `idle` are accepted.
pub fn known(
    field: &str,
    object: &Map<String, Value>,
    names: &[&str],
    idle: impl Fn(&str, &Value) -> bool,
) -> Result<()> {
    match object.iter().find(|(name, value)| !names.contains(&name.as_str()) && !idle(name, value)) {
        None => Ok(()),
        Some((name, _)) => {
            let field = format!("{field}.{}", shorten(name));
            let message = format!("'{field}' {}", spelling::unknown_field(name, names));
            Err(Error::invalid(field, message))
        }
    }
}

pub fn object<'a>(field: &str, value: Option<&'a Value>) -> Result<&'a Map<String, Value>> {
    match value.and_then(Value::as_object) {
        Some(object) => Ok(object),
        None => invalid_field(field, "must be an object"),
    }
}

/// A field that may be absent or null; `what` says what it must be otherwise.
pub fn optional(field: &str, value: Option<&Value>, what: &str, fits: impl Fn(&Value) -> bool) -> Result<()> {
    match value {
        Some(value) if !value.is_null() && !fits(value) => invalid_field(field, &format!("must be {what}")),
        _ => Ok(()),
    }
}

/// The name of a function or a schema. Anthropic's API takes longer ones than OpenAI's.
pub fn name<'a>(field: &str, name: Option<&'a Value>) -> Result<&'a str> {
    let plain = |name: &&str| {
        (1..=MAX_NAME_BYTES).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    match name.and_then(Value::as_str).filter(plain) {
        Some(name) => Ok(name),
        None => invalid_field(field, &format!("must be 1 to {MAX_NAME_BYTES} letters, digits, underscores or hyphens")),
    }
}
