//! Layout 4 to 5: quotas and their usage include stored responses, of which there are none.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::storage::codec::Record;
use crate::storage::limits::{LimitsRecord, Quotas, Rates};
use crate::storage::quota_usage::QuotaUsageRecord;
use crate::storage::record_serde;
use crate::storage::tables::{LIMITS, QUOTA_USAGE, Table};
use crate::storage::transaction::{Reader as _, WriteTx};

#[derive(Default, Serialize, Deserialize)]
pub(super) struct OldQuotaUsage {
    pub api_keys: u64,
    pub conversations: u64,
    pub agents: u64,
    pub files: u64,
    pub jobs: u64,
    pub bytes: u64,
    pub changed_at: i64,
}

impl Record for OldQuotaUsage {
    const TABLE: Table = QUOTA_USAGE;
    const VERSION: u8 = 1;
}

impl From<OldQuotaUsage> for QuotaUsageRecord {
    fn from(old: OldQuotaUsage) -> Self {
        let OldQuotaUsage { api_keys, conversations, agents, files, jobs, bytes, changed_at } = old;
        Self { api_keys, conversations, agents, files, jobs, responses: 0, bytes, changed_at }
    }
}

#[derive(Serialize, Deserialize)]
struct OldQuotas {
    api_keys: Option<u64>,
    conversations: Option<u64>,
    agents: Option<u64>,
    files: Option<u64>,
    jobs: Option<u64>,
    bytes: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct OldLimits {
    own: Rates,
    ceiling: Rates,
    quotas: OldQuotas,
    #[serde(with = "record_serde::maybe_time")]
    updated_at: Option<Timestamp>,
}

impl Record for OldLimits {
    const TABLE: Table = LIMITS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
}

impl From<OldLimits> for LimitsRecord {
    fn from(OldLimits { own, ceiling, quotas, updated_at }: OldLimits) -> Self {
        let OldQuotas { api_keys, conversations, agents, files, jobs, bytes } = quotas;
        let quotas = Quotas { api_keys, conversations, agents, files, jobs, responses: None, bytes };
        Self { own, ceiling, quotas, updated_at }
    }
}

pub(super) fn extend_quotas(tx: &WriteTx) -> Result<()> {
    convert::<OldQuotaUsage, QuotaUsageRecord>(tx)?;
    convert::<OldLimits, LimitsRecord>(tx)
}

/// Rewrites every record of a table.
fn convert<Old: Record, New: Record + From<Old>>(tx: &WriteTx) -> Result<()> {
    let mut records: Vec<(Vec<u8>, New)> = Vec::new();
    tx.each(&[], None, &mut |key, old: Old| {
        records.push((key.to_vec(), old.into()));
        Ok(ControlFlow::Continue(()))
    })?;
    records.iter().try_for_each(|(key, record)| tx.put(key, record))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ProjectId;
    use crate::storage::store::{Store, StoreSettings};

    #[test]
    fn limits_and_usage_keep_their_fields() {
        let folder = tempfile::tempdir().unwrap();
        let settings = StoreSettings { dir: folder.path().to_owned(), cache_bytes: 1 << 20, queue: 16 };
        let clock_rng = std::sync::Arc::new(crate::app::SystemClockRng::default());
        let store = Store::open(settings, clock_rng).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let project = ProjectId::from_bytes([1; 16]);
        let migrated = runtime.block_on(store.write(move |tx| {
            let own = Rates { requests_per_minute: Some(7), ..Rates::default() };
            let quotas = OldQuotas {
                api_keys: None,
                conversations: None,
                agents: Some(2),
                files: None,
                jobs: None,
                bytes: Some(9),
            };
            let updated_at = Some(Timestamp::from_millis(5));
            tx.put(&project.to_bytes(), &OldLimits { own, ceiling: Rates::default(), quotas, updated_at })?;
            let usage = OldQuotaUsage { agents: 1, bytes: 8, changed_at: 6, ..OldQuotaUsage::default() };
            tx.put(&project.to_bytes(), &usage)?;
            extend_quotas(tx)?;
            let limits: Option<LimitsRecord> = tx.get(&project.to_bytes())?;
            let usage: Option<QuotaUsageRecord> = tx.get(&project.to_bytes())?;
            Ok((limits.unwrap(), usage.unwrap()))
        }));
        let (limits, usage) = migrated.unwrap();
        let quotas = Quotas { agents: Some(2), bytes: Some(9), ..Quotas::default() };
        assert_eq!((limits.own.requests_per_minute, limits.quotas), (Some(7), quotas));
        assert_eq!(limits.updated_at, Some(Timestamp::from_millis(5)));
        let expected = QuotaUsageRecord { agents: 1, bytes: 8, changed_at: 6, ..QuotaUsageRecord::default() };
        assert_eq!(usage, expected);
        store.shutdown();
    }
}
