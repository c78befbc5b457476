//! The latest known time of the installation. It never goes back, even if the clock is set back.

use std::time::Duration;

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

/// How far the stored time may be behind where several nodes store it, so that they seldom write the same row. Their clock
/// is the database's, so the time matters only if that is set back.
const SHARED_PRECISION: Duration = Duration::from_secs(10);

/// Stores `timestamp`, unless a later time is stored.
pub fn advance(tx: &WriteTx, timestamp: Timestamp) -> Result<()> {
    let precision = tx.process().map_or(Duration::ZERO, |_| SHARED_PRECISION);
    if latest(tx)?.is_some_and(|found| found.after(precision) >= timestamp) {
        return Ok(());
    }
    tx.put_raw(META, LATEST_KEY, &meta(&timestamp.as_millis().to_be_bytes()))
}
