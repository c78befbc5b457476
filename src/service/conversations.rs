//! Conversations: stored transcripts that grow by appending and are replaced as a whole.

mod chat;
mod search;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub use search::Listed;

use self::search::{Search, Stretch};
use super::access::{Access, Scope};
use super::audit::Note;
use super::holdings::{self, Holding, signed};
use super::page::{Listing, Page, PageRequest};
use super::transcript::{self, Unknown};
use super::version::Expected;
use super::{authority, claim, fields};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};
use crate::ids::{ConversationId, ProjectId};
use crate::storage::conversations::{self as stored, ConversationRecord};
use crate::storage::{Reader, Store, WriteTx, project_resources};

/// Most messages of a conversation.
pub const MOST_MESSAGES: usize = 4096;
/// Most bytes of JSON of a conversation, messages and metadata together.
pub const MOST_BYTES: u64 = 8 << 20;

/// A conversation as its users see it, without its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversation {
    pub id: ConversationId,
    pub project: ProjectId,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    pub version: u64,
    pub messages: u32,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Conversation {
    fn new(id: ConversationId, record: ConversationRecord) -> Self {
        let ConversationRecord { project, metadata, version, messages, created_at, updated_at, bytes: _ } = record;
        Self { id, project, metadata, version, messages, created_at, updated_at }
    }
}

/// A conversation with its messages: the JSON of each, in order.
#[derive(Clone, Debug)]
pub struct Transcript {
    pub conversation: Conversation,
    pub messages: Vec<String>,
}

/// What a new conversation is made of.
#[derive(Clone, Debug, Default)]
pub struct NewConversation {
    /// Default: the project of the caller's key.
    pub project: Option<ProjectId>,
    /// The JSON of each message.
    pub messages: Vec<String>,
    /// A JSON object, as text.
    pub metadata: Option<String>,
}

/// The transcript that takes the place of the stored one.
#[derive(Clone, Debug, Default)]
pub struct Replacement {
    /// The JSON of each message.
    pub messages: Vec<String>,
    /// A JSON object, as text; absent metadata is cleared.
    pub metadata: Option<String>,
}

/// The rules of conversations.
#[derive(Clone)]
pub struct Conversations {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl Conversations {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Makes a conversation.
    pub async fn create(&self, access: &Access, new: NewConversation) -> Result<Conversation> {
        let now = self.clock_rng.now();
        let project = new.project.unwrap_or_else(|| access.project());
        let content = Content::check(new.messages, new.metadata)?;
        let id = ConversationId::generate(&*self.clock_rng);
        let note = self.note(access, "conversation.created");
        let written = claim::write(&self.store, access, now, authority::manages(project), move |tx, caller| {
            let owner = authority::named_project(tx, caller, project)?;
            authority::living(&owner).map_err(|error| error.param("project_id"))?;
            insert(tx, &note, id, project, &content, now)
        });
        written.await
    }

    /// Replaces the whole transcript. An unknown id makes a conversation in the caller's project.
    pub async fn replace(
        &self,
        access: &Access,
        id: ConversationId,
        new: Replacement,
        expected: Expected,
    ) -> Result<Conversation> {
        let now = self.clock_rng.now();
        let content = Content::check(new.messages, new.metadata)?;
        let created = self.note(access, "conversation.created");
        let replaced = self.note(access, "conversation.replaced");
        let permit = authority::manages_owner::<ConversationRecord>(id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let Some(record) = project_resources::find::<ConversationRecord>(tx, id.to_bytes())? else {
                caller.require(caller.project(), Scope::Project)?;
                expected.check(None)?;
                return insert(tx, &created, id, caller.project(), &content, now);
            };
            caller.require(record.project, Scope::Project)?;
            authority::living_owner(tx, record.project)?;
            expected.check(Some(record.version))?;
            let next = ConversationRecord {
                metadata: content.metadata.clone(),
                messages: content.count(),
                bytes: content.bytes,
                ..record.clone()
            };
            let next = settle(tx, id, &record, next, now)?;
            stored::put_messages(tx, id, 0, &content.messages)?;
            stored::remove_messages(tx, id, next.messages, record.messages)?;
            let detail = json!({ "version": next.version, "old_messages": record.messages, "messages": next.messages });
            replaced.write(tx, next.project, id, &detail)?;
            Ok(Conversation::new(id, next))
        });
        written.await
    }

    /// Adds messages at the end.
    pub async fn append(
        &self,
        access: &Access,
        id: ConversationId,
        messages: Vec<String>,
        expected: Expected,
    ) -> Result<Conversation> {
        let now = self.clock_rng.now();
        if messages.is_empty() {
            return Err(Error::invalid("messages", "'messages' is empty. Send at least one message to append."));
        }
        let added = Content::check(messages, None)?;
        let note = self.note(access, "conversation.appended");
        let permit = authority::manages_owner::<ConversationRecord>(id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let record = self::find(tx, caller, id)?;
            authority::living_owner(tx, record.project)?;
            expected.check(Some(record.version))?;
            append(tx, &note, id, record, &added, now)
        });
        written.await
    }

    /// Sets or clears the metadata; the messages stay. What changes nothing makes no version.
    pub async fn update(
        &self,
        access: &Access,
        id: ConversationId,
        metadata: Option<Option<String>>,
        expected: Expected,
    ) -> Result<Conversation> {
        let now = self.clock_rng.now();
        fields::metadata(metadata.as_ref().and_then(Option::as_deref))?;
        let note = self.note(access, "conversation.updated");
        let permit = authority::manages_owner::<ConversationRecord>(id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let record = self::find(tx, caller, id)?;
            authority::living_owner(tx, record.project)?;
            expected.check(Some(record.version))?;
            let Some(metadata) = metadata.clone().filter(|new| *new != record.metadata) else {
                return Ok(Conversation::new(id, record));
            };
            let length = |text: &Option<String>| text.as_ref().map_or(0, |text| text.len() as u64);
            let bytes = record.bytes.saturating_sub(length(&record.metadata)) + length(&metadata);
            fits(record.messages as usize, bytes, "metadata")?;
            let next = settle(tx, id, &record, ConversationRecord { metadata, bytes, ..record.clone() }, now)?;
            note.write(tx, next.project, id, &json!({ "version": next.version }))?;
            Ok(Conversation::new(id, next))
        });
        written.await
    }

    /// Removes a conversation with all its messages.
    pub async fn delete(&self, access: &Access, id: ConversationId, expected: Expected) -> Result<()> {
        let now = self.clock_rng.now();
        let note = self.note(access, "conversation.deleted");
        let permit = authority::manages_owner::<ConversationRecord>(id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let record = self::find(tx, caller, id)?;
            authority::living_owner(tx, record.project)?;
            expected.check(Some(record.version))?;
            holdings::charge(tx, record.project, now, Holding::Conversation, -1, -signed(record.bytes))?;
            stored::remove_messages(tx, id, 0, record.messages)?;
            project_resources::remove(tx, id.to_bytes(), &record)?;
            note.write(tx, record.project, id, &json!({ "version": record.version, "messages": record.messages }))
        });
        written.await
    }

    pub async fn get(&self, access: &Access, id: ConversationId) -> Result<Transcript> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = self::find(tx, &access, id)?;
            let messages = stored::messages(tx, id, &record)?;
            Ok(Transcript { conversation: Conversation::new(id, record), messages })
        });
        read.await
    }

    /// A page of a project's conversations, the newest first; with `search`, of those that hold this text. Default:
    /// the project of the key.
    pub async fn list(
        &self,
        access: &Access,
        project: Option<ProjectId>,
        search: Option<&str>,
        request: PageRequest,
    ) -> Result<Page<Listed>> {
        let project = project.unwrap_or_else(|| access.project());
        let listing = Listing { name: "conversations", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, ConversationId::to_bytes)?;
        let search = search.map(Search::new).transpose()?;
        let access = access.clone();
        let read = self.store.read(move |tx| {
            authority::named_project(tx, &access, project)?;
            search::stretch(tx, project, search.as_ref(), window)
        });
        let Stretch { found, next } = read.await?;
        let next_cursor = next.map(|position| listing.cursor(self.store.pepper(), position));
        Ok(Page { items: found, has_more: next_cursor.is_some(), next_cursor })
    }

    fn note(&self, access: &Access, action: &'static str) -> Note {
        Note::new(&self.clock_rng, Some(access), action)
    }
}

/// The conversation of a path, if the caller may manage it.
fn find(tx: &impl Reader, access: &Access, id: ConversationId) -> Result<ConversationRecord> {
    authority::owned(tx, access, Scope::Project, "conversation", (id, id.to_bytes()))
}

/// Messages and metadata of a request, checked.
struct Content {
    messages: Vec<String>,
    metadata: Option<String>,
    bytes: u64,
}

impl Content {
    fn check(messages: Vec<String>, metadata: Option<String>) -> Result<Self> {
        fields::metadata(metadata.as_deref())?;
        let mut checked = Vec::with_capacity(messages.len().min(MOST_MESSAGES));
        fits(messages.len(), 0, "messages")?;
        for (at, json) in messages.iter().enumerate() {
            transcript::read(&format!("messages[{at}]"), json, Unknown::Refused)?;
            checked.push(transcript::compact(json));
        }
        let texts = checked.iter().chain(&metadata);
        let bytes = texts.map(|text| text.len() as u64).sum();
        fits(checked.len(), bytes, "messages")?;
        Ok(Self { messages: checked, metadata, bytes })
    }

    fn count(&self) -> u32 {
        u32::try_from(self.messages.len()).unwrap_or(u32::MAX)
    }
}

/// 400 if a conversation of this size is larger than any may be.
fn fits(messages: usize, bytes: u64, param: &str) -> Result<()> {
    if messages > MOST_MESSAGES {
        let text = format!(
            "The conversation would have {messages} messages; it may have {MOST_MESSAGES}. Replace older messages by a summary, or begin another conversation."
        );
        return Err(Error::invalid(param, text));
    }
    if bytes > MOST_BYTES {
        let text = format!(
            "The conversation would have {bytes} bytes of JSON; it may have {MOST_BYTES}. Replace older messages by a summary, or begin another conversation."
        );
        return Err(Error::invalid(param, text));
    }
    Ok(())
}

fn insert(
    tx: &WriteTx,
    note: &Note,
    id: ConversationId,
    project: ProjectId,
    content: &Content,
    now: Timestamp,
) -> Result<Conversation> {
    holdings::charge(tx, project, now, Holding::Conversation, 1, signed(content.bytes))?;
    let record = ConversationRecord {
        project,
        metadata: content.metadata.clone(),
        version: 1,
        messages: content.count(),
        bytes: content.bytes,
        created_at: now,
        updated_at: now,
    };
    project_resources::insert(tx, id.to_bytes(), &record)?;
    stored::put_messages(tx, id, 0, &content.messages)?;
    note.write(tx, project, id, &json!({ "messages": record.messages }))?;
    Ok(Conversation::new(id, record))
}

fn append(
    tx: &WriteTx,
    note: &Note,
    id: ConversationId,
    record: ConversationRecord,
    added: &Content,
    now: Timestamp,
) -> Result<Conversation> {
    let (messages, bytes) = (record.messages + added.count(), record.bytes + added.bytes);
    fits(messages as usize, bytes, "messages")?;
    let next = settle(tx, id, &record, ConversationRecord { messages, bytes, ..record.clone() }, now)?;
    stored::put_messages(tx, id, record.messages, &added.messages)?;
    note.write(tx, next.project, id, &json!({ "version": next.version, "messages": added.count() }))?;
    Ok(Conversation::new(id, next))
}

/// Stores a changed record under its next version and books the difference in bytes.
fn settle(
    tx: &WriteTx,
    id: ConversationId,
    old: &ConversationRecord,
    new: ConversationRecord,
    now: Timestamp,
) -> Result<ConversationRecord> {
    holdings::charge(tx, old.project, now, Holding::Conversation, 0, signed(new.bytes) - signed(old.bytes))?;
    let next = ConversationRecord { version: old.version + 1, updated_at: now, ..new };
    project_resources::replace(tx, id.to_bytes(), &next)?;
    Ok(next)
}
