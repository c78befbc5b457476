//! Stored API keys and the index by project.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::codec::{self, Record};
use super::pepper::Digest;
use super::record_serde;
use super::tables::{KEY_USES, KEYS, KEYS_BY_PROJECT, Table};
use super::transaction::{Reader, WriteTx};
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::{KeyId, ProjectId};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyRecord {
    #[serde(with = "record_serde::project_id")]
    pub project: ProjectId,
    pub name: String,
    pub digest: Digest,
    /// The secret before the last rotation.
    pub previous: Option<PreviousSecret>,
    /// Bits of the service's scopes.
    pub scopes: u8,
    /// Models that may be called; none named means all.
    pub models: Option<Vec<String>>,
    #[serde(with = "record_serde::time")]
    pub created_at: Timestamp,
    #[serde(with = "record_serde::time")]
    pub updated_at: Timestamp,
    #[serde(with = "record_serde::maybe_time")]
    pub expires_at: Option<Timestamp>,
    #[serde(with = "record_serde::maybe_time")]
    pub revoked_at: Option<Timestamp>,
    #[serde(with = "record_serde::maybe_time")]
    pub rotated_at: Option<Timestamp>,
    /// A form of the secret that may be shown.
    pub redacted: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreviousSecret {
    pub digest: Digest,
    #[serde(with = "record_serde::time")]
    pub valid_until: Timestamp,
    /// Its time has been seen to be over; no clock can bring it back.
    pub ended: bool,
}

impl Record for KeyRecord {
    const TABLE: Table = KEYS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
}

/// A row of the index; all it says is in its key.
#[derive(Serialize, Deserialize)]
pub(super) struct KeyIndexRow;

impl Record for KeyIndexRow {
    const TABLE: Table = KEYS_BY_PROJECT;
    const VERSION: u8 = 1;
}

/// When a request last came with a key.
#[derive(Serialize, Deserialize)]
pub(super) struct KeyUse {
    #[serde(with = "record_serde::time")]
    at: Timestamp,
}

impl Record for KeyUse {
    const TABLE: Table = KEY_USES;
    const VERSION: u8 = 1;
}

pub fn find(tx: &impl Reader, id: KeyId) -> Result<Option<KeyRecord>> {
    tx.get(&id.to_bytes())
}

/// Stores a new key and its place in the index.
pub fn insert(tx: &WriteTx, id: KeyId, record: &KeyRecord) -> Result<()> {
    tx.put(&id.to_bytes(), record)?;
    tx.put(&row_key(record.project, id), &KeyIndexRow)
}

/// Replaces a key that stays in its project.
pub fn replace(tx: &WriteTx, id: KeyId, record: &KeyRecord) -> Result<()> {
    tx.put(&id.to_bytes(), record)
}

/// Keeps that a request came with a key. Requests end in another order than they came in.
pub fn used(tx: &WriteTx, id: KeyId, at: Timestamp) -> Result<()> {
    match last_use(tx, id)? {
        Some(later) if later >= at => Ok(()),
        _ => tx.put(&id.to_bytes(), &KeyUse { at }),
    }
}

pub fn last_use(tx: &impl Reader, id: KeyId) -> Result<Option<Timestamp>> {
    Ok(tx.get::<KeyUse>(&id.to_bytes())?.map(|found| found.at))
}

/// Up to `limit` keys of a project older than `before`, the newest first.
pub fn newest(
    tx: &impl Reader,
    project: ProjectId,
    before: Option<[u8; 16]>,
    limit: usize,
) -> Result<Vec<(KeyId, KeyRecord)>> {
    let prefix = project.to_bytes();
    let before = before.map(|id| [prefix, id].concat());
    let rows = tx.newest::<KeyIndexRow>(&prefix, before.as_deref(), limit)?;
    rows.into_iter().map(|(place, _)| listed(tx, project, &place)).collect()
}

fn listed(tx: &impl Reader, project: ProjectId, place: &[u8]) -> Result<(KeyId, KeyRecord)> {
    let id = place.get(16..).and_then(|id| id.try_into().ok()).map(KeyId::from_bytes);
    let id = id.ok_or_else(|| codec::inconsistent("a malformed row in the index of keys"))?;
    // The index carries no MAC: the record itself must say that it belongs here.
    let record = find(tx, id)?.filter(|record| record.project == project);
    record
        .map(|record| (id, record))
        .ok_or_else(|| codec::inconsistent(format!("the index of keys lists {id} wrongly")))
}

/// Whether any key satisfies `wanted`. Walks all of them.
pub fn any(tx: &impl Reader, mut wanted: impl FnMut(KeyId, &KeyRecord) -> Result<bool>) -> Result<bool> {
    let mut found = false;
    tx.each(&[], None, &mut |key, record: KeyRecord| {
        let id = key.try_into().map(KeyId::from_bytes).map_err(|_| codec::inconsistent("a malformed key id"))?;
        found = wanted(id, &record)?;
        Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}

fn row_key(project: ProjectId, id: KeyId) -> Vec<u8> {
    [project.to_bytes(), id.to_bytes()].concat()
}
