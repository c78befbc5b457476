//! Stored fine-tuning jobs and their events.

use serde::{Deserialize, Serialize};

use super::content_chunks;
use super::project_resources::{self, ProjectResource, ResourceKind};
use crate::codec::{self, Record};
use crate::error::Result;
use crate::ids::{FileId, JobEventId, JobId, KeyId, ProjectId};
use crate::tables::{JOB_EVENTS, JOBS, OPEN_JOBS, TRAINING_STATES, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JobRecord {
    pub project: ProjectId,
    /// The key that created the job, which its tokens are metered for.
    pub key: Option<KeyId>,
    pub name: Option<String>,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    pub model: String,
    pub training_file: FileId,
    pub validation_file: Option<FileId>,
    /// The service's method as a number.
    pub method: u8,
    /// As requested.
    pub hyperparameters: HyperparametersRecord,
    /// With the values that were chosen for "auto"; `None` before the first start.
    pub resolved: Option<HyperparametersRecord>,
    /// Part of the trained model's name.
    pub suffix: Option<String>,
    pub seed: u32,
    /// The service's state as a number.
    pub state: u8,
    pub error: Option<JobErrorRecord>,
    pub progress: Option<ProgressRecord>,
    pub saved: Option<SavedStateRecord>,
    /// The ids of the checkpoints that exist, oldest first.
    pub checkpoints: Vec<[u8; 16]>,
    pub fine_tuned_model: Option<String>,
    pub trained_tokens: Option<u64>,
    /// Those of the trained tokens that are in the usage.
    pub metered_tokens: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

/// Absent values are chosen by the training ("auto").
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HyperparametersRecord {
    pub n_epochs: Option<u32>,
    pub batch_size: Option<u32>,
    pub learning_rate_multiplier: Option<f64>,
    /// Of direct preference optimization.
    pub beta: Option<f64>,
    pub lora_rank: Option<u32>,
    pub lora_alpha: Option<f64>,
    pub lora_dropout: Option<f64>,
    /// Names of modules; `None`: all linear layers.
    pub target_modules: Option<Vec<String>>,
    /// Max tokens of an example.
    pub max_length: Option<u32>,
    pub packing: Option<bool>,
}

/// The progress of a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressRecord {
    pub step: u32,
    pub steps: u32,
    pub train_loss: f32,
    pub train_accuracy: f32,
    pub valid_loss: Option<f32>,
    pub valid_accuracy: Option<f32>,
    pub tokens_per_second: f32,
    /// Seconds.
    pub time_left: f32,
}

/// The state from which an interrupted training resumes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedStateRecord {
    pub content: FileId,
    pub bytes: u64,
    pub chunks: u32,
    pub step: u32,
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
    pub at: Timestamp,
    /// The service's level as a number.
    pub level: u8,
    pub message: String,
    /// The measurements of a step; a JSON object, as text.
    pub metrics: Option<String>,
}

impl Record for JobEventRecord {
    const TABLE: Table = JOB_EVENTS;
    const VERSION: u8 = 1;
}

/// An index row; all information is in its key.
#[derive(Serialize, Deserialize)]
pub(crate) struct OpenJobRow;

impl Record for OpenJobRow {
    const TABLE: Table = OPEN_JOBS;
    const VERSION: u8 = 1;
}

/// Refers to the content that a saved state consists of.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TrainingStateRecord {
    pub job: JobId,
    pub chunks: u32,
}

impl Record for TrainingStateRecord {
    const TABLE: Table = TRAINING_STATES;
    const VERSION: u8 = 1;
}

/// Stores a new job that has not ended.
pub fn insert(tx: &WriteTx, id: JobId, record: &JobRecord) -> Result<()> {
    project_resources::insert(tx, id.to_bytes(), record)?;
    tx.put(&id.to_bytes(), &OpenJobRow)
}

/// Called when a job ends.
pub fn close(tx: &WriteTx, id: JobId) -> Result<()> {
    tx.remove::<OpenJobRow>(&id.to_bytes())
}

/// The jobs that have not ended, oldest first.
pub fn open_jobs(tx: &impl Reader) -> Result<Vec<(JobId, JobRecord)>> {
    let found = project_resources::indexed(tx, OPEN_JOBS)?;
    Ok(found.into_iter().map(|(id, record)| (JobId::from_bytes(id), record)).collect())
}

/// Replaces the saved state of a job by content that was stored. Returns the content that it had before, whose chunks are
/// removed by [`content_chunks::sweep`].
pub fn replace_state(
    tx: &WriteTx,
    job: JobId,
    record: &mut JobRecord,
    saved: Option<SavedStateRecord>,
) -> Result<Option<FileId>> {
    let before = std::mem::replace(&mut record.saved, saved);
    if let Some(SavedStateRecord { content, chunks, .. }) = saved {
        content_chunks::claim(tx, content)?;
        tx.put(&content.to_bytes(), &TrainingStateRecord { job, chunks })?;
    }
    let Some(before) = before else { return Ok(None) };
    tx.remove::<TrainingStateRecord>(&before.content.to_bytes())?;
    content_chunks::release(tx, before.content)?;
    Ok(Some(before.content))
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
