//! Stored limits: a project's own limits, the admin's ceiling, quotas, and the levels of the rate limiter.

use serde::{Deserialize, Serialize};

use crate::codec::Record;
use crate::error::Result;
use crate::ids::ProjectId;
use crate::tables::{LEVELS, LIMITS, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

/// Rates and budgets; absent means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    pub requests_per_minute: Option<u64>,
    /// Absent: as many as `requests_per_minute`.
    pub burst_limit: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    /// Seconds of audio, sent and generated.
    pub audio_seconds_per_minute: Option<u64>,
    /// Tokens in a calendar month (UTC).
    pub token_budget: Option<u64>,
}

/// Quotas; absent means the installation's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quotas {
    pub api_keys: Option<u64>,
    pub conversations: Option<u64>,
    pub agents: Option<u64>,
    pub files: Option<u64>,
    pub jobs: Option<u64>,
    pub responses: Option<u64>,
    pub bytes: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitsRecord {
    pub own: Rates,
    pub ceiling: Rates,
    pub quotas: Quotas,
    pub updated_at: Option<Timestamp>,
}

impl Record for LimitsRecord {
    const TABLE: Table = LIMITS;
    const VERSION: u8 = 1;
    const SEALED: bool = true;
    const WATCHED: bool = true;
}

/// The limiter's bucket levels at a time, in the limiter's units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelsRecord {
    pub at: Timestamp,
    pub requests: Option<i128>,
    pub tokens: Option<i128>,
    pub audio: Option<i128>,
}

impl Record for LevelsRecord {
    const TABLE: Table = LEVELS;
    const VERSION: u8 = 1;
}

/// The limits of a project; defaults if none are set.
pub fn of(tx: &impl Reader, project: ProjectId) -> Result<LimitsRecord> {
    Ok(tx.get(&project.to_bytes())?.unwrap_or_default())
}

pub fn put(tx: &WriteTx, project: ProjectId, record: &LimitsRecord) -> Result<()> {
    tx.put(&project.to_bytes(), record)
}

pub fn levels(tx: &impl Reader, project: ProjectId) -> Result<Option<LevelsRecord>> {
    tx.get(&project.to_bytes())
}

pub fn put_levels(tx: &WriteTx, project: ProjectId, levels: &LevelsRecord) -> Result<()> {
    tx.put(&project.to_bytes(), levels)
}
