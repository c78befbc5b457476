//! Messages as clients send and store them become the plain turns that the engine takes.

use serde_json::Value;

use crate::engine::Message;
use crate::error::{Error, Result};
use crate::service::transcript::{self, Unknown};

const MOST_MESSAGES: usize = 4096;

/// The turns of a request, out of the JSON of each message. Fields that no message has are refused
/// where the messages are to be stored.
pub fn read(messages: &[String], stored: bool) -> Result<Vec<Message>> {
    let unknown = if stored { Unknown::Refused } else { Unknown::Ignored };
    let one = |(at, json): (usize, &String)| {
        let field = format!("messages[{at}]");
        turn(&field, &transcript::read(&field, json, unknown)?)
    };
    match messages.len() {
        0 => Err(Error::invalid("messages", "messages is empty. Send at least one message.")),
        1..=MOST_MESSAGES => messages.iter().enumerate().map(one).collect(),
        count => {
            let message = format!("messages has {count} entries; at most {MOST_MESSAGES} are allowed.");
            Err(Error::invalid("messages", message))
        }
    }
}

/// One turn; `message` has the shape of one. Errors are about what this server cannot take yet.
pub(super) fn turn(field: &str, message: &Value) -> Result<Message> {
    if message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty()) {
        let field = format!("{field}.tool_calls");
        let text = format!("'{field}': tool calls are not supported by this server. Send the turn as text.");
        return Err(Error::invalid(field, text));
    }
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => join(field, parts)?,
        _ => {
            let field = format!("{field}.content");
            let text = format!("'{field}' has no text. This server takes messages of text.");
            return Err(Error::invalid(field, text));
        }
    };
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    let role = match text("role") {
        Some("developer") => "system",
        Some(role) => role,
        None => "user",
    };
    Ok(Message { role: role.to_owned(), content, name: text("name").map(str::to_owned) })
}

fn join(field: &str, parts: &[Value]) -> Result<String> {
    let text = |(at, part): (usize, &Value)| match part.get("text").and_then(Value::as_str) {
        Some(text) => Ok(text.to_owned()),
        None => {
            let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
            let message =
                format!("'{field}.content[{at}]' is of type '{kind}'. This server takes parts of type 'text'.");
            Err(Error::invalid(format!("{field}.content[{at}].type"), message))
        }
    };
    parts.iter().enumerate().map(text).collect()
}
