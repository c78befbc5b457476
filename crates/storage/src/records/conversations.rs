//! Stored conversations, with messages in separate rows, so that an append writes only new messages.
//!
//! Rows are numbered in the order of the transcript. A number is never used again while the conversation exists, so
//! rows may have gaps, and what refers to a row never refers to another message.
//!
//! The JSON of a message is stored as text. A client gets back exactly what it sent, even if messages have new fields
//! in the future.

use serde::{Deserialize, Serialize};

use super::project_resources::{ProjectResource, ResourceKind};
use crate::codec::{self, Record};
use crate::error::Result;
use crate::ids::{ConversationId, ProjectId};
use crate::tables::{CONVERSATIONS, MESSAGES, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConversationRecord {
    pub project: ProjectId,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    /// Incremented by every write, starting at 1.
    pub version: u64,
    /// Number of messages.
    pub messages: u32,
    /// The row of the first message; `next_row` if there is none.
    pub first_row: u32,
    /// The row that the next message gets.
    pub next_row: u32,
    /// JSON bytes of messages and metadata, for the quota.
    pub bytes: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Record for ConversationRecord {
    const TABLE: Table = CONVERSATIONS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
}

impl ProjectResource for ConversationRecord {
    const KIND: ResourceKind = ResourceKind::Conversation;

    fn project(&self) -> ProjectId {
        self.project
    }
}

#[derive(Serialize, Deserialize)]
pub(crate) struct MessageRecord {
    /// The message's JSON.
    pub json: String,
}

impl Record for MessageRecord {
    const TABLE: Table = MESSAGES;
    const VERSION: u8 = 1;
}

/// A message with its row.
pub type Row = (u32, String);

/// The transcript, in order: the row and JSON of each message.
pub fn rows(tx: &impl Reader, id: ConversationId, record: &ConversationRecord) -> Result<Vec<Row>> {
    let found = tx.newest::<MessageRecord>(&id.to_bytes(), None, usize::MAX)?;
    let row = |(key, row): (Vec<u8>, MessageRecord)| Ok((row_of(&key)?, row.json));
    let rows = found.into_iter().rev().map(row).collect::<Result<Vec<Row>>>()?;
    let first = rows.first().map_or(record.next_row, |(row, _)| *row);
    let is_last_valid = rows.last().is_none_or(|(row, _)| *row < record.next_row);
    if rows.len() as u64 != u64::from(record.messages) || first != record.first_row || !is_last_valid {
        let reason = format!("{id} has {} of {} messages, or other rows", rows.len(), record.messages);
        return Err(codec::inconsistent(reason));
    }
    Ok(rows)
}

/// The transcript, in order: the JSON of each message.
pub fn messages(tx: &impl Reader, id: ConversationId, record: &ConversationRecord) -> Result<Vec<String>> {
    Ok(rows(tx, id, record)?.into_iter().map(|(_, json)| json).collect())
}

/// The JSON of the message in a row, if the row is not a gap.
pub fn message(tx: &impl Reader, id: ConversationId, row: u32) -> Result<Option<String>> {
    Ok(tx.get::<MessageRecord>(&row_key(id, row))?.map(|row| row.json))
}

/// The row of the first message; `None` if there is none. Visits all rows.
pub fn first_row(tx: &impl Reader, id: ConversationId) -> Result<Option<u32>> {
    Ok(row_numbers(tx, id, u32::MAX)?.into_iter().last())
}

/// Writes messages from row `first` on.
pub fn put_messages(tx: &WriteTx, id: ConversationId, first: u32, messages: &[String]) -> Result<()> {
    let mut rows = (first..).zip(messages);
    rows.try_for_each(|(row, json)| tx.put(&row_key(id, row), &MessageRecord { json: json.clone() }))
}

/// Removes the message in a row.
pub fn remove_message(tx: &WriteTx, id: ConversationId, row: u32) -> Result<()> {
    tx.remove::<MessageRecord>(&row_key(id, row))
}

/// Removes all messages in rows below `end`.
pub fn remove_messages_below(tx: &WriteTx, id: ConversationId, end: u32) -> Result<()> {
    row_numbers(tx, id, end)?.into_iter().try_for_each(|row| remove_message(tx, id, row))
}

/// The rows below `end`, the last one first.
fn row_numbers(tx: &impl Reader, id: ConversationId, end: u32) -> Result<Vec<u32>> {
    let keys = tx.keys(MESSAGES, &id.to_bytes(), Some(&row_key(id, end)), None)?;
    keys.iter().map(|key| row_of(key)).collect()
}

fn row_key(id: ConversationId, row: u32) -> Vec<u8> {
    [&id.to_bytes()[..], &row.to_be_bytes()].concat()
}

/// The row in the key of a message.
pub(crate) fn row_of(key: &[u8]) -> Result<u32> {
    let row = key.get(16..).and_then(|row| row.try_into().ok()).map(u32::from_be_bytes);
    row.ok_or_else(|| codec::inconsistent("a message has a malformed key"))
}
