//! Layout 6 to 7: rates and bucket levels include seconds of audio, which no project has limited yet.

use serde::{Deserialize, Serialize};

use super::table_conversion::convert;
use crate::codec::Record;
use crate::error::Result;
use crate::limits::{LevelsRecord, LimitsRecord, Quotas, Rates};
use crate::record_serde;
use crate::tables::{LEVELS, LIMITS, Table};
use crate::transaction::WriteTx;
use outpost_common::clock_rng::Timestamp;

#[derive(Default, Serialize, Deserialize)]
pub(super) struct RatesWithoutAudio {
    pub requests_per_minute: Option<u64>,
    pub burst_limit: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    pub token_budget: Option<u64>,
}

impl From<RatesWithoutAudio> for Rates {
    fn from(old: RatesWithoutAudio) -> Self {
        let RatesWithoutAudio { requests_per_minute, burst_limit, tokens_per_minute, token_budget } = old;
        Self { requests_per_minute, burst_limit, tokens_per_minute, audio_seconds_per_minute: None, token_budget }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct LimitsWithoutAudio {
    pub own: RatesWithoutAudio,
    pub ceiling: RatesWithoutAudio,
    pub quotas: Quotas,
    #[serde(with = "record_serde::maybe_time")]
    pub updated_at: Option<Timestamp>,
}

impl Record for LimitsWithoutAudio {
    const TABLE: Table = LIMITS;
    const VERSION: u8 = 2;
    const SEALED: bool = true;
}

impl From<LimitsWithoutAudio> for LimitsRecord {
    fn from(old: LimitsWithoutAudio) -> Self {
        let LimitsWithoutAudio { own, ceiling, quotas, updated_at } = old;
        Self { own: own.into(), ceiling: ceiling.into(), quotas, updated_at }
    }
}

#[derive(Serialize, Deserialize)]
struct LevelsWithoutAudio {
    #[serde(with = "record_serde::time")]
    at: Timestamp,
    requests: Option<i128>,
    tokens: Option<i128>,
}

impl Record for LevelsWithoutAudio {
    const TABLE: Table = LEVELS;
    const VERSION: u8 = 1;
}

impl From<LevelsWithoutAudio> for LevelsRecord {
    fn from(LevelsWithoutAudio { at, requests, tokens }: LevelsWithoutAudio) -> Self {
        Self { at, requests, tokens, audio: None }
    }
}

pub(super) fn extend_rates(tx: &WriteTx) -> Result<()> {
    convert::<LimitsWithoutAudio, LimitsRecord>(tx)?;
    convert::<LevelsWithoutAudio, LevelsRecord>(tx)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pepper::Pepper;
    use crate::redb::transaction::in_memory;
    use crate::transaction::Reader as _;

    #[test]
    fn limits_and_levels_keep_their_fields() {
        let own = RatesWithoutAudio { requests_per_minute: Some(7), burst_limit: Some(9), ..Default::default() };
        let ceiling = RatesWithoutAudio { tokens_per_minute: Some(8), token_budget: Some(6), ..Default::default() };
        let quotas = Quotas { files: Some(3), ..Quotas::default() };
        let at = Timestamp::from_millis(5);
        let limits = LimitsWithoutAudio { own, ceiling, quotas, updated_at: Some(at) };
        let levels = LevelsWithoutAudio { at, requests: Some(-4), tokens: Some(11) };
        let engine = in_memory();
        let tx = WriteTx::new(&engine, Arc::new(Pepper::from_bytes([7; 32])));
        tx.put(b"project", &limits).unwrap();
        tx.put(b"project", &levels).unwrap();
        extend_rates(&tx).unwrap();
        let own = Rates { requests_per_minute: Some(7), burst_limit: Some(9), ..Rates::default() };
        let ceiling = Rates { tokens_per_minute: Some(8), token_budget: Some(6), ..Rates::default() };
        let expected = LimitsRecord { own, ceiling, quotas, updated_at: Some(at) };
        assert_eq!(tx.get::<LimitsRecord>(b"project").unwrap(), Some(expected));
        let expected = LevelsRecord { at, requests: Some(-4), tokens: Some(11), audio: None };
        assert_eq!(tx.get::<LevelsRecord>(b"project").unwrap(), Some(expected));
    }
}
