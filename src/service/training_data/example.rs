//! A training example: a JSON object with `messages` (a chat with at least one assistant message), `prompt` and
//! `completion`, or `text`. Other fields are allowed.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use crate::json_input::{self, InputError};

const ROLES: [&str; 5] = ["developer", "system", "user", "assistant", "tool"];

/// The format of a file's lines. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExampleFormat {
    Messages = 1,
    Completion = 2,
    Text = 3,
    Preference = 4,
}

impl ExampleFormat {
    pub fn as_str(self) -> &'static str {
        match self {
            ExampleFormat::Messages => "messages",
            ExampleFormat::Completion => "prompt_completion",
            ExampleFormat::Text => "text",
            ExampleFormat::Preference => "preference",
        }
    }

    pub(in crate::service) fn from_number(number: u8) -> Option<Self> {
        [ExampleFormat::Messages, ExampleFormat::Completion, ExampleFormat::Text]
            .into_iter()
            .find(|form| *form as u8 == number)
    }

    pub(super) fn fields(self) -> &'static str {
        match self {
            ExampleFormat::Messages => "'messages'",
            ExampleFormat::Completion => "'prompt' and 'completion'",
            ExampleFormat::Text => "'text'",
            ExampleFormat::Preference => "'input'",
        }
    }
}

/// The relevant fields of a line. Others are skipped without being stored.
#[derive(Deserialize)]
struct Line {
    messages: Option<Vec<Message>>,
    prompt: Option<Text>,
    completion: Option<Text>,
    text: Option<Text>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Content,
    tool_calls: Option<Vec<IgnoredAny>>,
}

/// Only whether the string is empty matters.
struct Text {
    empty: bool,
}

#[derive(Default)]
enum Content {
    #[default]
    Absent,
    Given,
    /// A non-text part: its index and type.
    Foreign(usize, String),
}

#[derive(Deserialize)]
struct Part {
    r#type: String,
    text: Option<Text>,
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Length;

        impl Visitor<'_> for Length {
            type Value = Text;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Text, E> {
                Ok(Text { empty: text.is_empty() })
            }
        }

        deserializer.deserialize_str(Length)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct StringOrParts;

        impl<'de> Visitor<'de> for StringOrParts {
            type Value = Content;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or an array of text parts")
            }

            fn visit_str<E>(self, _: &str) -> Result<Content, E> {
                Ok(Content::Given)
            }

            fn visit_unit<E>(self) -> Result<Content, E> {
                Ok(Content::Absent)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let (mut found, mut index) = (Content::Given, 0);
                while let Some(part) = parts.next_element::<Part>()? {
                    if (part.r#type != "text" || part.text.is_none()) && matches!(found, Content::Given) {
                        found = Content::Foreign(index, part.r#type);
                    }
                    index += 1;
                }
                Ok(if index == 0 { Content::Absent } else { found })
            }
        }

        deserializer.deserialize_any(StringOrParts)
    }
}

/// The format of a line, or what is wrong with it.
pub(super) fn parse_example(line: &[u8]) -> Result<ExampleFormat, String> {
    let text = std::str::from_utf8(line)
        .map_err(|bad| format!("the byte at {} is not valid UTF-8; save the file as UTF-8", bad.valid_up_to()))?;
    if !text.trim_start().starts_with('{') {
        return Err("it is not a JSON object; a line looks like {\"messages\": [...]}".into());
    }
    let line = parse(text)?;
    let forms = [
        (ExampleFormat::Messages, line.messages.is_some()),
        (ExampleFormat::Completion, line.prompt.is_some() || line.completion.is_some()),
        (ExampleFormat::Text, line.text.is_some()),
    ];
    let mut given = forms.into_iter().filter(|(_, given)| *given).map(|(form, _)| form);
    match (given.next(), given.next()) {
        (Some(one), Some(other)) => Err(format!("it has {} and {}; send one of them", one.fields(), other.fields())),
        (None, _) => Err("it has neither 'messages', nor 'prompt' and 'completion', nor 'text'".into()),
        (Some(ExampleFormat::Messages), None) => {
            messages(&line.messages.unwrap_or_default()).map(|()| ExampleFormat::Messages)
        }
        (Some(ExampleFormat::Completion), None) => {
            if line.prompt.is_none() {
                return Err("'prompt' is missing; 'completion' requires it".into());
            }
            filled("completion", line.completion.as_ref()).map(|()| ExampleFormat::Completion)
        }
        (Some(ExampleFormat::Preference), None) => Err(String::new()),
        (Some(ExampleFormat::Text), None) => filled("text", line.text.as_ref()).map(|()| ExampleFormat::Text),
    }
}

fn parse(text: &str) -> Result<Line, String> {
    json_input::from_str(text).map_err(|error| match error {
        // A line is one line of the text, so only the column matters.
        InputError::Syntax { problem, column, .. } => format!("it is not valid JSON: {problem} at column {column}"),
        InputError::Value { path, problem } if path.is_empty() => format!("it {}", problem.trim_end_matches('.')),
        InputError::Value { path, problem } => format!("'{path}' {}", problem.trim_end_matches('.')),
    })
}

fn filled(field: &str, text: Option<&Text>) -> Result<(), String> {
    match text {
        None => Err(format!("'{field}' is missing")),
        Some(text) if text.empty => Err(format!("'{field}' is empty; there is nothing to learn from it")),
        Some(_) => Ok(()),
    }
}

fn messages(messages: &[Message]) -> Result<(), String> {
    for (index, message) in messages.iter().enumerate() {
        let role = message.role.as_str();
        if !ROLES.contains(&role) {
            let shown: String = role.chars().take(40).collect();
            return Err(format!("messages[{index}].role is '{shown}'; roles are {}", ROLES.join(", ")));
        }
        let calls = role == "assistant" && message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
        match &message.content {
            Content::Given => {}
            Content::Absent if calls => {}
            Content::Absent => {
                return Err(format!("messages[{index}].content is missing; it is a string or an array of text parts"));
            }
            Content::Foreign(part, kind) => {
                let shown: String = kind.chars().take(40).collect();
                return Err(format!(
                    "messages[{index}].content[{part}] is of type '{shown}'; only {{\"type\": \"text\", \"text\": …}} is taken"
                ));
            }
        }
    }
    if messages.iter().any(|message| message.role == "assistant") {
        return Ok(());
    }
    Err("messages has no message of the role 'assistant'; there is nothing to learn from it".into())
}
