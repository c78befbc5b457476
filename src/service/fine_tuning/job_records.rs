//! Changes of a job's records inside a transaction.

use super::job::{JobError, JobState, Level};
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::{FileId, JobId};
use crate::service::limits::quotas::{self, signed};
use crate::storage::WriteTx;
use crate::storage::fine_tuning_jobs::{self, JobEventRecord, JobRecord};
use crate::storage::usage::{self, Amounts, Outcome, SeriesRecord, UsageRecord};

/// The endpoint that trained tokens are metered under.
const ENDPOINT: &str = "POST /fine_tuning/jobs";

/// How a job has ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub state: JobState,
    pub error: Option<JobError>,
    pub at: Timestamp,
    /// The end of the key of the usage record.
    pub tail: [u8; 6],
}

/// An event without measurements.
pub(super) fn plain_event(at: Timestamp, level: Level, message: String) -> JobEventRecord {
    JobEventRecord { at, level: level as u8, message, metrics: None }
}

/// Ends a job: meters its tokens, whose number is returned, and gives up its saved state, whose content is returned.
pub(super) fn end(tx: &WriteTx, id: JobId, record: &mut JobRecord, ended: Ended) -> Result<(u64, Option<FileId>)> {
    let Ended { state, error, at, tail } = ended;
    let metered = meter(tx, record, at, tail)?;
    let bytes = record.saved.map_or(0, |saved| saved.bytes);
    quotas::charge_bytes(tx, record.project, at, -signed(bytes))?;
    let released = fine_tuning_jobs::replace_state(tx, id, record, None)?;
    (record.state, record.error, record.finished_at) = (state as u8, error, Some(at));
    fine_tuning_jobs::close(tx, id)?;
    Ok((metered, released))
}

/// Adds the tokens that are not metered yet to the usage of the key that has created the job. Returns their number.
pub(super) fn meter(tx: &WriteTx, record: &mut JobRecord, at: Timestamp, tail: [u8; 6]) -> Result<u64> {
    let trained = record.trained_tokens.unwrap_or(0);
    let (tokens, Some(key)) = (trained.saturating_sub(record.metered_tokens), record.key) else { return Ok(0) };
    if tokens == 0 {
        return Ok(0);
    }
    record.metered_tokens = trained;
    let series = SeriesRecord { key, endpoint: ENDPOINT.to_owned(), model: Some(record.model.clone()) };
    let series = usage::number(tx, record.project, &series, false)?;
    let amounts = Amounts { input: tokens, ..Amounts::default() };
    usage::append(tx, record.project, at, tail, &UsageRecord { series, outcome: Outcome::Succeeded, amounts })?;
    Ok(tokens)
}
