//! Layout 4 to 5: quotas and their usage include stored responses, of which there are none.

use serde::{Deserialize, Serialize};

use super::audio_rate::{LimitsWithoutAudio, RatesWithoutAudio};
use super::table_conversion::convert;
use crate::codec::Record;
use crate::error::Result;
use crate::limits::Quotas;
use crate::quota_usage::QuotaUsageRecord;
use crate::record_serde;
use crate::tables::{LIMITS, QUOTA_USAGE, Table};
use crate::transaction::WriteTx;
use outpost_common::clock_rng::Timestamp;

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
    own: RatesWithoutAudio,
    ceiling: RatesWithoutAudio,
    quotas: OldQuotas,
    #[serde(with = "record_serde::maybe_time")]
    updated_at: Option<Timestamp>,
}

impl Record for OldLimits {
    const TABLE: Table = LIMITS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
}

impl From<OldLimits> for LimitsWithoutAudio {
    fn from(OldLimits { own, ceiling, quotas, updated_at }: OldLimits) -> Self {
        let OldQuotas { api_keys, conversations, agents, files, jobs, bytes } = quotas;
        let quotas = Quotas { api_keys, conversations, agents, files, jobs, responses: None, bytes };
        Self { own, ceiling, quotas, updated_at }
    }
}

pub(super) fn extend_quotas(tx: &WriteTx) -> Result<()> {
    convert::<OldQuotaUsage, QuotaUsageRecord>(tx)?;
    convert::<OldLimits, LimitsWithoutAudio>(tx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_usage_keep_their_fields() {
        let old = OldLimits {
            own: RatesWithoutAudio { requests_per_minute: Some(7), ..RatesWithoutAudio::default() },
            ceiling: RatesWithoutAudio { tokens_per_minute: Some(8), ..RatesWithoutAudio::default() },
            quotas: OldQuotas {
                api_keys: Some(1),
                conversations: Some(2),
                agents: Some(3),
                files: Some(4),
                jobs: None,
                bytes: Some(9),
            },
            updated_at: Some(Timestamp::from_millis(5)),
        };
        let LimitsWithoutAudio { own, ceiling, quotas, updated_at } = old.into();
        assert_eq!((own.requests_per_minute, ceiling.tokens_per_minute), (Some(7), Some(8)));
        assert_eq!((quotas.api_keys, quotas.conversations, quotas.agents), (Some(1), Some(2), Some(3)));
        assert_eq!((quotas.files, quotas.jobs, quotas.responses, quotas.bytes), (Some(4), None, None, Some(9)));
        assert_eq!(updated_at, Some(Timestamp::from_millis(5)));
        let old =
            OldQuotaUsage { api_keys: 1, conversations: 2, agents: 3, files: 4, jobs: 5, bytes: 8, changed_at: 6 };
        let new = QuotaUsageRecord {
            api_keys: 1,
            conversations: 2,
            agents: 3,
            files: 4,
            jobs: 5,
            responses: 0,
            bytes: 8,
            changed_at: 6,
        };
        assert_eq!(QuotaUsageRecord::from(old), new);
    }
}
