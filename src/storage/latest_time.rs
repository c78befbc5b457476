//! The latest known time of the installation. It never goes back, even if the clock is set back.

use super::engine::unavailable;
use super::meta::meta;
use super::tables::META;
use super::transaction::{Reader, WriteTx};
use crate::clock_rng::Timestamp;
use crate::error::Result;

const LATEST_KEY: &[u8] = b"latest_moment";

pub fn latest(tx: &impl Reader) -> Result<Option<Timestamp>> {
    let Some(stored) = tx.raw(META, LATEST_KEY)? else { return Ok(None) };
    let millis = stored.get(1..).and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes);
    millis.map(|millis| Some(Timestamp::from_millis(millis))).ok_or_else(|| unavailable("the latest time is malformed"))
}

/// Stores `timestamp`, unless a later time is stored.
pub fn advance(tx: &WriteTx, timestamp: Timestamp) -> Result<()> {
    if latest(tx)?.is_some_and(|found| found >= timestamp) {
        return Ok(());
    }
    tx.put_raw(META, LATEST_KEY, &meta(&timestamp.as_millis().to_be_bytes()))
}
