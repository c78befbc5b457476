//! Stored files: a record each, with [content](crate::content_chunks) under the same id.

use serde::{Deserialize, Serialize};

use super::content_chunks;
use super::project_resources::{self, ProjectResource, ResourceKind};
use crate::codec::Record;
use crate::error::Result;
use crate::ids::{FileId, ProjectId};
use crate::tables::{FILES, Table};
use crate::transaction::WriteTx;
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileRecord {
    pub project: ProjectId,
    /// A label; never a path.
    pub name: String,
    /// The service's purpose as a number.
    pub purpose: u8,
    pub bytes: u64,
    pub chunks: u32,
    /// Number of training examples, and their format as a number.
    pub examples: u64,
    pub example_format: u8,
    pub sha256: [u8; 32],
    pub created_at: Timestamp,
}

impl Record for FileRecord {
    const TABLE: Table = FILES;
    const VERSION: u8 = 1;
}

impl ProjectResource for FileRecord {
    const KIND: ResourceKind = ResourceKind::File;

    fn project(&self) -> ProjectId {
        self.project
    }
}

/// Creates the file whose content is under `id`.
pub fn insert(tx: &WriteTx, id: FileId, record: &FileRecord) -> Result<()> {
    content_chunks::claim(tx, id)?;
    project_resources::insert(tx, id.to_bytes(), record)
}

/// Removes a file. Its chunks are removed by [`content_chunks::sweep`].
pub fn remove(tx: &WriteTx, id: FileId, record: &FileRecord) -> Result<()> {
    content_chunks::release(tx, id)?;
    project_resources::remove(tx, id.to_bytes(), record)
}
