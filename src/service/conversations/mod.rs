//! Conversations: stored transcripts, which are appended to or replaced as a whole.

mod chat;
mod rows;
mod search;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

pub use rows::Appended;
pub use search::ConversationSummary;

use super::access::authorize;
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::limited_read::LimitedRead;
use super::limits::quotas::{self, QuotaKind, signed};
use super::validation;
use super::validation::message_validation::{self, UnknownFields};
use super::writes::precondition::Precondition;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};
use crate::ids::{ConversationId, ProjectId};
use crate::storage::conversations::{self as stored, ConversationRecord};
use crate::storage::{Reader, Store, WriteTx, project_resources};

/// Max messages per conversation.
pub const MAX_MESSAGES: usize = 4096;
/// Max JSON bytes per conversation, messages and metadata together.
pub const MAX_BYTES: u64 = 8 << 20;

/// A conversation without its messages.
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
        let ConversationRecord { project, metadata, version, messages, created_at, updated_at, .. } = record;
        Self { id, project, metadata, version, messages, created_at, updated_at }
    }
}

/// A conversation with its messages: the JSON of each, in order.
#[derive(Clone, Debug)]
pub struct Transcript {
    pub conversation: Conversation,
    pub messages: Vec<String>,
}

/// The fields of a new conversation.
#[derive(Clone, Debug, Default)]
pub struct NewConversation {
    /// Default: the project of the caller's key.
    pub project: Option<ProjectId>,
    /// The JSON of each message.
    pub messages: Vec<String>,
    /// A JSON object, as text.
    pub metadata: Option<String>,
}

/// The transcript that replaces the stored one.
#[derive(Clone, Debug, Default)]
pub struct Replacement {
    /// The JSON of each message.
    pub messages: Vec<String>,
    /// A JSON object, as text; absent metadata is cleared.
    pub metadata: Option<String>,
}

/// The conversations service.
#[derive(Clone)]
pub struct Conversations {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl Conversations {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Creates a conversation.
    pub async fn create(&self, access: &Access, new: NewConversation) -> Result<Conversation> {
        let now = self.clock_rng.now();
        let project = new.project.unwrap_or_else(|| access.project());
        let content = Content::check(new.messages, new.metadata)?;
        let id = ConversationId::generate(&*self.clock_rng);
        let entry = self.audit_entry(access, "conversation.created");
        let permit = authorize::manage_project(project);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let owner = authorize::named_project(tx, caller, project)?;
            authorize::require_active(&owner).map_err(|error| error.param("project_id"))?;
            insert(tx, &entry, id, project, &content, now)
        });
        written.await
    }

    /// Replaces the whole transcript. An unknown id creates a conversation in the caller's project.
    pub async fn replace(
        &self,
        access: &Access,
        id: ConversationId,
        new: Replacement,
        precondition: Precondition,
    ) -> Result<Conversation> {
        let now = self.clock_rng.now();
        let content = Content::check(new.messages, new.metadata)?;
        let created = self.audit_entry(access, "conversation.created");
        let replaced = self.audit_entry(access, "conversation.replaced");
        let permit = authorize::manage_owner::<ConversationRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let Some(record) = project_resources::find::<ConversationRecord>(tx, id.to_bytes())? else {
                caller.require(caller.project(), Scope::Project)?;
                precondition.check(None)?;
                return insert(tx, &created, id, caller.project(), &content, now);
            };
            caller.require(record.project, Scope::Project)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            let next = ConversationRecord {
                metadata: content.metadata.clone(),
                messages: content.count(),
                first_row: record.next_row,
                next_row: next_row(&record, &content)?,
                bytes: content.bytes,
                ..record.clone()
            };
            let next = store_next_version(tx, id, &record, next, now)?;
            stored::remove_messages_below(tx, id, record.next_row)?;
            stored::put_messages(tx, id, record.next_row, &content.messages)?;
            let detail = json!({ "version": next.version, "old_messages": record.messages, "messages": next.messages });
            replaced.write(tx, next.project, id, &detail)?;
            Ok(Conversation::new(id, next))
        });
        written.await
    }

    /// Appends messages.
    pub async fn append(
        &self,
        access: &Access,
        id: ConversationId,
        messages: Vec<String>,
        precondition: Precondition,
    ) -> Result<Conversation> {
        let now = self.clock_rng.now();
        if messages.is_empty() {
            return Err(Error::invalid("messages", "'messages' is empty. Send at least one message to append."));
        }
        let added = Content::check(messages, None)?;
        let entry = self.audit_entry(access, "conversation.appended");
        let permit = authorize::manage_owner::<ConversationRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = self::find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            Ok(append(tx, &entry, id, record, &added, now)?.conversation)
        });
        written.await
    }

    /// Sets or clears the metadata; the messages stay. An update that changes nothing creates no version.
    pub async fn update(
        &self,
        access: &Access,
        id: ConversationId,
        metadata: Option<Option<String>>,
        precondition: Precondition,
    ) -> Result<Conversation> {
        let now = self.clock_rng.now();
        validation::metadata(metadata.as_ref().and_then(Option::as_deref))?;
        let entry = self.audit_entry(access, "conversation.updated");
        let permit = authorize::manage_owner::<ConversationRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = self::find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            let Some(metadata) = metadata.clone().filter(|new| *new != record.metadata) else {
                return Ok(Conversation::new(id, record));
            };
            let length = |text: &Option<String>| text.as_ref().map_or(0, |text| text.len() as u64);
            let bytes = record.bytes.saturating_sub(length(&record.metadata)) + length(&metadata);
            fits(record.messages as usize, bytes, "metadata")?;
            let next =
                store_next_version(tx, id, &record, ConversationRecord { metadata, bytes, ..record.clone() }, now)?;
            entry.write(tx, next.project, id, &json!({ "version": next.version }))?;
            Ok(Conversation::new(id, next))
        });
        written.await
    }

    /// Deletes a conversation with all its messages.
    pub async fn delete(&self, access: &Access, id: ConversationId, precondition: Precondition) -> Result<()> {
        let now = self.clock_rng.now();
        let entry = self.audit_entry(access, "conversation.deleted");
        let permit = authorize::manage_owner::<ConversationRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = self::find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            quotas::charge(tx, record.project, now, QuotaKind::Conversation, -1, -signed(record.bytes))?;
            stored::remove_messages_below(tx, id, record.next_row)?;
            project_resources::remove(tx, id.to_bytes(), &record)?;
            entry.write(tx, record.project, id, &json!({ "version": record.version, "messages": record.messages }))
        });
        written.await
    }

    /// A conversation with its messages, if they have at most `limit` bytes.
    pub async fn get(&self, access: &Access, id: ConversationId, limit: u64) -> Result<LimitedRead<Transcript>> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = self::find(tx, &access, id)?;
            if record.bytes > limit {
                return Ok(LimitedRead::TooLarge { bytes: record.bytes });
            }
            let messages = stored::messages(tx, id, &record)?;
            Ok(LimitedRead::Read(Transcript { conversation: Conversation::new(id, record), messages }))
        });
        read.await
    }

    fn audit_entry(&self, access: &Access, action: &'static str) -> AuditEntry {
        AuditEntry::new(&self.clock_rng, Some(access), action)
    }
}

/// Finds a conversation that the caller may manage.
fn find(tx: &impl Reader, access: &Access, id: ConversationId) -> Result<ConversationRecord> {
    authorize::resource(tx, access, Scope::Project, "conversation", (id, id.to_bytes()))
}

/// Validated messages and metadata of a request.
struct Content {
    messages: Vec<String>,
    metadata: Option<String>,
    bytes: u64,
}

impl Content {
    fn check(messages: Vec<String>, metadata: Option<String>) -> Result<Self> {
        validation::metadata(metadata.as_deref())?;
        let mut checked = Vec::with_capacity(messages.len().min(MAX_MESSAGES));
        fits(messages.len(), 0, "messages")?;
        for (at, json) in messages.iter().enumerate() {
            message_validation::parse(&format!("messages[{at}]"), json, UnknownFields::Reject)?;
            checked.push(message_validation::compact_json(json));
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

/// 400 if a conversation would exceed the limits.
fn fits(messages: usize, bytes: u64, param: &str) -> Result<()> {
    if messages > MAX_MESSAGES {
        let text = format!(
            "The conversation would have {messages} messages; it may have {MAX_MESSAGES}. Replace older messages by a summary, or begin another conversation."
        );
        return Err(Error::invalid(param, text));
    }
    if bytes > MAX_BYTES {
        let text = format!(
            "The conversation would have {bytes} bytes of JSON; it may have {MAX_BYTES}. Replace older messages by a summary, or begin another conversation."
        );
        return Err(Error::invalid(param, text));
    }
    Ok(())
}

fn insert(
    tx: &WriteTx,
    entry: &AuditEntry,
    id: ConversationId,
    project: ProjectId,
    content: &Content,
    now: Timestamp,
) -> Result<Conversation> {
    quotas::charge(tx, project, now, QuotaKind::Conversation, 1, signed(content.bytes))?;
    let record = ConversationRecord {
        project,
        metadata: content.metadata.clone(),
        version: 1,
        messages: content.count(),
        first_row: 0,
        next_row: content.count(),
        bytes: content.bytes,
        created_at: now,
        updated_at: now,
    };
    project_resources::insert(tx, id.to_bytes(), &record)?;
    stored::put_messages(tx, id, 0, &content.messages)?;
    entry.write(tx, project, id, &json!({ "messages": record.messages }))?;
    Ok(Conversation::new(id, record))
}

fn append(
    tx: &WriteTx,
    entry: &AuditEntry,
    id: ConversationId,
    record: ConversationRecord,
    added: &Content,
    now: Timestamp,
) -> Result<Appended> {
    let (messages, bytes) = (record.messages + added.count(), record.bytes + added.bytes);
    fits(messages as usize, bytes, "messages")?;
    let next = ConversationRecord { messages, bytes, next_row: next_row(&record, added)?, ..record.clone() };
    let next = store_next_version(tx, id, &record, next, now)?;
    stored::put_messages(tx, id, record.next_row, &added.messages)?;
    entry.write(tx, next.project, id, &json!({ "version": next.version, "messages": added.count() }))?;
    Ok(Appended { conversation: Conversation::new(id, next), first_row: record.next_row })
}

/// The row after those of added messages.
fn next_row(record: &ConversationRecord, added: &Content) -> Result<u32> {
    record.next_row.checked_add(added.count()).ok_or_else(|| {
        let text = format!(
            "The conversation has had {} messages, which is the limit. Begin another conversation.",
            record.next_row
        );
        Error::invalid("messages", text)
    })
}

/// Stores a changed record under its next version and charges the difference in bytes.
fn store_next_version(
    tx: &WriteTx,
    id: ConversationId,
    old: &ConversationRecord,
    new: ConversationRecord,
    now: Timestamp,
) -> Result<ConversationRecord> {
    quotas::charge(tx, old.project, now, QuotaKind::Conversation, 0, signed(new.bytes) - signed(old.bytes))?;
    let next = ConversationRecord { version: old.version + 1, updated_at: now, ..new };
    project_resources::replace(tx, id.to_bytes(), &next)?;
    Ok(next)
}
