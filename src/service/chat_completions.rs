//! Stored chat completions (`store: true`), as in OpenAI's API.
//!
//! As with stored responses, a key that may call models may also read and delete the completions of its project.

use std::sync::Arc;

use serde_json::{Value, json};

use super::access::authorize;
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::limited_read::LimitedRead;
use super::limits::quotas::{self, QuotaKind, signed};
use super::responses::{SWEEP_BATCH, oldest_kept};
use super::validation;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::CompletionId;
use crate::storage::chat_completions::{self as stored, ChatCompletionContentRecord, ChatCompletionRecord};
use crate::storage::{Reader, Store, WriteTx, project_resources};

/// Max completions that a filtered listing looks at.
const MAX_FILTERED: usize = 10_000;
/// Completions whose records are read at once.
const LIST_BATCH: usize = 256;

/// A stored chat completion.
#[derive(Clone, Debug)]
pub struct StoredChatCompletion {
    pub id: CompletionId,
    /// The ID of the model.
    pub model: String,
    /// A JSON object with texts, if there is one.
    pub metadata: Option<String>,
    /// The JSON of each message of its request.
    pub messages: Vec<String>,
    /// The JSON of the completion, without its id and metadata.
    pub completion: String,
    pub created_at: Timestamp,
}

impl StoredChatCompletion {
    fn new(id: CompletionId, record: ChatCompletionRecord, content: ChatCompletionContentRecord) -> Self {
        let ChatCompletionRecord { model, metadata, created_at, .. } = record;
        let ChatCompletionContentRecord { messages, completion } = content;
        Self { id, model, metadata, messages, completion, created_at }
    }
}

/// The parameters of a listing.
#[derive(Clone, Debug)]
pub struct ChatCompletionQuery {
    /// The last completion of the previous page.
    pub after: Option<CompletionId>,
    /// Completions in the page.
    pub limit: usize,
    /// Lists the latest first.
    pub is_descending: bool,
    /// Only completions of this model.
    pub model: Option<String>,
    /// Only completions whose metadata has these entries.
    pub metadata: Vec<(String, String)>,
}

impl ChatCompletionQuery {
    fn is_filtered(&self) -> bool {
        self.model.is_some() || !self.metadata.is_empty()
    }

    fn matches(&self, record: &ChatCompletionRecord) -> bool {
        if self.model.as_ref().is_some_and(|model| *model != record.model) {
            return false;
        }
        if self.metadata.is_empty() {
            return true;
        }
        let metadata: Option<Value> = record.metadata.as_ref().and_then(|json| serde_json::from_str(json).ok());
        metadata.is_some_and(|found| self.metadata.iter().all(|(name, value)| found[name] == **value))
    }
}

/// A page of a listing.
#[derive(Debug)]
pub struct ChatCompletionPage {
    pub completions: Vec<StoredChatCompletion>,
    pub has_more: bool,
}

/// The stored chat completions service. Clones share it.
#[derive(Clone)]
pub struct ChatCompletions {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl ChatCompletions {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Checks the caller's quotas before a completion is generated. `bytes`: of its messages.
    pub async fn admit(&self, access: &Access, bytes: u64) -> Result<()> {
        let project = access.project();
        let check = move |tx: &_| quotas::check(tx, project, QuotaKind::Response, 1, signed(bytes.max(1)));
        self.store.read(check).await
    }

    /// Stores a completion for the caller's project. It counts against the project's quotas until it is removed.
    pub async fn create(&self, access: &Access, completion: StoredChatCompletion) -> Result<()> {
        let (now, project) = (self.clock_rng.now(), access.project());
        let StoredChatCompletion { id, model, metadata, messages, completion, created_at } = completion;
        let content = ChatCompletionContentRecord { messages, completion };
        let bytes = content.bytes() + bytes_of(metadata.as_deref());
        let record = ChatCompletionRecord { project, model, metadata, bytes, created_at };
        let entry = AuditEntry::new(&self.clock_rng, Some(access), "chat_completion.created");
        let permit = move |_: &WriteTx, caller: &Access| caller.require(project, Scope::Inference);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            caller.require(project, Scope::Inference)?;
            authorize::require_active_owner(tx, project)?;
            quotas::charge(tx, project, now, QuotaKind::Response, 1, signed(bytes))?;
            stored::insert(tx, id, &record, &content)?;
            entry.write(tx, project, id, &json!({ "bytes": bytes }))
        });
        written.await
    }

    /// A completion, if it has at most `limit` bytes.
    pub async fn get(
        &self,
        access: &Access,
        id: CompletionId,
        limit: u64,
    ) -> Result<LimitedRead<StoredChatCompletion>> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, id)?;
            if record.bytes > limit {
                return Ok(LimitedRead::TooLarge { bytes: record.bytes });
            }
            Ok(LimitedRead::Read(StoredChatCompletion::new(id, record, stored::content(tx, id)?)))
        });
        read.await
    }

    /// A page of the completions of the caller's project, if it has at most `limit` bytes.
    pub async fn list(
        &self,
        access: &Access,
        query: ChatCompletionQuery,
        limit: u64,
    ) -> Result<LimitedRead<ChatCompletionPage>> {
        access.require(access.project(), Scope::Inference)?;
        let project = access.project();
        let read = self.store.read(move |tx| {
            let position = query.after.map(CompletionId::to_bytes);
            let (before, after) = if query.is_descending { (position, None) } else { (None, position) };
            let mut ids = project_resources::ids::<ChatCompletionRecord>(tx, project, before, after)?;
            if !query.is_descending {
                ids.reverse();
            }
            let (mut found, mut looked_at) = (Vec::new(), 0);
            for batch in ids.chunks(LIST_BATCH.min(query.limit + 1)) {
                let keys: Vec<Vec<u8>> = batch.iter().map(|id| id.to_vec()).collect();
                let records = tx.get_all::<ChatCompletionRecord>(&keys)?;
                let records = batch.iter().zip(records).filter_map(|(id, record)| Some((*id, record?)));
                found.extend(records.filter(|(_, record)| record.project == project && query.matches(record)));
                looked_at += batch.len();
                if found.len() > query.limit {
                    break;
                }
                if query.is_filtered() && looked_at >= MAX_FILTERED && looked_at < ids.len() {
                    let last = batch.last().copied().map(CompletionId::from_bytes);
                    return Err(too_many(last));
                }
            }
            let has_more = found.len() > query.limit;
            found.truncate(query.limit);
            let bytes = found.iter().map(|(_, record)| record.bytes).sum();
            if bytes > limit {
                return Ok(LimitedRead::TooLarge { bytes });
            }
            let completions = found.into_iter().map(|(id, record)| {
                let id = CompletionId::from_bytes(id);
                Ok(StoredChatCompletion::new(id, record, stored::content(tx, id)?))
            });
            Ok(LimitedRead::Read(ChatCompletionPage { completions: completions.collect::<Result<_>>()?, has_more }))
        });
        read.await
    }

    /// Replaces the metadata of a completion, a JSON object with texts.
    pub async fn set_metadata(&self, access: &Access, id: CompletionId, metadata: Option<String>) -> Result<()> {
        validation::metadata(metadata.as_deref())?;
        let now = self.clock_rng.now();
        let entry = AuditEntry::new(&self.clock_rng, Some(access), "chat_completion.updated");
        let permit = authorize::scope_of_owner::<ChatCompletionRecord>(id.to_bytes(), Scope::Inference);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let old = find(tx, caller, id)?;
            let project = old.project;
            authorize::require_active_owner(tx, project)?;
            let bytes = old.bytes - bytes_of(old.metadata.as_deref()) + bytes_of(metadata.as_deref());
            quotas::charge(tx, project, now, QuotaKind::Response, 0, signed(bytes) - signed(old.bytes))?;
            let new = ChatCompletionRecord { metadata: metadata.clone(), bytes, ..old };
            project_resources::replace(tx, id.to_bytes(), &new)?;
            entry.write(tx, project, id, &Value::Null)
        });
        written.await
    }

    pub async fn delete(&self, access: &Access, id: CompletionId) -> Result<()> {
        let now = self.clock_rng.now();
        let entry = AuditEntry::new(&self.clock_rng, Some(access), "chat_completion.deleted");
        let permit = authorize::scope_of_owner::<ChatCompletionRecord>(id.to_bytes(), Scope::Inference);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            quotas::charge(tx, record.project, now, QuotaKind::Response, -1, -signed(record.bytes))?;
            stored::remove(tx, id, &record)?;
            entry.write(tx, record.project, id, &Value::Null)
        });
        written.await
    }

    /// Removes completions whose time is over; returns their number.
    pub async fn sweep(&self) -> Result<usize> {
        let mut swept = 0;
        loop {
            let now = self.clock_rng.now();
            let before = CompletionId::first_at(oldest_kept(now)).to_bytes();
            let expired = move |tx: &_| project_resources::below::<ChatCompletionRecord>(tx, before, SWEEP_BATCH);
            let expired = self.store.read(expired).await?;
            if expired.is_empty() {
                return Ok(swept);
            }
            swept += expired.len();
            let removed = self.store.write(move |tx| {
                for (id, _) in &expired {
                    let Some(record) = project_resources::find::<ChatCompletionRecord>(tx, *id)? else { continue };
                    quotas::charge(tx, record.project, now, QuotaKind::Response, -1, -signed(record.bytes))?;
                    stored::remove(tx, CompletionId::from_bytes(*id), &record)?;
                }
                Ok(())
            });
            removed.await?;
        }
    }
}

/// Checks the metadata of a completion, a JSON object.
pub fn check_metadata(json: Option<&str>) -> Result<()> {
    validation::metadata(json)
}

/// Finds a completion that the caller may use.
fn find(tx: &impl Reader, access: &Access, id: CompletionId) -> Result<ChatCompletionRecord> {
    let record: Option<ChatCompletionRecord> = project_resources::find(tx, id.to_bytes())?;
    let record = record.ok_or_else(|| {
        let text = format!(
            "No chat completion '{id}' exists. It was created without store: true, or it was deleted, or its 30 days are over."
        );
        Error::new(Code::NotFound, text)
    })?;
    access.require(record.project, Scope::Inference)?;
    Ok(record)
}

fn too_many(last: Option<CompletionId>) -> Error {
    let last = last.map(|id| id.to_string()).unwrap_or_default();
    let text = format!(
        "Too few of the next {MAX_FILTERED} completions match 'model' and 'metadata' to fill a page. Send after={last} to look at later ones, or a smaller limit."
    );
    Error::invalid("metadata", text)
}

fn bytes_of(metadata: Option<&str>) -> u64 {
    metadata.map_or(0, |text| text.len() as u64)
}
