//! Stored files: a record each, with [content](crate::content_chunks) under the same id.

use outpost_common::clock_rng::Timestamp;
use outpost_common::display::one_of;
use serde::{Deserialize, Serialize};

use super::content_chunks;
use super::project_resources::{self, ProjectResource, ResourceKind};
use crate::codec::Record;
use crate::error::{Error, Result};
use crate::ids::{FileId, ProjectId};
use crate::numbered::numbered;
use crate::tables::{FILES, Table};
use crate::transaction::WriteTx;

numbered! {
    /// The purpose of a file.
    Purpose else BatchOutput {
        FineTune = 1 "fine-tune",
        /// The requests of a batch.
        Batch = 2 "batch",
        /// The results of a batch. The server reads no file of this purpose.
        BatchOutput = 3 "batch_output",
    }
}

impl Purpose {
    /// Parses the name of any purpose.
    pub fn from_name(name: &str) -> Result<Self> {
        Self::one_of(Self::ALL, name)
    }

    /// Parses the name of a purpose that files are uploaded for.
    pub fn of_upload(name: &str) -> Result<Self> {
        Self::one_of(&[Self::FineTune, Self::Batch], name)
    }

    fn one_of(known: &[Purpose], name: &str) -> Result<Self> {
        known.iter().copied().find(|purpose| purpose.as_str() == name).ok_or_else(|| {
            let shown: String = name.chars().take(40).collect();
            let names: Vec<&str> = known.iter().map(|purpose| purpose.as_str()).collect();
            let text = format!("'purpose' is '{shown}'; it must be {}.", one_of(&names));
            Error::invalid("purpose", text)
        })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileRecord {
    pub project: ProjectId,
    /// A label; never a path.
    pub name: String,
    pub purpose: Purpose,
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
