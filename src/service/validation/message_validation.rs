//! Validation of messages: OpenAI's roles, content parts and tool calls. Errors name the path, such as
//! `messages[2].content[0].type`.

use serde_json::{Map, Value};

use super::json_fields::{invalid_field, known};
use crate::display::shorten;
use crate::error::Result;
use crate::json_input;

/// The handling of unknown fields of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFields {
    Reject,
    Ignore,
}

/// Max messages of a request, or of a part of a training example.
pub const MAX_MESSAGES: usize = 4096;
const ROLES: [&str; 5] = ["developer", "system", "user", "assistant", "tool"];
const FIELDS: [&str; 8] =
    ["role", "content", "name", "tool_calls", "tool_call_id", "refusal", "reasoning_content", "reasoning"];
/// Response fields that SDKs send back with history; they must be empty.
const EMPTY_IN_HISTORY: [&str; 3] = ["annotations", "audio", "function_call"];

/// Parses and validates a message. `field` is its path in the request.
pub fn parse(field: &str, json: &str, unknown: UnknownFields) -> Result<Value> {
    let value: Value = json_input::from_kept_str(json).map_err(|error| error.in_field(field))?;
    check(field, &value, unknown)?;
    Ok(value)
}

/// Validates a message.
pub fn check(field: &str, message: &Value, unknown: UnknownFields) -> Result<()> {
    let Some(message) = message.as_object() else {
        return invalid_field(field, "must be an object with a role and a content");
    };
    if unknown == UnknownFields::Reject {
        known_fields(field, message)?;
    }
    let role = role(field, message)?;
    tool_calls(field, message, role)?;
    for name in ["name", "reasoning_content", "reasoning", "refusal"] {
        optional_text(field, message, name)?;
    }
    tool_call_id(field, message, role)?;
    match message.get("content") {
        None | Some(Value::Null) if role == "assistant" => Ok(()),
        content => check_content(&format!("{field}.content"), content.unwrap_or(&Value::Null)),
    }
}

fn known_fields(field: &str, message: &Map<String, Value>) -> Result<()> {
    let idle = |name: &str, value: &Value| {
        EMPTY_IN_HISTORY.contains(&name) && (value.is_null() || value.as_array().is_some_and(Vec::is_empty))
    };
    known(field, message, &FIELDS, idle)
}

fn role<'a>(field: &str, message: &'a Map<String, Value>) -> Result<&'a str> {
    let field = format!("{field}.role");
    match message.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => Ok(role),
        None => invalid_field(&field, &format!("is missing. It must be one of {}", ROLES.join(", "))),
        Some(other) => {
            let other = shorten(&other.to_string());
            invalid_field(&field, &format!("is {other}. It must be one of {}", ROLES.join(", ")))
        }
    }
}

fn check_content(field: &str, content: &Value) -> Result<()> {
    match content {
        Value::String(_) => Ok(()),
        Value::Array(parts) if parts.is_empty() => {
            invalid_field(field, "is an empty array. Send a text, or at least one part")
        }
        Value::Array(parts) => {
            parts.iter().enumerate().try_for_each(|(at, part)| check_part(&format!("{field}[{at}]"), part))
        }
        Value::Null => invalid_field(field, "is missing. Send the text of the message, or an array of content parts"),
        _ => invalid_field(field, "must be a string or an array of content parts"),
    }
}

fn check_part(field: &str, part: &Value) -> Result<()> {
    let Some(kind) = part.get("type").and_then(Value::as_str) else {
        return invalid_field(&format!("{field}.type"), "is missing. A content part is an object with a type");
    };
    let text = |path: &str| match part.pointer(path) {
        Some(Value::String(_)) => Ok(()),
        _ => invalid_field(&format!("{field}{}", path.replace('/', ".")), "must be a string"),
    };
    match kind {
        "text" => text("/text"),
        "refusal" => text("/refusal"),
        "image_url" => text("/image_url/url"),
        "input_audio" => text("/input_audio/data").and_then(|()| text("/input_audio/format")),
        "file" if part.get("file").is_some_and(Value::is_object) => Ok(()),
        "file" => invalid_field(&format!("{field}.file"), "must be an object"),
        _ => {
            let kind = shorten(kind);
            let text = format!("is '{kind}'. Parts are of type text, image_url, input_audio, file or refusal");
            invalid_field(&format!("{field}.type"), &text)
        }
    }
}

fn tool_calls(field: &str, message: &Map<String, Value>, role: &str) -> Result<()> {
    let field = format!("{field}.tool_calls");
    match message.get("tool_calls") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(calls)) if calls.is_empty() => Ok(()),
        Some(Value::Array(_)) if role != "assistant" => {
            invalid_field(&field, "belongs to messages of the role assistant only")
        }
        Some(Value::Array(calls)) => {
            calls.iter().enumerate().try_for_each(|(at, call)| check_call(&format!("{field}[{at}]"), call))
        }
        Some(_) => invalid_field(&field, "must be an array of tool calls"),
    }
}

fn check_call(field: &str, call: &Value) -> Result<()> {
    if call.get("type").and_then(Value::as_str) != Some("function") {
        return invalid_field(&format!("{field}.type"), "must be 'function'");
    }
    ["/id", "/function/name", "/function/arguments"].iter().try_for_each(|path| match call.pointer(path) {
        Some(Value::String(text)) if !text.is_empty() || path.ends_with("arguments") => Ok(()),
        _ => invalid_field(&format!("{field}{}", path.replace('/', ".")), "must be a string that is not empty"),
    })
}

fn tool_call_id(field: &str, message: &Map<String, Value>, role: &str) -> Result<()> {
    let field = format!("{field}.tool_call_id");
    match (role, message.get("tool_call_id")) {
        ("tool", Some(Value::String(id))) if !id.is_empty() => Ok(()),
        ("tool", _) => {
            invalid_field(&field, "must be a string that is not empty: the ID of the call that this message answers")
        }
        (_, None | Some(Value::Null)) => Ok(()),
        _ => invalid_field(&field, "belongs to messages of the role tool only"),
    }
}

/// Returns whether the field has a string.
fn optional_text(field: &str, message: &Map<String, Value>, name: &str) -> Result<()> {
    match message.get(name) {
        None | Some(Value::Null | Value::String(_)) => Ok(()),
        Some(_) => invalid_field(&format!("{field}.{name}"), "must be a string"),
    }
}

/// Removes white space between JSON tokens; numbers and strings stay as written. `json` must be valid.
pub fn compact_json(json: &str) -> String {
    let (mut out, mut quoted, mut escaped) = (String::with_capacity(json.len()), false, false);
    for letter in json.chars() {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = quoted,
            '"' => quoted = !quoted,
            ' ' | '\t' | '\n' | '\r' if !quoted => continue,
            _ => {}
        }
        out.push(letter);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::compact_json;

    #[test]
    fn only_white_space_between_tokens_is_removed() {
        let spaced = "{ \"a b\\\" c\" :\n[1.50 , 1e400,\t12345678901234567890123 ] , \"d\\\\\" : \" \" }";
        assert_eq!(compact_json(spaced), "{\"a b\\\" c\":[1.50,1e400,12345678901234567890123],\"d\\\\\":\" \"}");
    }
}
