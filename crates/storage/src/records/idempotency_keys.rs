//! Used idempotency keys with the result of the first request.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::codec::Record;
use crate::error::Result;
use crate::tables::{IDEMPOTENCY_KEYS, IDEMPOTENCY_KEYS_BY_AGE, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

/// How long a record is kept.
pub const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// Expired records removed with each new one; more than one, so that none pile up.
const SWEEP_BATCH: usize = 4;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    pub at: Timestamp,
    /// SHA-256 of method, path and body.
    pub request: [u8; 32],
    /// The result of the service, as JSON.
    pub result: String,
}

impl Record for IdempotencyRecord {
    const TABLE: Table = IDEMPOTENCY_KEYS;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
pub(crate) struct IdempotencyIndexRow;

impl Record for IdempotencyIndexRow {
    const TABLE: Table = IDEMPOTENCY_KEYS_BY_AGE;
    const VERSION: u8 = 1;
}

/// The record under a digest, if it has not expired.
pub fn find(tx: &impl Reader, digest: &[u8; 32], now: Timestamp) -> Result<Option<IdempotencyRecord>> {
    let found: Option<IdempotencyRecord> = tx.get(digest)?;
    Ok(found.filter(|record| now < record.at.after(RETENTION)))
}

/// Stores a record, and removes a few expired ones unless nodes share the store: their writes would conflict. Then
/// [`sweep`] removes them.
pub fn put(tx: &WriteTx, digest: &[u8; 32], record: &IdempotencyRecord) -> Result<()> {
    if let Some(old) = tx.get::<IdempotencyRecord>(digest)? {
        tx.remove::<IdempotencyIndexRow>(&age(old.at, digest))?;
    }
    if tx.process().is_none() {
        sweep(tx, record.at, SWEEP_BATCH)?;
    }
    tx.put(digest, record)?;
    tx.put(&age(record.at, digest), &IdempotencyIndexRow)
}

/// Removes up to `limit` records that have expired. Returns how many.
pub fn sweep(tx: &WriteTx, now: Timestamp, limit: usize) -> Result<usize> {
    let mut removed = 0;
    for (key, _) in tx.newest::<IdempotencyIndexRow>(&[], None, limit)? {
        let (created_at, digest) = key.split_at_checked(8).unwrap_or_default();
        let created_at = created_at.try_into().map(|bytes| Timestamp::from_millis(!i64::from_be_bytes(bytes)));
        if created_at.is_ok_and(|created_at| created_at.after(RETENTION) <= now) {
            tx.remove::<IdempotencyRecord>(digest)?;
            tx.remove::<IdempotencyIndexRow>(&key)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// The complement sorts the oldest last, where iteration begins.
fn age(at: Timestamp, digest: &[u8]) -> Vec<u8> {
    [&(!at.as_millis()).to_be_bytes()[..], digest].concat()
}
