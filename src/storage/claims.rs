//! Idempotency keys that were used, with what the first request gave.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::codec::Record;
use super::fields;
use super::tables::{CLAIMS, CLAIMS_BY_AGE, Table};
use super::transaction::{Look, WriteTx};
use crate::clock_rng::Timestamp;
use crate::error::Result;

/// How long a claim is kept.
pub const KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Claims that are over and go with each new one: more than come in, so that none pile up.
const SWEPT: usize = 4;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClaimRecord {
    #[serde(with = "fields::time")]
    pub at: Timestamp,
    /// SHA-256 of method, path and body.
    pub request: [u8; 32],
    /// What the service returned, as JSON.
    pub result: String,
}

impl Record for ClaimRecord {
    const TABLE: Table = CLAIMS;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
pub(super) struct ClaimAge;

impl Record for ClaimAge {
    const TABLE: Table = CLAIMS_BY_AGE;
    const VERSION: u8 = 1;
}

/// The claim under a digest, if its time is not over.
pub fn find(tx: &impl Look, digest: &[u8; 32], now: Timestamp) -> Result<Option<ClaimRecord>> {
    let found: Option<ClaimRecord> = tx.get(digest)?;
    Ok(found.filter(|claim| now < claim.at.after(KEPT)))
}

/// Keeps a claim, and clears out a few that are over.
pub fn put(tx: &WriteTx, digest: &[u8; 32], claim: &ClaimRecord) -> Result<()> {
    if let Some(old) = tx.get::<ClaimRecord>(digest)? {
        tx.remove::<ClaimAge>(&age(old.at, digest))?;
    }
    for (place, _) in tx.newest::<ClaimAge>(&[], None, SWEPT)? {
        let (moment, digest) = place.split_at_checked(8).unwrap_or_default();
        let moment = moment.try_into().map(|bytes| Timestamp::from_millis(!i64::from_be_bytes(bytes)));
        if moment.is_ok_and(|moment| moment.after(KEPT) <= claim.at) {
            tx.remove::<ClaimRecord>(digest)?;
            tx.remove::<ClaimAge>(&place)?;
        }
    }
    tx.put(digest, claim)?;
    tx.put(&age(claim.at, digest), &ClaimAge)
}

/// The complement sorts the oldest last, where walks begin.
fn age(at: Timestamp, digest: &[u8]) -> Vec<u8> {
    [&(!at.as_millis()).to_be_bytes()[..], digest].concat()
}
