//! Converts messages as clients send and store them to the engine's messages.

use std::collections::HashSet;

use serde_json::Value;

use super::dialect::Dialect;
use crate::display::shorten;
use crate::engine::{Message, ToolCall};
use crate::error::{Error, Result};
use crate::service::message_validation::{self, MAX_MESSAGES, UnknownFields};

/// Parses the JSON of each message of a request. Unknown fields are refused if the messages are to be stored.
pub fn parse(messages: &[String], stored: bool) -> Result<Vec<Message>> {
    let unknown = if stored { UnknownFields::Reject } else { UnknownFields::Ignore };
    let parse_message = |(index, json): (usize, &String)| {
        let field = format!("messages[{index}]");
        to_message(&field, &message_validation::parse(&field, json, unknown)?)
    };
    match messages.len() {
        0 => Err(Error::invalid("messages", "'messages' is empty. Send at least one message.")),
        1..=MAX_MESSAGES => messages.iter().enumerate().map(parse_message).collect(),
        count => {
            let message = format!("messages has {count} entries; at most {MAX_MESSAGES} are allowed.");
            Err(Error::invalid("messages", message))
        }
    }
}

/// Converts a validated message. Fails for content that this server does not support.
pub(super) fn to_message(field: &str, message: &Value) -> Result<Message> {
    let tool_calls = calls(message);
    let text = |name: &str| message.get(name).and_then(Value::as_str);
    let role = match text("role") {
        Some("developer") => "system",
        Some(role) => role,
        None => "user",
    };
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => join(field, parts)?,
        // What the assistant said instead, if anything.
        None | Some(Value::Null) if role == "assistant" => text("refusal").unwrap_or_default().to_owned(),
        _ => {
            let field = format!("{field}.content");
            let text = format!("'{field}' has no text. This server accepts only messages with text.");
            return Err(Error::invalid(field, text));
        }
    };
    let (name, tool_call_id) = (text("name").map(str::to_owned), text("tool_call_id").map(str::to_owned));
    let reasoning = text("reasoning_content").or_else(|| text("reasoning")).unwrap_or_default().to_owned();
    Ok(Message { role: role.to_owned(), content, reasoning, name, tool_calls, tool_call_id })
}

fn calls(message: &Value) -> Vec<ToolCall> {
    let call = |call: &Value| {
        let text = |path: &str| call.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        ToolCall { id: text("/id"), name: text("/function/name"), arguments: text("/function/arguments") }
    };
    message.get("tool_calls").and_then(Value::as_array).into_iter().flatten().map(call).collect()
}

/// Checks that each tool result answers an earlier call, in the conversation or in the request.
pub(super) fn check_tool_results(history: &[Message], own: &[Message], dialect: Dialect) -> Result<()> {
    let mut ids = HashSet::new();
    let mut orphan = |message: &Message| {
        ids.extend(message.tool_calls.iter().map(|call| call.id.clone()));
        message.tool_call_id.clone().filter(|id| !ids.contains(id))
    };
    if let Some(id) = history.iter().find_map(&mut orphan) {
        let text = format!("The conversation has a result for the call '{id}', but no such call before it.");
        return Err(Error::invalid("conversation_id", text));
    }
    match own.iter().enumerate().find_map(|(index, message)| Some((index, orphan(message)?))) {
        None => Ok(()),
        Some((_, id)) if dialect == Dialect::Responses => {
            let id = shorten(&id);
            let text = format!(
                "'input' has a result for the call '{id}', but neither the conversation nor an item before it has this call. Send the call before its result."
            );
            Err(Error::invalid("input", text))
        }
        Some((index, id)) => {
            let id = shorten(&id);
            let field = format!("messages[{index}].tool_call_id");
            let text = format!(
                "'{field}' is '{id}', but no message before it has a call of this id. Send the assistant's message with its tool_calls first."
            );
            Err(Error::invalid(field, text))
        }
    }
}

fn join(field: &str, parts: &[Value]) -> Result<String> {
    let text =
        |(index, part): (usize, &Value)| match part.get("text").or_else(|| part.get("refusal")).and_then(Value::as_str)
        {
            Some(text) => Ok(text.to_owned()),
            None => {
                let kind = part.get("type").and_then(Value::as_str).unwrap_or_default();
                let message = format!(
                    "'{field}.content[{index}]' is of type '{kind}'. This server accepts only parts of type 'text'."
                );
                Err(Error::invalid(format!("{field}.content[{index}].type"), message))
            }
        };
    parts.iter().enumerate().map(text).collect()
}
