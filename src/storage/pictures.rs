//! Pictures that were painted and are kept for a while, to be fetched by a link: a record each, their
//! content in chunks, and an index by the time when they go.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::codec::{self, Record};
use super::fields;
use super::tables::{PICTURE_CHUNKS, PICTURES, PICTURES_BY_END, Table};
use super::transaction::{Look, WriteTx};
use super::uploads::CHUNK;
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::{PictureId, ProjectId};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PictureRecord {
    #[serde(with = "fields::project_id")]
    pub project: ProjectId,
    /// Number of the service's format.
    pub format: u8,
    pub bytes: u64,
    pub chunks: u32,
    /// When it is removed.
    #[serde(with = "fields::time")]
    pub ends_at: Timestamp,
}

impl Record for PictureRecord {
    const TABLE: Table = PICTURES;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
pub(super) struct PictureChunk(#[serde(with = "fields::bytes")] Vec<u8>);

impl Record for PictureChunk {
    const TABLE: Table = PICTURE_CHUNKS;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
pub(super) struct PictureEnd;

impl Record for PictureEnd {
    const TABLE: Table = PICTURES_BY_END;
    const VERSION: u8 = 1;
}

/// Stores a picture with all its content; returns its record.
pub fn insert(
    tx: &WriteTx,
    id: PictureId,
    (project, format): (ProjectId, u8),
    content: &[u8],
    ends_at: Timestamp,
) -> Result<PictureRecord> {
    let mut chunks = 0;
    for piece in content.chunks(CHUNK) {
        tx.put(&place(id, chunks), &PictureChunk(piece.to_vec()))?;
        chunks += 1;
    }
    let record = PictureRecord { project, format, bytes: content.len() as u64, chunks, ends_at };
    tx.put(&id.to_bytes(), &record)?;
    tx.put(&end(ends_at, &id.to_bytes()), &PictureEnd)?;
    Ok(record)
}

pub fn find(tx: &impl Look, id: PictureId) -> Result<Option<PictureRecord>> {
    tx.get(&id.to_bytes())
}

pub fn chunk(tx: &impl Look, id: PictureId, at: u32) -> Result<Option<Vec<u8>>> {
    Ok(tx.get(&place(id, at))?.map(|PictureChunk(bytes)| bytes))
}

/// Up to `limit` pictures whose time is over, those that ended first.
pub fn ended(tx: &impl Look, now: Timestamp, limit: usize) -> Result<Vec<PictureId>> {
    let mut found = Vec::new();
    tx.each(&[], None, &mut |key, PictureEnd| {
        let (ends_at, id) = end_of(key)?;
        if ends_at > now || found.len() == limit {
            return Ok(ControlFlow::Break(()));
        }
        found.push(id);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}

/// Removes a picture with its content.
pub fn remove(tx: &WriteTx, id: PictureId, record: &PictureRecord) -> Result<()> {
    (0..record.chunks).try_for_each(|at| tx.remove::<PictureChunk>(&place(id, at)))?;
    tx.remove::<PictureEnd>(&end(record.ends_at, &id.to_bytes()))?;
    tx.remove::<PictureRecord>(&id.to_bytes())
}

pub(super) fn place(id: PictureId, at: u32) -> Vec<u8> {
    [&id.to_bytes()[..], &at.to_be_bytes()].concat()
}

/// The complement sorts the oldest last, where walks begin.
pub(super) fn end(at: Timestamp, id: &[u8]) -> Vec<u8> {
    [&(!at.as_millis()).to_be_bytes()[..], id].concat()
}

pub(super) fn end_of(key: &[u8]) -> Result<(Timestamp, PictureId)> {
    let (at, id) = key.split_at_checked(8).unwrap_or_default();
    match (at.try_into().map(i64::from_be_bytes), id.try_into().map(PictureId::from_bytes)) {
        (Ok(at), Ok(id)) => Ok((Timestamp::from_millis(!at), id)),
        _ => Err(codec::inconsistent("a malformed key in the index of pictures by their end")),
    }
}
