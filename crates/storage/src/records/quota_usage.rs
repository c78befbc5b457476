//! Quota usage of projects, and the history of stored bytes.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::codec::Record;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::tables::{QUOTA_USAGE, STORED_BYTES_HISTORY, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

/// Numbers of existing resources and their content bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaUsageRecord {
    pub api_keys: u64,
    pub conversations: u64,
    pub agents: u64,
    pub files: u64,
    pub jobs: u64,
    /// Stored responses.
    pub responses: u64,
    pub bytes: u64,
    /// Time of the last change in milliseconds; never goes back, even if the clock does.
    pub changed_at: i64,
}

impl Record for QuotaUsageRecord {
    const TABLE: Table = QUOTA_USAGE;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
pub(crate) struct StoredBytesSample {
    pub bytes: u64,
    pub at: Timestamp,
}

impl Record for StoredBytesSample {
    const TABLE: Table = STORED_BYTES_HISTORY;
    const VERSION: u8 = 1;
}

/// The current usage of a project.
pub fn of(tx: &impl Reader, project: ProjectId) -> Result<QuotaUsageRecord> {
    Ok(tx.get(&project.to_bytes())?.unwrap_or_default())
}

/// Replaces the usage `before` of a project from `now` on.
pub fn put(
    tx: &WriteTx,
    project: ProjectId,
    before: &QuotaUsageRecord,
    mut usage: QuotaUsageRecord,
    now: Timestamp,
) -> Result<()> {
    usage.changed_at = now.as_millis().max(before.changed_at);
    if usage.bytes != before.bytes {
        let at = Timestamp::from_millis(usage.changed_at);
        tx.put(&history_key(project, at), &StoredBytesSample { bytes: usage.bytes, at })?;
    }
    tx.put(&project.to_bytes(), &usage)
}

/// The bytes that a project stored just before `end`.
pub fn bytes_before(tx: &impl Reader, project: ProjectId, end: Timestamp) -> Result<u64> {
    let rows = tx.newest::<StoredBytesSample>(&project.to_bytes(), Some(&history_key(project, end)), 1)?;
    Ok(rows.first().map_or(0, |(_, sample)| sample.bytes))
}

/// Removes up to `limit` samples before `horizon`, keeping the last of each `width` (milliseconds). Returns the number
/// of removed samples.
pub fn thin(tx: &WriteTx, project: ProjectId, horizon: Timestamp, width: i64, limit: usize) -> Result<usize> {
    let (mut spare, mut later) = (Vec::new(), None);
    tx.each(&project.to_bytes(), Some(&history_key(project, horizon)), &mut |key, sample: StoredBytesSample| {
        let slot = sample.at.as_millis() / width;
        if later == Some(slot) {
            spare.push(key.to_vec());
        }
        later = Some(slot);
        Ok(if spare.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    spare.iter().try_for_each(|key| tx.remove::<StoredBytesSample>(key))?;
    Ok(spare.len())
}

fn history_key(project: ProjectId, at: Timestamp) -> Vec<u8> {
    [&project.to_bytes()[..], &at.as_millis().to_be_bytes()].concat()
}
