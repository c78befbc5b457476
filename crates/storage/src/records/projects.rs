//! Stored projects.

use serde::{Deserialize, Serialize};

use crate::codec::Record;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::tables::{PROJECTS, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectRecord {
    pub name: String,
    pub environment: Option<String>,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub archived_at: Option<Timestamp>,
}

impl Record for ProjectRecord {
    const TABLE: Table = PROJECTS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
    const WATCHED: bool = true;
}

pub fn find(tx: &impl Reader, id: ProjectId) -> Result<Option<ProjectRecord>> {
    tx.get(&id.to_bytes())
}

pub fn put(tx: &WriteTx, id: ProjectId, record: &ProjectRecord) -> Result<()> {
    tx.put(&id.to_bytes(), record)
}

/// Up to `limit` projects older than `before`, newest first.
pub fn newest(tx: &impl Reader, before: Option<[u8; 16]>, limit: usize) -> Result<Vec<(ProjectId, ProjectRecord)>> {
    let rows = tx.newest(&[], before.as_ref().map(<[u8; 16]>::as_slice), limit)?;
    Ok(rows
        .into_iter()
        .filter_map(|(key, record)| Some((ProjectId::from_bytes(key.try_into().ok()?), record)))
        .collect())
}
