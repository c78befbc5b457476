//! The messages of a chat request: OpenAI's roles and content parts become plain text turns.

use serde::Deserialize;
use serde_json::Value;

use crate::engine::Message;
use crate::error::{Error, Result};
use crate::http::input::shorten;

const MOST_MESSAGES: usize = 4096;

#[derive(Deserialize, utoipa::ToSchema)]
pub struct ChatMessage {
    role: Role,
    /// Text, or an array of text parts.
    content: Option<Content>,
    /// Who speaks, where several share a role.
    name: Option<String>,
    #[schema(value_type = Option<Vec<Object>>)]
    tool_calls: Option<Value>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Role {
    Developer,
    System,
    User,
    Assistant,
    Tool,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "expected a string or an array of content parts")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize, utoipa::ToSchema)]
struct Part {
    r#type: String,
    text: Option<String>,
}

/// The turns as the model's template takes them.
pub fn check(messages: Vec<ChatMessage>) -> Result<Vec<Message>> {
    match messages.len() {
        0 => Err(Error::invalid("messages", "messages is empty. Send at least one message.")),
        1..=MOST_MESSAGES => messages.into_iter().enumerate().map(|(at, message)| turn(at, message)).collect(),
        count => {
            let message = format!("messages has {count} entries; at most {MOST_MESSAGES} are allowed.");
            Err(Error::invalid("messages", message))
        }
    }
}

fn turn(at: usize, message: ChatMessage) -> Result<Message> {
    if message
        .tool_calls
        .as_ref()
        .is_some_and(|calls| !calls.is_null() && calls.as_array().is_none_or(|a| !a.is_empty()))
    {
        let field = format!("messages[{at}].tool_calls");
        let text = format!("'{field}': tool calls are not supported by this server. Send the turn as text.");
        return Err(Error::invalid(field, text));
    }
    let role = match message.role {
        Role::Developer | Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let content = match message.content {
        Some(Content::Text(text)) => text,
        Some(Content::Parts(parts)) => join(at, parts)?,
        None => {
            let field = format!("messages[{at}].content");
            let text = format!("'{field}' is missing. Send the text of the message.");
            return Err(Error::invalid(field, text));
        }
    };
    Ok(Message { role: role.to_owned(), content, name: message.name })
}

fn join(at: usize, parts: Vec<Part>) -> Result<String> {
    let text = |(place, part): (usize, Part)| {
        let field = format!("messages[{at}].content[{place}]");
        match (part.r#type.as_str(), part.text) {
            ("text", Some(text)) => Ok(text),
            ("text", None) => Err(Error::invalid(format!("{field}.text"), format!("'{field}.text' is missing."))),
            (kind, _) => {
                let kind = shorten(kind);
                let message = format!("'{field}' is of type '{kind}'. This server takes parts of type 'text'.");
                Err(Error::invalid(format!("{field}.type"), message))
            }
        }
    };
    parts.into_iter().enumerate().map(text).collect()
}
