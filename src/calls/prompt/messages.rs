//! Converts messages as clients send and store them to the engine's messages.

use std::collections::HashSet;

use serde_json::Value;

use crate::calls::text::dialect::Dialect;
use crate::content::Message;
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::service::validation::message_validation::{self, MAX_MESSAGES, UnknownFields};

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

/// Converts a validated message to one of a prompt.
pub(in crate::calls) fn prompt_message(message: &Value) -> Message {
    let mut message = Message::from_json(message);
    if message.role == "developer" {
        "system".clone_into(&mut message.role);
    }
    message
}

/// Like [`prompt_message`]. Fails for content that this server does not support.
pub(in crate::calls) fn to_message(field: &str, message: &Value) -> Result<Message> {
    let message = prompt_message(message);
    let parts = message.content.parts().iter().enumerate();
    match parts.filter(|(_, part)| part.text().is_none()).map(|(index, part)| (index, part.kind())).next() {
        None => Ok(message),
        Some((index, kind)) => {
            let text = format!(
                "'{field}.content[{index}]' is of type '{kind}'. This server accepts only parts of type 'text'."
            );
            Err(Error::invalid(format!("{field}.content[{index}].type"), text))
        }
    }
}

/// Checks that each tool result answers an earlier call, in the conversation or in the request.
pub(in crate::calls) fn check_tool_results(history: &[Message], own: &[Message], dialect: &Dialect) -> Result<()> {
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
        // The position of a message is not that of an item.
        Some((_, id)) if dialect.joins_messages => {
            let (id, field) = (shorten(&id), dialect.prompt);
            let text = format!(
                "'{field}' has a result for the call '{id}', but neither the conversation nor an item before it has this call. Send the call before its result."
            );
            Err(Error::invalid(field, text))
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
