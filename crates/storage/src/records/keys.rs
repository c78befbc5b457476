//! Stored API keys and the index by project.

use std::ops::ControlFlow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec::{self, Record};
use crate::error::Result;
use crate::ids::{KeyId, ProjectId};
use crate::pepper::Digest;
use crate::scopes::Scopes;
use crate::tables::{KEY_USES, KEYS, KEYS_BY_PROJECT, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyRecord {
    pub project: ProjectId,
    pub name: String,
    pub digest: Digest,
    /// The secret before the last rotation.
    pub previous: Option<PreviousSecret>,
    pub fields: KeyFields,
}

/// What every view of a key shows beside its project and name: nothing that authenticates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyFields {
    pub scopes: Scopes,
    /// Models that the key may call; absent means all.
    pub models: Option<Vec<String>>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    pub rotated_at: Option<Timestamp>,
    /// The redacted secret.
    pub redacted: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreviousSecret {
    pub digest: Digest,
    pub valid_until: Timestamp,
    /// The end of the grace period was observed. No clock change can undo it.
    pub ended: bool,
}

impl Record for KeyRecord {
    const TABLE: Table = KEYS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
    const WATCHED: bool = true;
}

/// An index row; all information is in its key.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeyIndexRow;

impl Record for KeyIndexRow {
    const TABLE: Table = KEYS_BY_PROJECT;
    const VERSION: u8 = 1;
}

/// How exactly the last use is recorded where several nodes record it, so that they seldom write the same row.
const SHARED_PRECISION: Duration = Duration::from_secs(10);

/// When a key was last used.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeyUse {
    at: Timestamp,
}

impl Record for KeyUse {
    const TABLE: Table = KEY_USES;
    const VERSION: u8 = 1;
}

pub fn find(tx: &impl Reader, id: KeyId) -> Result<Option<KeyRecord>> {
    tx.get(&id.to_bytes())
}

/// Stores a new key and its index row.
pub fn insert(tx: &WriteTx, id: KeyId, record: &KeyRecord) -> Result<()> {
    tx.put(&id.to_bytes(), record)?;
    tx.put(&row_key(record.project, id), &KeyIndexRow)
}

/// Replaces a key that stays in its project.
pub fn replace(tx: &WriteTx, id: KeyId, record: &KeyRecord) -> Result<()> {
    tx.put(&id.to_bytes(), record)
}

/// Records the use of a key. Requests may end out of order.
pub fn used(tx: &WriteTx, id: KeyId, at: Timestamp) -> Result<()> {
    let precision = tx.process().map_or(Duration::ZERO, |_| SHARED_PRECISION);
    match last_use(tx, id)? {
        Some(last) if last.after(precision) >= at => Ok(()),
        _ => tx.put(&id.to_bytes(), &KeyUse { at }),
    }
}

pub fn last_use(tx: &impl Reader, id: KeyId) -> Result<Option<Timestamp>> {
    Ok(tx.get::<KeyUse>(&id.to_bytes())?.map(|found| found.at))
}

/// When each of these keys was last used.
pub fn last_uses(tx: &impl Reader, ids: &[KeyId]) -> Result<Vec<Option<Timestamp>>> {
    let keys: Vec<_> = ids.iter().map(|id| id.to_bytes().to_vec()).collect();
    Ok(tx.get_all::<KeyUse>(&keys)?.into_iter().map(|found| found.map(|found| found.at)).collect())
}

/// Up to `limit` keys of a project older than `before`, newest first.
pub fn newest(
    tx: &impl Reader,
    project: ProjectId,
    before: Option<[u8; 16]>,
    limit: usize,
) -> Result<Vec<(KeyId, KeyRecord)>> {
    let prefix = project.to_bytes();
    let before = before.map(|id| [prefix, id].concat());
    let rows = tx.newest::<KeyIndexRow>(&prefix, before.as_deref(), limit)?;
    let ids: Vec<_> = rows.iter().map(|(key, _)| key.get(16..).unwrap_or_default().to_vec()).collect();
    let records = tx.get_all(&ids)?;
    ids.into_iter().zip(records).map(|(id, record)| listed(project, id, record)).collect()
}

fn listed(project: ProjectId, id: Vec<u8>, record: Option<KeyRecord>) -> Result<(KeyId, KeyRecord)> {
    let id = id.try_into().map(KeyId::from_bytes);
    let id = id.map_err(|_| codec::inconsistent("a malformed row in the index of keys"))?;
    // The index has no MAC, so the record itself must confirm its project.
    let record = record.filter(|record| record.project == project);
    record
        .map(|record| (id, record))
        .ok_or_else(|| codec::inconsistent(format!("the index of keys lists {id} wrongly")))
}

/// True if any key satisfies `predicate`. Iterates over all keys.
pub fn any(tx: &impl Reader, mut predicate: impl FnMut(KeyId, &KeyRecord) -> Result<bool>) -> Result<bool> {
    let mut found = false;
    tx.each(&[], None, &mut |key, record: KeyRecord| {
        let id = key.try_into().map(KeyId::from_bytes).map_err(|_| codec::inconsistent("a malformed key id"))?;
        found = predicate(id, &record)?;
        Ok(if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(found)
}

fn row_key(project: ProjectId, id: KeyId) -> Vec<u8> {
    [project.to_bytes(), id.to_bytes()].concat()
}
