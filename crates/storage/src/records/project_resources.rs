//! Resources of a project other than keys: found by id, listed by project.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::codec::{self, Record};
use crate::engine::Scan;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::tables::{RESOURCES_BY_PROJECT, Table};
use crate::transaction::{Reader, WriteTx};

/// The kind of a project's resource. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ResourceKind {
    Conversation = 1,
    Agent = 2,
    File = 3,
    Job = 4,
    Checkpoint = 5,
    Response = 6,
    Batch = 7,
    ChatCompletion = 8,
}

/// A record that belongs to a project and is stored under its 16-byte id in its own table.
pub trait ProjectResource: Record {
    const KIND: ResourceKind;

    fn project(&self) -> ProjectId;
}

/// An index row; all information is in its key.
#[derive(Serialize, Deserialize)]
pub(crate) struct ResourceIndexRow;

impl Record for ResourceIndexRow {
    const TABLE: Table = RESOURCES_BY_PROJECT;
    const VERSION: u8 = 1;
}

pub fn find<R: ProjectResource>(tx: &impl Reader, id: [u8; 16]) -> Result<Option<R>> {
    tx.get(&id)
}

/// Stores a new resource and its index row.
pub fn insert<R: ProjectResource>(tx: &WriteTx, id: [u8; 16], record: &R) -> Result<()> {
    tx.put(&id, record)?;
    tx.put(&row_key(R::KIND, record.project(), id), &ResourceIndexRow)
}

/// Replaces a resource that stays in its project.
pub fn replace<R: ProjectResource>(tx: &WriteTx, id: [u8; 16], record: &R) -> Result<()> {
    tx.put(&id, record)
}

/// Removes a resource and its index row.
pub fn remove<R: ProjectResource>(tx: &WriteTx, id: [u8; 16], record: &R) -> Result<()> {
    tx.remove::<R>(&id)?;
    tx.remove::<ResourceIndexRow>(&row_key(R::KIND, record.project(), id))
}

/// Up to `limit` resources of a project older than `before`, newest first.
pub fn newest<R: ProjectResource>(
    tx: &impl Reader,
    project: ProjectId,
    before: Option<[u8; 16]>,
    limit: usize,
) -> Result<Vec<([u8; 16], R)>> {
    let prefix = prefix(R::KIND, project);
    let before = before.map(|id| row_key(R::KIND, project, id));
    let rows = tx.newest::<ResourceIndexRow>(&prefix, before.as_deref(), limit)?;
    let ids: Vec<_> = rows.iter().map(|(key, _)| key.get(prefix.len()..).unwrap_or_default().to_vec()).collect();
    let records = tx.get_all::<R>(&ids)?;
    ids.into_iter()
        .zip(records)
        .map(|(id, record)| {
            let id = id.try_into().map_err(|_| codec::inconsistent("a malformed row in the index of resources"))?;
            // The index is not authoritative: the record itself must confirm its project.
            let record = record.filter(|record| record.project() == project);
            record
                .map(|record| (id, record))
                .ok_or_else(|| codec::inconsistent("the index of resources lists one wrongly"))
        })
        .collect()
}

/// The ids of all resources of a project, newest first, below `before` and above `after`. Visits the index only.
pub fn ids<R: ProjectResource>(
    tx: &impl Reader,
    project: ProjectId,
    before: Option<[u8; 16]>,
    after: Option<[u8; 16]>,
) -> Result<Vec<[u8; 16]>> {
    let prefix = prefix(R::KIND, project);
    let before = before.map(|id| row_key(R::KIND, project, id));
    let scan =
        Scan { table: RESOURCES_BY_PROJECT, prefix: &prefix, before: before.as_deref(), values: false, rows: None };
    let mut ids = Vec::new();
    tx.scan(&scan, &mut |key, _| {
        let id = key.get(prefix.len()..).and_then(|id| id.try_into().ok());
        let id: [u8; 16] = id.ok_or_else(|| codec::inconsistent("a malformed row in the index of resources"))?;
        if after.is_some_and(|after| id <= after) {
            return Ok(ControlFlow::Break(()));
        }
        ids.push(id);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(ids)
}

/// Up to `limit` resources of all projects with an id below `before`, the largest id first.
pub fn below<R: ProjectResource>(tx: &impl Reader, before: [u8; 16], limit: usize) -> Result<Vec<([u8; 16], R)>> {
    let malformed = |_| codec::inconsistent(format!("the table `{}` has a malformed id", R::TABLE.name()));
    let rows = tx.newest::<R>(&[], Some(&before), limit)?;
    rows.into_iter().map(|(key, record)| Ok((key.try_into().map_err(malformed)?, record))).collect()
}

/// The number of resources of a kind that a project has. Visits them all.
pub fn count<R: ProjectResource>(tx: &impl Reader, project: ProjectId) -> Result<usize> {
    Ok(tx.keys(RESOURCES_BY_PROJECT, &prefix(R::KIND, project), None, None)?.len())
}

/// The resources whose ids are the keys of an index, such as that of open batches, oldest first.
pub(crate) fn indexed<R: ProjectResource>(tx: &impl Reader, index: Table) -> Result<Vec<([u8; 16], R)>> {
    let mut keys = tx.keys(index, &[], None, None)?;
    keys.sort_unstable();
    let wrong = || codec::inconsistent(format!("the index `{}` lists one that does not exist", index.name()));
    let records = tx.get_all::<R>(&keys)?;
    let found = keys.into_iter().zip(records).map(|(key, record)| Some((key.try_into().ok()?, record?)));
    found.map(|found| found.ok_or_else(wrong)).collect()
}

/// The key of a resource's row in the index.
pub(crate) fn row_key(kind: ResourceKind, project: ProjectId, id: [u8; 16]) -> Vec<u8> {
    [prefix(kind, project).as_slice(), &id].concat()
}

fn prefix(kind: ResourceKind, project: ProjectId) -> Vec<u8> {
    [&project.to_bytes()[..], &[kind as u8]].concat()
}
