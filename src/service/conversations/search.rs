//! Listing and searching conversations.

use serde_json::Value;

use super::{Conversation, ConversationRecord, Conversations, stored};
use crate::error::{Error, Result};
use crate::ids::{ConversationId, ProjectId};
use crate::service::access::Access;
use crate::service::access::authorize;
use crate::service::limited_read::{LimitedRead, PAGE_BYTES, needs_page};
use crate::service::pagination::{Listing, Page, PageRequest, Window};
use crate::storage::{Reader, project_resources};

/// Transcript bytes that one page of a search may read. A longer search continues with the next page, so that no
/// request occupies a thread for long.
const MAX_SEARCH_BYTES: u64 = 32 << 20;
/// Message bytes that the previews of one page may read; later items have no preview.
const MAX_PREVIEW_BYTES: usize = 8 << 20;
/// Max characters of a search text.
const MAX_SEARCH_CHARS: usize = 200;
/// Conversations of these bytes are read without room for them.
const SMALL_PAGE_BYTES: u64 = 256 << 10;
/// Characters of a preview.
const PREVIEW_CHARS: usize = 120;
/// Leading rows in which the first user message is looked for.
const PREVIEW_ROWS: u32 = 4;

/// Message fields that are not searched.
const UNSEARCHED_FIELDS: &[&str] = &["role", "type", "id", "tool_call_id"];

/// A conversation in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationSummary {
    pub conversation: Conversation,
    /// The beginning of its first user message.
    pub preview: Option<String>,
}

impl Conversations {
    /// A page of a project's conversations, newest first; with `search`, of those that contain this text. Default
    /// project: that of the key. `limit`: the bytes that a conversation may have whose messages are read.
    pub async fn list(
        &self,
        access: &Access,
        project: Option<ProjectId>,
        search: Option<&str>,
        request: PageRequest,
        limit: u64,
    ) -> Result<LimitedRead<Page<ConversationSummary>>> {
        let project = project.unwrap_or_else(|| access.project());
        let listing = Listing { name: "conversations", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, ConversationId::to_bytes)?;
        let search = search.map(Search::new).transpose()?;
        let access = access.clone();
        let read = self.store.read(move |tx| {
            authorize::named_project(tx, &access, project)?;
            search_page(tx, project, search.as_ref(), window, limit.max(SMALL_PAGE_BYTES))
        });
        let Some(SearchResult { found, next }) = read.await? else {
            return Ok(LimitedRead::TooLarge { bytes: PAGE_BYTES });
        };
        let next_cursor = next.map(|position| listing.cursor(self.store.pepper(), position));
        Ok(LimitedRead::Read(Page { items: found, has_more: next_cursor.is_some(), next_cursor }))
    }
}

/// A case-insensitive text search.
struct Search {
    text: String,
}

impl Search {
    fn new(text: &str) -> Result<Self> {
        let length = text.chars().count();
        match length {
            1..=MAX_SEARCH_CHARS => Ok(Self { text: text.to_lowercase() }),
            _ => {
                let text = format!("'search' has {length} characters; it must have 1 to {MAX_SEARCH_CHARS}.");
                Err(Error::invalid("search", text))
            }
        }
    }

    fn is_in(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.text)
    }

    /// Whether any string value inside contains the text, except in `skip` fields.
    fn is_within(&self, value: &Value, skip: &[&str]) -> bool {
        match value {
            Value::String(text) => self.is_in(text),
            Value::Array(items) => items.iter().any(|item| self.is_within(item, skip)),
            Value::Object(fields) => {
                let mut texts = fields.iter().filter(|(name, _)| !skip.contains(&name.as_str()));
                texts.any(|(_, item)| self.is_within(item, skip))
            }
            _ => false,
        }
    }

    /// Whether a message's content or tool calls contain the text.
    fn is_in_message(&self, json: &str) -> bool {
        serde_json::from_str(json).is_ok_and(|message: Value| self.is_within(&message, UNSEARCHED_FIELDS))
    }

    fn matches(&self, tx: &impl Reader, id: ConversationId, record: &ConversationRecord) -> Result<bool> {
        let metadata = record.metadata.as_deref().and_then(|text| serde_json::from_str(text).ok());
        if metadata.is_some_and(|metadata| self.is_within(&metadata, &[])) {
            return Ok(true);
        }
        Ok(stored::messages(tx, id, record)?.iter().any(|json| self.is_in_message(json)))
    }
}

/// Conversations of a page, and the id below which the list continues, if it does.
struct SearchResult {
    found: Vec<ConversationSummary>,
    next: Option<[u8; 16]>,
}

/// Up to `window.limit` conversations; fewer, with a `next`, if the read limit is reached. `None` if one whose messages are
/// read is too large for `limit`. With [`PAGE_BYTES`], none is.
fn search_page(
    tx: &impl Reader,
    project: ProjectId,
    search: Option<&Search>,
    window: Window,
    limit: u64,
) -> Result<Option<SearchResult>> {
    let (mut found, mut read, mut before, mut budget) = (Vec::new(), 0, window.before, MAX_PREVIEW_BYTES);
    loop {
        let rows = project_resources::newest::<ConversationRecord>(tx, project, before, window.rows())?;
        let last = rows.len() < window.rows();
        for (bytes, record) in rows {
            if found.len() == window.limit || read > MAX_SEARCH_BYTES {
                return Ok(Some(SearchResult { found, next: before }));
            }
            if needs_page(record.bytes, limit) {
                return Ok(None);
            }
            before = Some(bytes);
            let id = ConversationId::from_bytes(bytes);
            if let Some(search) = search {
                read += record.bytes;
                if !search.matches(tx, id, &record)? {
                    continue;
                }
            }
            let preview = preview(tx, id, &record, &mut budget)?;
            found.push(ConversationSummary { conversation: Conversation::new(id, record), preview });
        }
        if last {
            return Ok(Some(SearchResult { found, next: None }));
        }
    }
}

/// The beginning of the first user message. `budget`: bytes that may still be read.
fn preview(
    tx: &impl Reader,
    id: ConversationId,
    record: &ConversationRecord,
    budget: &mut usize,
) -> Result<Option<String>> {
    let end = record.next_row.min(record.first_row.saturating_add(PREVIEW_ROWS));
    for row in record.first_row..end {
        if *budget == 0 {
            break;
        }
        let Some(json) = stored::message(tx, id, row)? else { continue };
        *budget = budget.saturating_sub(json.len());
        if let Some(text) = user_text(&json) {
            return Ok(preview_text(&text));
        }
    }
    Ok(None)
}

/// The text, or first text part, of a user message.
fn user_text(json: &str) -> Option<String> {
    let message: Value = serde_json::from_str(json).ok()?;
    message.get("role").filter(|role| *role == "user")?;
    match message.get("content")? {
        Value::String(text) => Some(text.clone()),
        parts => parts.as_array()?.iter().find_map(|part| Some(part.get("text")?.as_str()?.to_owned())),
    }
}

/// Truncates to one line for a list.
fn preview_text(text: &str) -> Option<String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = words.chars().take(PREVIEW_CHARS).collect();
    if short.len() < words.len() {
        short.push('…');
    }
    Some(short).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Search, preview_text, user_text};

    #[test]
    fn search_finds_text_in_messages() {
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
    fn previews_show_user_text() {
        let parts = json!([{ "type": "image_url" }, { "type": "text", "text": " What \n is it? " }]);
        let text = user_text(&json!({ "role": "user", "content": parts }).to_string()).unwrap();
        assert_eq!(preview_text(&text).as_deref(), Some("What is it?"));
        assert_eq!(user_text(&json!({ "role": "system", "content": "Be kind." }).to_string()), None);
        let long = preview_text(&"é".repeat(500)).unwrap();
        assert_eq!((long.chars().count(), long.ends_with('…')), (121, true));
        assert_eq!(preview_text(" \n "), None);
    }
}
