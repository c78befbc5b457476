//! Stored conversations, with messages in separate rows, so that an append writes only new messages.

use serde::{Deserialize, Serialize};

use super::codec::{self, Record};
use super::project_resources::{ProjectResource, ResourceKind};
use super::record_serde;
use super::tables::{CONVERSATIONS, MESSAGES, Table};
use super::transaction::{Reader, WriteTx};
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::{ConversationId, ProjectId};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConversationRecord {
    #[serde(with = "record_serde::project_id")]
    pub project: ProjectId,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    /// Incremented by every write, starting at 1.
    pub version: u64,
    /// Number of messages; their indices are 0 to `messages - 1`.
    pub messages: u32,
    /// JSON bytes of messages and metadata, for the quota.
    pub bytes: u64,
    #[serde(with = "record_serde::time")]
    pub created_at: Timestamp,
    #[serde(with = "record_serde::time")]
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
pub(super) struct MessageRecord {
    /// The message's JSON.
    pub json: String,
}

impl Record for MessageRecord {
    const TABLE: Table = MESSAGES;
    const VERSION: u8 = 1;
}

/// The transcript, in order: the JSON of each message.
pub fn messages(tx: &impl Reader, id: ConversationId, record: &ConversationRecord) -> Result<Vec<String>> {
    let rows = tx.newest::<MessageRecord>(&id.to_bytes(), None, usize::MAX)?;
    let whole = (0..record.messages).rev().map(|at| row_key(id, at)).eq(rows.iter().map(|(key, _)| key.clone()));
    if !whole {
        return Err(codec::inconsistent(format!("{id} has {} of {} messages, or holes", rows.len(), record.messages)));
    }
    Ok(rows.into_iter().rev().map(|(_, row)| row.json).collect())
}

/// The JSON of the message at an existing index.
pub fn message(tx: &impl Reader, id: ConversationId, at: u32) -> Result<String> {
    let row = tx.get::<MessageRecord>(&row_key(id, at))?;
    row.map(|row| row.json).ok_or_else(|| codec::inconsistent(format!("{id} lacks its message {at}")))
}

/// Writes messages from index `first`.
pub fn put_messages(tx: &WriteTx, id: ConversationId, first: u32, messages: &[String]) -> Result<()> {
    let mut rows = (first..).zip(messages);
    rows.try_for_each(|(at, json)| tx.put(&row_key(id, at), &MessageRecord { json: json.clone() }))
}

/// Removes the messages `first..end`.
pub fn remove_messages(tx: &WriteTx, id: ConversationId, first: u32, end: u32) -> Result<()> {
    (first..end).try_for_each(|at| tx.remove::<MessageRecord>(&row_key(id, at)))
}

fn row_key(id: ConversationId, at: u32) -> Vec<u8> {
    [&id.to_bytes()[..], &at.to_be_bytes()].concat()
}
