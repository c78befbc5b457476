//! The latest known time of the installation. It never goes back, even if the clock is set back.

use std::ops::ControlFlow;

use crate::engine::unavailable;
use crate::error::Result;
use crate::meta::meta;
use crate::tables::META;
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

/// The key of the time. Nodes that share a database have times of their own, so that they do not write the same row: there,
/// the node's number follows.
const LATEST_KEY: &[u8] = b"latest_time";

pub fn latest(tx: &impl Reader) -> Result<Option<Timestamp>> {
    let mut latest = None;
    tx.visit(META, LATEST_KEY, None, &mut |_, stored| {
        latest = latest.max(Some(decode(stored)?));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(latest)
}

/// Stores `timestamp`, unless this process has stored a later time.
pub fn advance(tx: &WriteTx, timestamp: Timestamp) -> Result<()> {
    let node = tx.process().map_or_else(Vec::new, |process| process.number.to_be_bytes().to_vec());
    let key = [LATEST_KEY, &node].concat();
    let stored = tx.raw(META, &key)?.map(|stored| decode(&stored)).transpose()?;
    if stored.is_some_and(|stored| stored >= timestamp) {
        return Ok(());
    }
    tx.put_raw(META, &key, &meta(&timestamp.as_millis().to_be_bytes()))
}

fn decode(stored: &[u8]) -> Result<Timestamp> {
    let millis = stored.get(1..).and_then(|bytes| bytes.try_into().ok()).map(i64::from_be_bytes);
    millis.map(Timestamp::from_millis).ok_or_else(|| unavailable("the latest time is malformed"))
}
