//! Stored chat completions. Ids sort by time, so the table itself is the index by age.

use serde::{Deserialize, Serialize};

use super::project_resources::{self, ProjectResource, ResourceKind};
use crate::codec::{self, Record};
use crate::error::Result;
use crate::ids::{CompletionId, ProjectId};
use crate::tables::{CHAT_COMPLETION_CONTENTS, CHAT_COMPLETIONS, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChatCompletionRecord {
    pub project: ProjectId,
    /// The ID of the model.
    pub model: String,
    /// A JSON object with texts, if there is one.
    pub metadata: Option<String>,
    /// Bytes of its content and metadata, for the quota.
    pub bytes: u64,
    pub created_at: Timestamp,
}

impl Record for ChatCompletionRecord {
    const TABLE: Table = CHAT_COMPLETIONS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
}

impl ProjectResource for ChatCompletionRecord {
    const KIND: ResourceKind = ResourceKind::ChatCompletion;

    fn project(&self) -> ProjectId {
        self.project
    }
}

/// The content of a chat completion.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChatCompletionContentRecord {
    /// The JSON of each message of its request.
    pub messages: Vec<String>,
    /// The JSON of the completion, without its id and metadata.
    pub completion: String,
}

impl Record for ChatCompletionContentRecord {
    const TABLE: Table = CHAT_COMPLETION_CONTENTS;
    const VERSION: u8 = 1;
}

impl ChatCompletionContentRecord {
    /// Bytes of JSON.
    pub fn bytes(&self) -> u64 {
        self.messages.iter().chain([&self.completion]).map(|text| text.len() as u64).sum()
    }
}

/// Stores a completion with its content.
pub fn insert(
    tx: &WriteTx,
    id: CompletionId,
    record: &ChatCompletionRecord,
    content: &ChatCompletionContentRecord,
) -> Result<()> {
    project_resources::insert(tx, id.to_bytes(), record)?;
    tx.put(&id.to_bytes(), content)
}

/// The content of an existing completion.
pub fn content(tx: &impl Reader, id: CompletionId) -> Result<ChatCompletionContentRecord> {
    let found = tx.get(&id.to_bytes())?;
    found.ok_or_else(|| codec::inconsistent(format!("{id} has no content")))
}

/// Removes a completion and its content.
pub fn remove(tx: &WriteTx, id: CompletionId, record: &ChatCompletionRecord) -> Result<()> {
    project_resources::remove(tx, id.to_bytes(), record)?;
    tx.remove::<ChatCompletionContentRecord>(&id.to_bytes())
}
