//! Stored files: a record each, with content in chunks.
//!
//! Chunks are written while they arrive, before the file exists. Until then, and after a file is removed, a mark
//! records that they belong to no file. After a crash, orphaned chunks are found by these marks.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::codec::Record;
use super::project_resources::{self, ProjectResource, ResourceKind};
use super::record_serde;
use super::tables::{FILE_CHUNKS, FILES, ORPHANED_CHUNKS, Table};
use super::transaction::{Reader, WriteTx};
use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::{FileId, ProjectId};

/// Size of every chunk but the last, slightly below a power of two, because redb allocates a power of two of pages for
/// a value with its key and header.
pub const CHUNK_BYTES: usize = (512 << 10) - 512;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FileRecord {
    #[serde(with = "record_serde::project_id")]
    pub project: ProjectId,
    /// A label; never a path.
    pub name: String,
    /// The service's purpose as a number.
    pub purpose: u8,
    pub bytes: u64,
    pub chunks: u32,
    /// Number of training examples, and their format as a number.
    pub examples: u64,
    pub form: u8,
    pub sha256: [u8; 32],
    #[serde(with = "record_serde::time")]
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

/// A chunk of a file's content.
#[derive(Serialize, Deserialize)]
pub struct Chunk(#[serde(with = "record_serde::bytes")] pub Vec<u8>);

impl Record for Chunk {
    const TABLE: Table = FILE_CHUNKS;
    const VERSION: u8 = 1;
}

/// Marks chunks that belong to no file.
#[derive(Serialize, Deserialize)]
pub(super) struct OrphanedChunks;

impl Record for OrphanedChunks {
    const TABLE: Table = ORPHANED_CHUNKS;
    const VERSION: u8 = 1;
}

/// Stores a chunk of the future file `id`.
pub fn put_chunk(tx: &WriteTx, id: FileId, index: u32, chunk: &Chunk) -> Result<()> {
    if index == 0 {
        tx.put(&id.to_bytes(), &OrphanedChunks)?;
    }
    tx.put(&key(id, index), chunk)
}

pub fn chunk(tx: &impl Reader, id: FileId, index: u32) -> Result<Option<Vec<u8>>> {
    Ok(tx.get(&key(id, index))?.map(|Chunk(bytes)| bytes))
}

/// Creates the file of the chunks under `id`.
pub fn insert(tx: &WriteTx, id: FileId, record: &FileRecord) -> Result<()> {
    if tx.get::<OrphanedChunks>(&id.to_bytes())?.is_none() {
        return Err(Error::internal("the chunks of an upload are gone"));
    }
    tx.remove::<OrphanedChunks>(&id.to_bytes())?;
    project_resources::insert(tx, id.to_bytes(), record)
}

/// Removes a file; [`sweep`] removes its chunks.
pub fn remove(tx: &WriteTx, id: FileId, record: &FileRecord) -> Result<()> {
    tx.put(&id.to_bytes(), &OrphanedChunks)?;
    project_resources::remove(tx, id.to_bytes(), record)
}

/// Every id whose chunks belong to no file.
pub fn orphaned_chunks(tx: &impl Reader) -> Result<Vec<FileId>> {
    let mut found = Vec::new();
    tx.each(&[], None, &mut |key, OrphanedChunks| {
        found.extend(key.try_into().map(FileId::from_bytes));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Removes up to `limit` chunks that belong to no file. Returns whether none is left. Chunks that belong to a file by
/// now are kept.
pub fn sweep(tx: &WriteTx, id: FileId, limit: usize) -> Result<bool> {
    if tx.get::<OrphanedChunks>(&id.to_bytes())?.is_none() {
        return Ok(true);
    }
    let mut found = Vec::new();
    tx.visit(FILE_CHUNKS, &id.to_bytes(), None, &mut |key, _| {
        found.push(key.to_vec());
        Ok(if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    found.iter().try_for_each(|key| tx.remove::<Chunk>(key))?;
    let done = found.len() < limit;
    if done {
        tx.remove::<OrphanedChunks>(&id.to_bytes())?;
    }
    Ok(done)
}

fn key(id: FileId, index: u32) -> Vec<u8> {
    [&id.to_bytes()[..], &index.to_be_bytes()].concat()
}
