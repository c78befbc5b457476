//! Stored fine-tuning jobs and their events.

use serde::{Deserialize, Serialize};

use super::codec::{self, Record};
use super::project_resources::{ProjectResource, ResourceKind};
use super::record_serde;
use super::tables::{JOB_EVENTS, JOBS, Table};
use super::transaction::{Reader, WriteTx};
use crate::clock_rng::Timestamp;
use crate::error::Result;
use crate::ids::{FileId, JobEventId, JobId, ProjectId};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRecord {
    #[serde(with = "record_serde::project_id")]
    pub project: ProjectId,
    pub name: Option<String>,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    pub model: String,
    #[serde(with = "record_serde::file_id")]
    pub training_file: FileId,
    #[serde(with = "record_serde::maybe_file_id")]
    pub validation_file: Option<FileId>,
    pub hyperparameters: HyperparametersRecord,
    /// Part of the trained model's name.
    pub suffix: Option<String>,
    pub seed: u32,
    /// The service's state as a number.
    pub state: u8,
    pub error: Option<JobErrorRecord>,
    pub fine_tuned_model: Option<String>,
    pub trained_tokens: Option<u64>,
    #[serde(with = "record_serde::time")]
    pub created_at: Timestamp,
    #[serde(with = "record_serde::time")]
    pub updated_at: Timestamp,
    #[serde(with = "record_serde::maybe_time")]
    pub finished_at: Option<Timestamp>,
}

/// Absent values are chosen by the training ("auto").
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HyperparametersRecord {
    pub n_epochs: Option<u32>,
    pub batch_size: Option<u32>,
    pub learning_rate_multiplier: Option<f64>,
}

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobErrorRecord {
    pub code: String,
    pub message: String,
    pub param: Option<String>,
}

impl Record for JobRecord {
    const TABLE: Table = JOBS;
    const VERSION: u8 = 1;
}

impl ProjectResource for JobRecord {
    const KIND: ResourceKind = ResourceKind::Job;

    fn project(&self) -> ProjectId {
        self.project
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobEventRecord {
    #[serde(with = "record_serde::time")]
    pub at: Timestamp,
    /// The service's level as a number.
    pub level: u8,
    pub message: String,
}

impl Record for JobEventRecord {
    const TABLE: Table = JOB_EVENTS;
    const VERSION: u8 = 1;
}

pub fn append_event(tx: &WriteTx, job: JobId, id: JobEventId, record: &JobEventRecord) -> Result<()> {
    tx.put(&[job.to_bytes(), id.to_bytes()].concat(), record)
}

/// Up to `limit` events of a job older than `before`, newest first.
pub fn newest_events(
    tx: &impl Reader,
    job: JobId,
    before: Option<[u8; 16]>,
    limit: usize,
) -> Result<Vec<(JobEventId, JobEventRecord)>> {
    let prefix = job.to_bytes();
    let before = before.map(|id| [prefix, id].concat());
    let rows = tx.newest(&prefix, before.as_deref(), limit)?;
    rows.into_iter()
        .map(|(key, record)| {
            let id = key.get(16..).and_then(|id| id.try_into().ok()).map(JobEventId::from_bytes);
            let id = id.ok_or_else(|| codec::inconsistent("a malformed id among the events of a job"))?;
            Ok((id, record))
        })
        .collect()
}
