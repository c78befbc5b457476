//! Content that is too large for a record, in chunks: uploaded files, and what a training saves.
//!
//! Chunks are written before the record that refers to them. Until then, and after the record is removed, a mark records
//! that they belong to nothing. After a crash, orphaned chunks are found by these marks. If nodes share the store, a
//! [work lease](super::work_leases) beside the mark tells which process writes or removes the chunks.
//!
//! Chunks without an owner could be found by comparing two tables, but that reads every chunk at each start; a mark
//! costs next to nothing and is exact. Chunks are a little smaller than 512 KiB, because redb rounds a value with its
//! key and header up to a power of two of pages.

use serde::{Deserialize, Serialize};

use super::work_leases::{self, Work};
use crate::cluster::Peers;
use crate::codec::Record;
use crate::error::{Error, Result};
use crate::ids::FileId;
use crate::tables::{CONTENT_CHUNKS, ORPHANED_CHUNKS, Table};
use crate::transaction::{Reader, WriteTx};

/// Number of chunks that are read at once.
const CHUNKS_AT_ONCE: usize = 8;
/// Size of every chunk but the last, slightly below a power of two, because redb allocates a power of two of pages for
/// a value with its key and header.
pub const CHUNK_BYTES: usize = (512 << 10) - 512;

/// A chunk of content.
#[derive(Serialize, Deserialize)]
pub struct Chunk(#[serde(with = "bytes")] pub Vec<u8>);

impl Record for Chunk {
    const TABLE: Table = CONTENT_CHUNKS;
    const VERSION: u8 = 1;
}

/// Marks chunks that belong to nothing.
#[derive(Serialize, Deserialize)]
pub(crate) struct OrphanedChunks;

impl Record for OrphanedChunks {
    const TABLE: Table = ORPHANED_CHUNKS;
    const VERSION: u8 = 1;
}

/// Stores a chunk of the content `id`, which nothing refers to yet.
pub fn put(tx: &WriteTx, id: FileId, index: u32, chunk: &Chunk) -> Result<()> {
    if index == 0 {
        release(tx, id)?;
    } else {
        // Otherwise chunks could be left behind that no mark names.
        work_leases::require(tx, Work::Content(id))?;
    }
    tx.put(&key(id, index), chunk)
}

pub fn get(tx: &impl Reader, id: FileId, index: u32) -> Result<Option<Vec<u8>>> {
    Ok(tx.get(&key(id, index))?.map(|Chunk(bytes)| bytes))
}

/// The content of `chunks` chunks.
pub fn read(tx: &impl Reader, id: FileId, chunks: u32) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(chunks as usize * CHUNK_BYTES);
    let keys: Vec<_> = (0..chunks).map(|index| key(id, index)).collect();
    for keys in keys.chunks(CHUNKS_AT_ONCE) {
        for chunk in tx.get_all(keys)? {
            let Chunk(chunk) = chunk.ok_or_else(|| Error::not_found("content", id))?;
            bytes.extend(chunk);
        }
    }
    Ok(bytes)
}

/// Called in the transaction that stores a record which refers to the content.
pub fn claim(tx: &WriteTx, id: FileId) -> Result<()> {
    let (claimed, mark) = (work_leases::require(tx, Work::Content(id)), tx.get::<OrphanedChunks>(&id.to_bytes())?);
    claimed?;
    if mark.is_none() {
        return Err(Error::internal("the chunks of a content are gone"));
    }
    work_leases::release(tx, Work::Content(id))?;
    tx.remove::<OrphanedChunks>(&id.to_bytes())
}

/// Called in the transaction that removes the record which refers to the content; [`sweep`] removes the chunks.
pub fn release(tx: &WriteTx, id: FileId) -> Result<()> {
    work_leases::take(tx, Work::Content(id))?;
    tx.put(&id.to_bytes(), &OrphanedChunks)
}

/// Every id whose chunks belong to nothing, and are neither written nor removed by a live process.
pub fn orphaned(tx: &impl Reader, peers: &Peers) -> Result<Vec<FileId>> {
    let keys = tx.keys(ORPHANED_CHUNKS, &[], None, None)?;
    let mut ids = keys.into_iter().filter_map(|key| key.try_into().ok()).map(FileId::from_bytes).collect();
    work_leases::retain_free(tx, &mut ids, |id| Work::Content(*id), peers)?;
    Ok(ids)
}

/// Removes up to `limit` chunks that belong to nothing. Returns whether none is left. Chunks that belong to something by
/// now, or that another live process writes or removes, are kept.
pub fn sweep(tx: &WriteTx, id: FileId, limit: usize, peers: &Peers) -> Result<bool> {
    if tx.get::<OrphanedChunks>(&id.to_bytes())?.is_none()
        || !work_leases::claim(tx, Work::Content(id), |process| peers.is_alive(process))?
    {
        return Ok(true);
    }
    let found = tx.keys(CONTENT_CHUNKS, &id.to_bytes(), None, Some(limit))?;
    found.iter().try_for_each(|key| tx.remove::<Chunk>(key))?;
    let done = found.len() < limit;
    if done {
        work_leases::release(tx, Work::Content(id))?;
        tx.remove::<OrphanedChunks>(&id.to_bytes())?;
    }
    Ok(done)
}

fn key(id: FileId, index: u32) -> Vec<u8> {
    [&id.to_bytes()[..], &index.to_be_bytes()].concat()
}

/// Serialises bytes as one string rather than byte by byte.
pub(crate) mod bytes {
    use std::fmt;

    use serde::de::Visitor;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }

        deserializer.deserialize_byte_buf(Bytes)
    }
}
