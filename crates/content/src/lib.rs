//! The messages of conversations. Every API decodes its requests to them. Stored conversations, training data, prompts and
//! upstream models use them, too.
//!
//! The JSON form of a message is that of OpenAI's chat completions: [`Message::from_json`] and [`Message::to_json`] are its
//! only codec.

mod json;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub role: String,
    /// Empty if an assistant message consists of tool calls only.
    pub content: Content,
    /// The reasoning of an assistant message; empty if there is none.
    pub reasoning: String,
    pub name: Option<String>,
    /// The tool calls of an assistant message.
    pub tool_calls: Vec<ToolCall>,
    /// The tool call whose result this message is.
    pub tool_call_id: Option<String>,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    Text(String),
    /// Parts of which at least one is not text.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    Text(String),
    Refusal(String),
    Image {
        /// `https:` or `data:`.
        url: String,
        /// The requested resolution, such as `low`.
        detail: Option<String>,
    },
    /// A JSON object with `data`, in base64, and `format`.
    Audio(String),
    /// A JSON object, such as one with `file_id`.
    File(String),
}

/// A tool call in a message of the conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// A JSON text.
    pub arguments: String,
}

impl Message {
    /// A message with text only.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content::Text(text.into()), ..Self::default() }
    }

    /// Bytes of its texts.
    pub fn bytes(&self) -> usize {
        self.content.bytes() + self.reasoning.len()
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Content {
    /// The texts, one after the other.
    pub fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Parts(parts) => parts.iter().filter_map(Part::text).collect::<String>().into(),
        }
    }

    pub fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Parts(parts) => parts.is_empty(),
        }
    }

    /// Bytes of the texts.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => parts.iter().filter_map(Part::text).map(str::len).sum(),
        }
    }

    /// The parts; none if it is a text.
    pub fn parts(&self) -> &[Part] {
        match self {
            Self::Text(_) => &[],
            Self::Parts(parts) => parts,
        }
    }

    /// Appends more, on another line if both are texts. An empty text adds nothing.
    pub fn append(&mut self, more: Self) {
        match (&mut *self, more) {
            (Self::Text(text), Self::Text(more)) => {
                if !text.is_empty() && !more.is_empty() {
                    text.push('\n');
                }
                text.push_str(&more);
            }
            (_, more) if more.is_empty() => {}
            (_, more) => {
                let mut parts = std::mem::take(self).into_parts();
                parts.extend(more.into_parts());
                *self = Self::Parts(parts);
            }
        }
    }

    fn into_parts(self) -> Vec<Part> {
        match self {
            Self::Text(text) if text.is_empty() => Vec::new(),
            Self::Text(text) => vec![Part::Text(text)],
            Self::Parts(parts) => parts,
        }
    }
}

impl Part {
    /// The text of a part that has one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Refusal(text) => Some(text),
            Self::Image { .. } | Self::Audio(_) | Self::File(_) => None,
        }
    }

    /// The type of its JSON.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Refusal(_) => "refusal",
            Self::Image { .. } => "image_url",
            Self::Audio(_) => "input_audio",
            Self::File(_) => "file",
        }
    }
}

impl ToolCall {
    /// The arguments as a JSON value: an object without members if they are empty, a string if they are not JSON.
    pub fn arguments_value(&self) -> serde_json::Value {
        match self.arguments.trim() {
            "" => serde_json::Value::Object(serde_json::Map::new()),
            text => serde_json::from_str(text).unwrap_or_else(|_| self.arguments.as_str().into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_joined_by_lines_and_parts_are_appended() {
        let mut content = Content::from("a");
        content.append(Content::from(""));
        content.append(Content::from("b"));
        assert_eq!(content, Content::from("a\nb"));
        let image = Part::Image { url: "https://example.org/a.png".to_owned(), detail: None };
        content.append(Content::Parts(vec![image.clone()]));
        content.append(Content::from("c"));
        let expected = vec![Part::Text("a\nb".to_owned()), image, Part::Text("c".to_owned())];
        assert_eq!(content, Content::Parts(expected));
        assert_eq!((content.text(), content.bytes()), (Cow::Borrowed("a\nbc"), 4));
    }
}
