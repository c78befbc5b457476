//! Stored responses of the Responses API. Each has only its own input and output; its record names the response that it
//! continues. Ids sort by time, so the table itself is the index by age.

use serde::{Deserialize, Serialize};

use super::codec::{self, Record};
use super::project_resources::{self, ProjectResource, ResourceKind};
use super::record_serde;
use super::tables::{RESPONSE_CONTENTS, RESPONSES, Table};
use super::transaction::{Reader, WriteTx};
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::{ProjectId, ResponseId};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResponseRecord {
    #[serde(with = "record_serde::project_id")]
    pub project: ProjectId,
    /// The id of the response that this one continues.
    pub previous: Option<[u8; 16]>,
    /// The number of responses from the beginning of the chain to this one.
    pub chain_length: u32,
    /// Bytes of the inputs and responses of the chain.
    pub chain_bytes: u64,
    /// Bytes of its own input and response, for the quota.
    pub bytes: u64,
    #[serde(with = "record_serde::time")]
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

/// Removes a response with its content.
pub fn remove(tx: &WriteTx, id: ResponseId, record: &ResponseRecord) -> Result<()> {
    project_resources::remove(tx, id.to_bytes(), record)?;
    tx.remove::<ResponseContentRecord>(&id.to_bytes())
}

/// Up to `limit` responses with an id below `before`, the largest id first.
pub fn below(tx: &impl Reader, before: ResponseId, limit: usize) -> Result<Vec<(ResponseId, ResponseRecord)>> {
    let rows = tx.newest::<ResponseRecord>(&[], Some(&before.to_bytes()), limit)?;
    let with_id = |(key, record): (Vec<u8>, _)| match key.try_into() {
        Ok(id) => Ok((ResponseId::from_bytes(id), record)),
        Err(_) => Err(codec::inconsistent("a response has a malformed id")),
    };
    rows.into_iter().map(with_id).collect()
}
