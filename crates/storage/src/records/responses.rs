//! Stored responses of the Responses API. Each has only its own input and output; its record names the response that it
//! continues. Ids sort by time, so the table itself is the index by age.

use serde::{Deserialize, Serialize};

use super::project_resources::{self, ProjectResource, ResourceKind};
use super::response_steps;
use crate::codec::{self, Record};
use crate::error::Result;
use crate::ids::{KeyId, ProjectId, ResponseId};
use crate::tables::{OPEN_RESPONSES, RESPONSE_CONTENTS, RESPONSES, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResponseRecord {
    pub project: ProjectId,
    /// The id of the response that this one continues.
    pub previous: Option<[u8; 16]>,
    /// The number of responses from the beginning of the chain to this one.
    pub chain_length: u32,
    /// Bytes of the inputs and responses of the chain.
    pub chain_bytes: u64,
    /// Bytes of what is stored of it, for the quota: its input and response; its request while it is open; its steps after
    /// it has ended.
    pub bytes: u64,
    pub created_at: Timestamp,
}

impl Record for ResponseRecord {
    const TABLE: Table = RESPONSES;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
}

impl ProjectResource for ResponseRecord {
    const KIND: ResourceKind = ResourceKind::Response;

    fn project(&self) -> ProjectId {
        self.project
    }
}

/// The content of a response.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResponseContentRecord {
    /// The JSON of each item of its input.
    pub input: Vec<String>,
    /// The JSON of the response.
    pub response: String,
}

impl Record for ResponseContentRecord {
    const TABLE: Table = RESPONSE_CONTENTS;
    const VERSION: u8 = 1;
}

impl ResponseContentRecord {
    /// Bytes of JSON.
    pub fn bytes(&self) -> u64 {
        self.input.iter().chain([&self.response]).map(|text| text.len() as u64).sum()
    }
}

/// A response that is generated in the background and has not ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenResponseRecord {
    /// The key that created it, which it is metered for.
    pub key: KeyId,
    /// The JSON of its request, without the input.
    pub request: String,
    /// Set if its steps are stored.
    pub keeps_steps: bool,
}

impl Record for OpenResponseRecord {
    const TABLE: Table = OPEN_RESPONSES;
    const VERSION: u8 = 1;
}

/// Stores a response with its content.
pub fn insert(tx: &WriteTx, id: ResponseId, record: &ResponseRecord, content: &ResponseContentRecord) -> Result<()> {
    project_resources::insert(tx, id.to_bytes(), record)?;
    tx.put(&id.to_bytes(), content)
}

/// The content of an existing response.
pub fn content(tx: &impl Reader, id: ResponseId) -> Result<ResponseContentRecord> {
    let found = tx.get(&id.to_bytes())?;
    found.ok_or_else(|| codec::inconsistent(format!("{id} has no content")))
}

/// Replaces a response and its content.
pub fn replace(tx: &WriteTx, id: ResponseId, record: &ResponseRecord, content: &ResponseContentRecord) -> Result<()> {
    project_resources::replace(tx, id.to_bytes(), record)?;
    tx.put(&id.to_bytes(), content)
}

/// Removes a response with all that is stored of it.
pub fn remove(tx: &WriteTx, id: ResponseId, record: &ResponseRecord) -> Result<()> {
    project_resources::remove(tx, id.to_bytes(), record)?;
    tx.remove::<ResponseContentRecord>(&id.to_bytes())?;
    close(tx, id)?;
    response_steps::remove(tx, id)
}

/// Marks an existing response as open.
pub fn put_open(tx: &WriteTx, id: ResponseId, open: &OpenResponseRecord) -> Result<()> {
    tx.put(&id.to_bytes(), open)
}

/// The request of a response that is open.
pub fn find_open(tx: &impl Reader, id: ResponseId) -> Result<Option<OpenResponseRecord>> {
    tx.get(&id.to_bytes())
}

pub fn is_open(tx: &impl Reader, id: ResponseId) -> Result<bool> {
    Ok(tx.raw(OPEN_RESPONSES, &id.to_bytes())?.is_some())
}

/// Marks a response as ended.
pub fn close(tx: &WriteTx, id: ResponseId) -> Result<()> {
    tx.remove::<OpenResponseRecord>(&id.to_bytes())?;
    response_steps::remove_generation(tx, id)
}

/// Every open response, the oldest first.
pub fn open(tx: &impl Reader) -> Result<Vec<(ResponseId, ResponseRecord)>> {
    let found = project_resources::indexed(tx, OPEN_RESPONSES)?;
    Ok(found.into_iter().map(|(id, record)| (ResponseId::from_bytes(id), record)).collect())
}

/// Up to `limit` responses with an id below `before`, the largest id first.
pub fn below(tx: &impl Reader, before: ResponseId, limit: usize) -> Result<Vec<(ResponseId, ResponseRecord)>> {
    let found = project_resources::below(tx, before.to_bytes(), limit)?;
    Ok(found.into_iter().map(|(id, record)| (ResponseId::from_bytes(id), record)).collect())
}
