//! Single messages of conversations, by their rows.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Content, Conversation, ConversationRecord, Conversations, append, find, fits, store_next_version, stored};
use crate::error::Result;
use crate::ids::ConversationId;
use crate::service::access::Access;
use crate::service::access::authorize;
use crate::service::limited_read::LimitedRead;
use crate::service::validation::message_validation::{self, UnknownFields};
use crate::service::writes::precondition::Precondition;
use crate::storage::WriteTx;
use crate::storage::conversations::Row;

/// A conversation to which messages were appended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Appended {
    pub conversation: Conversation,
    /// The row of the first appended message; the others have the rows that follow.
    pub first_row: u32,
}

impl Conversations {
    /// The transcript, in order: the row and JSON of each message. They may have `limit` bytes.
    pub async fn rows(&self, access: &Access, id: ConversationId, limit: u64) -> Result<LimitedRead<Vec<Row>>> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, id)?;
            if record.bytes > limit {
                return Ok(LimitedRead::TooLarge { bytes: record.bytes });
            }
            stored::rows(tx, id, &record).map(LimitedRead::Read)
        });
        read.await
    }

    /// The JSON of the message in a row, if there is one. The conversation may have `limit` bytes.
    pub async fn message(
        &self,
        access: &Access,
        id: ConversationId,
        row: u32,
        limit: u64,
    ) -> Result<LimitedRead<Option<String>>> {
        let access = access.clone();
        let read = self.store.read(move |tx| {
            let record = find(tx, &access, id)?;
            if record.bytes > limit {
                return Ok(LimitedRead::TooLarge { bytes: record.bytes });
            }
            stored::message(tx, id, row).map(LimitedRead::Read)
        });
        read.await
    }

    /// Appends messages, if there are any, and returns their rows.
    pub async fn append_rows(
        &self,
        access: &Access,
        id: ConversationId,
        messages: Vec<String>,
        precondition: Precondition,
    ) -> Result<Appended> {
        let now = self.clock_rng.now();
        let added = Content::check(messages, None)?;
        let entry = self.audit_entry(access, "conversation.appended");
        let permit = authorize::manage_owner::<ConversationRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            if added.messages.is_empty() {
                let first_row = record.next_row;
                return Ok(Appended { conversation: Conversation::new(id, record), first_row });
            }
            append(tx, &entry, id, record, &added, now)
        });
        written.await
    }

    /// Deletes a part of the message in a row. `without_item` returns the rest of the message, or `None` to remove the row.
    /// It gets `None` if the row is empty, and must then return an error.
    pub async fn delete_item(
        &self,
        access: &Access,
        id: ConversationId,
        row: u32,
        precondition: Precondition,
        without_item: impl Fn(Option<&str>) -> Result<Option<String>> + Send + 'static,
    ) -> Result<Conversation> {
        let now = self.clock_rng.now();
        let entry = self.audit_entry(access, "conversation.item_deleted");
        let permit = authorize::manage_owner::<ConversationRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            precondition.check(Some(record.version))?;
            let old = stored::message(tx, id, row)?;
            let new = without_item(old.as_deref())?;
            let without = record.bytes.saturating_sub(old.map_or(0, |json| json.len() as u64));
            let next = match new {
                Some(json) => replace(tx, id, row, &record, without, json)?,
                None => remove(tx, id, row, &record, without)?,
            };
            let next = store_next_version(tx, id, &record, next, now)?;
            entry.write(tx, next.project, id, &json!({ "version": next.version }))?;
            Ok(Conversation::new(id, next))
        });
        written.await
    }
}

/// Writes another message into a row. `without`: bytes of the conversation without the old one.
fn replace(
    tx: &WriteTx,
    id: ConversationId,
    row: u32,
    record: &ConversationRecord,
    without: u64,
    json: String,
) -> Result<ConversationRecord> {
    message_validation::parse("message", &json, UnknownFields::Reject)?;
    let bytes = without + json.len() as u64;
    fits(record.messages as usize, bytes, "message")?;
    stored::put_messages(tx, id, row, &[json])?;
    Ok(ConversationRecord { bytes, ..record.clone() })
}

/// Removes the message in a row. `bytes`: of the conversation without it.
fn remove(
    tx: &WriteTx,
    id: ConversationId,
    row: u32,
    record: &ConversationRecord,
    bytes: u64,
) -> Result<ConversationRecord> {
    stored::remove_message(tx, id, row)?;
    let first_row = match row == record.first_row {
        true => stored::first_row(tx, id)?.unwrap_or(record.next_row),
        false => record.first_row,
    };
    Ok(ConversationRecord { bytes, first_row, messages: record.messages.saturating_sub(1), ..record.clone() })
}
