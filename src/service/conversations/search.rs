//! Lists of conversations: what tells one apart from others, and which hold a text.

use serde_json::Value;

use super::{Conversation, ConversationRecord, stored};
use crate::error::{Error, Result};
use crate::ids::{ConversationId, ProjectId};
use crate::service::page::Window;
use crate::storage::{Reader, project_resources};

/// Bytes of transcripts that one page of a search may read. A longer search goes on with the next page, so that no
/// request holds a thread for long.
const READ: u64 = 32 << 20;
/// Bytes of messages that the previews of one page may read; what comes later has none.
const GLANCED: usize = 8 << 20;
/// Characters of a text that is searched for.
const LONGEST: usize = 200;
/// Characters of a preview.
const PREVIEW: usize = 120;
/// Messages among which the first of a user is looked for: those before it are instructions.
const FIRST: u32 = 4;

/// Fields of messages whose values nobody says.
const SILENT: &[&str] = &["role", "type", "id", "tool_call_id"];

/// A conversation in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub conversation: Conversation,
    /// How its first message from a user begins.
    pub preview: Option<String>,
}

/// A text that is looked for, whatever its letters' case.
pub(super) struct Search {
    text: String,
}

impl Search {
    pub fn new(text: &str) -> Result<Self> {
        let length = text.chars().count();
        match length {
            1..=LONGEST => Ok(Self { text: text.to_lowercase() }),
            _ => {
                let text = format!("'search' has {length} characters; it must have 1 to {LONGEST}.");
                Err(Error::invalid("search", text))
            }
        }
    }

    fn is_in(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.text)
    }

    /// Whether a string anywhere inside holds the text, but for those of `silent` fields; names of fields do not count.
    fn is_within(&self, value: &Value, silent: &[&str]) -> bool {
        match value {
            Value::String(text) => self.is_in(text),
            Value::Array(items) => items.iter().any(|item| self.is_within(item, silent)),
            Value::Object(fields) => {
                let mut said = fields.iter().filter(|(name, _)| !silent.contains(&name.as_str()));
                said.any(|(_, item)| self.is_within(item, silent))
            }
            _ => false,
        }
    }

    /// Whether the text stands in what a message says, or in what it calls tools with.
    fn is_in_message(&self, json: &str) -> bool {
        serde_json::from_str(json).is_ok_and(|message: Value| self.is_within(&message, SILENT))
    }

    fn matches(&self, tx: &impl Reader, id: ConversationId, record: &ConversationRecord) -> Result<bool> {
        let metadata = record.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok());
        if metadata.is_some_and(|metadata| self.is_within(&metadata, &[])) {
            return Ok(true);
        }
        Ok(stored::messages(tx, id, record)?.iter().any(|json| self.is_in_message(json)))
    }
}

/// Conversations of a page, and below which id the list goes on, if it does.
pub(super) struct Stretch {
    pub found: Vec<Listed>,
    pub next: Option<[u8; 16]>,
}

/// Up to `window.limit` conversations; fewer with a `next` where too much had to be read.
pub(super) fn stretch(
    tx: &impl Reader,
    project: ProjectId,
    search: Option<&Search>,
    window: Window,
) -> Result<Stretch> {
    let (mut found, mut read, mut before, mut glance) = (Vec::new(), 0, window.before, GLANCED);
    loop {
        let rows = project_resources::newest::<ConversationRecord>(tx, project, before, window.rows())?;
        let last = rows.len() < window.rows();
        for (bytes, record) in rows {
            if found.len() == window.limit || read > READ {
                return Ok(Stretch { found, next: before });
            }
            before = Some(bytes);
            let id = ConversationId::from_bytes(bytes);
            if let Some(search) = search {
                read += record.bytes;
                if !search.matches(tx, id, &record)? {
                    continue;
                }
            }
            let preview = preview(tx, id, &record, &mut glance)?;
            found.push(Listed { conversation: Conversation::new(id, record), preview });
        }
        if last {
            return Ok(Stretch { found, next: None });
        }
    }
}

/// The beginning of the first message from a user. `glance`: bytes that may still be read.
fn preview(
    tx: &impl Reader,
    id: ConversationId,
    record: &ConversationRecord,
    glance: &mut usize,
) -> Result<Option<String>> {
    for at in 0..record.messages.min(FIRST) {
        if *glance == 0 {
            break;
        }
        let json = stored::message(tx, id, at)?;
        *glance = glance.saturating_sub(json.len());
        if let Some(text) = said_by_user(&json) {
            return Ok(beginning(&text));
        }
    }
    Ok(None)
}

/// The text of a message, or the first of its parts, if it is a user's.
fn said_by_user(json: &str) -> Option<String> {
    let message: Value = serde_json::from_str(json).ok()?;
    message.get("role").filter(|role| *role == "user")?;
    match message.get("content")? {
        Value::String(text) => Some(text.clone()),
        parts => parts.as_array()?.iter().find_map(|part| Some(part.get("text")?.as_str()?.to_owned())),
    }
}

/// On one line, as far as a list shows it.
fn beginning(text: &str) -> Option<String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = words.chars().take(PREVIEW).collect();
    if short.len() < words.len() {
        short.push('…');
    }
    Some(short).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Search, beginning, said_by_user};

    #[test]
    fn texts_are_found_in_what_is_said() {
        let search = Search::new("FÜR dich").unwrap();
        for found in [
            json!({ "role": "user", "content": "ein Haus für\u{20}Dich" }),
            json!({ "role": "user", "content": [{ "type": "text", "text": "für dich" }] }),
            json!({ "role": "assistant", "tool_calls": [{ "function": { "arguments": "{\"a\": \"für dich\"}" } }] }),
        ] {
            assert!(search.is_in_message(&found.to_string()), "{found}");
        }
        let search = Search::new("user").unwrap();
        assert!(!search.is_in_message(&json!({ "role": "user", "content": "hi", "user": 1 }).to_string()));
        assert!(Search::new("").is_err() && Search::new(&"x".repeat(201)).is_err());
    }

    #[test]
    fn previews_are_of_what_a_user_said() {
        let parts = json!([{ "type": "image_url" }, { "type": "text", "text": " What \n is it? " }]);
        let said = said_by_user(&json!({ "role": "user", "content": parts }).to_string()).unwrap();
        assert_eq!(beginning(&said).as_deref(), Some("What is it?"));
        assert_eq!(said_by_user(&json!({ "role": "system", "content": "Be kind." }).to_string()), None);
        let long = beginning(&"é".repeat(500)).unwrap();
        assert_eq!((long.chars().count(), long.ends_with('…')), (121, true));
        assert_eq!(beginning(" \n "), None);
    }
}
