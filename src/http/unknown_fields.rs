//! Fields of a request that this server does not know.

use serde_json::{Map, Value};

use crate::display::shorten;
use crate::error::{Error, Result};

/// Refuses fields that a call neither knows nor ignores.
pub fn refuse_unknown(rest: &Map<String, Value>, ignored: &[&str]) -> Result<()> {
    let foreign = rest.iter().find(|(name, value)| !value.is_null() && !ignored.contains(&name.as_str()));
    foreign.map_or(Ok(()), |(name, _)| Err(unsupported(name)))
}

/// The error for a field that this server does not support.
pub fn unsupported(name: &str) -> Error {
    let name = shorten(name);
    let message = match name.as_str() {
        "functions" => "'functions' is the older form of 'tools' and is not supported by this server. Send 'tools'.".to_owned(),
        "function_call" => {
            "'function_call' is the older form of 'tool_choice' and is not supported by this server. Send 'tool_choice'.".to_owned()
        }
        _ => format!("'{name}' is not supported by this server. Leave it out."),
    };
    Error::invalid(name, message)
}
