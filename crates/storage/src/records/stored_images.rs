//! Generated images stored for a limited time: a record each, content in chunks, and an index by expiry.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::content_chunks::{CHUNK_BYTES, bytes};
use crate::codec::{self, Record};
use crate::error::Result;
use crate::ids::{ProjectId, StoredImageId};
use crate::tables::{STORED_IMAGE_CHUNKS, STORED_IMAGES, STORED_IMAGES_BY_EXPIRY, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoredImageRecord {
    pub project: ProjectId,
    /// The service's format as a number.
    pub format: u8,
    pub bytes: u64,
    pub chunks: u32,
    /// When the image is removed.
    pub expires_at: Timestamp,
}

impl Record for StoredImageRecord {
    const TABLE: Table = STORED_IMAGES;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ImageChunk(#[serde(with = "bytes")] Vec<u8>);

impl Record for ImageChunk {
    const TABLE: Table = STORED_IMAGE_CHUNKS;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
pub(crate) struct ExpiryIndexRow;

impl Record for ExpiryIndexRow {
    const TABLE: Table = STORED_IMAGES_BY_EXPIRY;
    const VERSION: u8 = 1;
}

/// Stores an image with its content; returns its record.
pub fn insert(
    tx: &WriteTx,
    id: StoredImageId,
    (project, format): (ProjectId, u8),
    content: &[u8],
    expires_at: Timestamp,
) -> Result<StoredImageRecord> {
    let mut chunks = 0;
    for chunk in content.chunks(CHUNK_BYTES) {
        tx.put(&row_key(id, chunks), &ImageChunk(chunk.to_vec()))?;
        chunks += 1;
    }
    let record = StoredImageRecord { project, format, bytes: content.len() as u64, chunks, expires_at };
    tx.put(&id.to_bytes(), &record)?;
    tx.put(&expiry_key(expires_at, &id.to_bytes()), &ExpiryIndexRow)?;
    Ok(record)
}

pub fn find(tx: &impl Reader, id: StoredImageId) -> Result<Option<StoredImageRecord>> {
    tx.get(&id.to_bytes())
}

pub fn chunk(tx: &impl Reader, id: StoredImageId, at: u32) -> Result<Option<Vec<u8>>> {
    Ok(tx.get(&row_key(id, at))?.map(|ImageChunk(bytes)| bytes))
}

/// Up to `limit` expired images, earliest first.
pub fn expired(tx: &impl Reader, now: Timestamp, limit: usize) -> Result<Vec<StoredImageId>> {
    let mut found = Vec::new();
    tx.each(&[], None, &mut |key, ExpiryIndexRow| {
        let (expires_at, id) = parse_expiry_key(key)?;
        if expires_at > now || found.len() == limit {
            return Ok(ControlFlow::Break(()));
        }
        found.push(id);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Removes an image with its content.
pub fn remove(tx: &WriteTx, id: StoredImageId, record: &StoredImageRecord) -> Result<()> {
    (0..record.chunks).try_for_each(|at| tx.remove::<ImageChunk>(&row_key(id, at)))?;
    tx.remove::<ExpiryIndexRow>(&expiry_key(record.expires_at, &id.to_bytes()))?;
    tx.remove::<StoredImageRecord>(&id.to_bytes())
}

pub(crate) fn row_key(id: StoredImageId, at: u32) -> Vec<u8> {
    [&id.to_bytes()[..], &at.to_be_bytes()].concat()
}

/// The complement sorts the oldest last, where iteration begins.
pub(crate) fn expiry_key(at: Timestamp, id: &[u8]) -> Vec<u8> {
    [&(!at.as_millis()).to_be_bytes()[..], id].concat()
}

pub(crate) fn parse_expiry_key(key: &[u8]) -> Result<(Timestamp, StoredImageId)> {
    let (at, id) = key.split_at_checked(8).unwrap_or_default();
    match (at.try_into().map(i64::from_be_bytes), id.try_into().map(StoredImageId::from_bytes)) {
        (Ok(at), Ok(id)) => Ok((Timestamp::from_millis(!at), id)),
        _ => Err(codec::inconsistent("a malformed key in the index of stored images by expiry")),
    }
}
