//! A fine-tuning job: its state, fields and events.

use serde::{Deserialize, Serialize};

use super::spec::{Hyperparameters, Method};
use crate::clock_rng::Timestamp;
use crate::ids::{FileId, JobEventId, JobId, ProjectId};
use crate::service::writes::patch::Patch;
use crate::storage::fine_tuning_jobs::JobRecord;
pub use crate::storage::fine_tuning_jobs::{JobErrorRecord as JobError, ProgressRecord as Progress};

/// The state of a job. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum JobState {
    Queued = 1,
    Running = 2,
    Succeeded = 3,
    Failed = 4,
    Cancelled = 5,
    Paused = 6,
}

impl JobState {
    const ALL: [JobState; 6] = [
        JobState::Queued,
        JobState::Running,
        JobState::Succeeded,
        JobState::Failed,
        JobState::Cancelled,
        JobState::Paused,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Succeeded => "succeeded",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
            JobState::Paused => "paused",
        }
    }

    /// True for states that never change again.
    pub fn is_final(self) -> bool {
        !matches!(self, JobState::Queued | JobState::Running | JobState::Paused)
    }

    /// Numbers written by a later version are shown as failed.
    pub(super) fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|state| *state as u8 == number).unwrap_or(JobState::Failed)
    }
}

/// A fine-tuning job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub id: JobId,
    pub project: ProjectId,
    pub name: Option<String>,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    pub model: String,
    pub training_file: FileId,
    pub validation_file: Option<FileId>,
    pub method: Method,
    /// As requested; once it has started, with the values that were chosen for "auto".
    pub hyperparameters: Hyperparameters,
    pub suffix: Option<String>,
    pub seed: u32,
    pub state: JobState,
    pub error: Option<JobError>,
    pub progress: Option<Progress>,
    pub fine_tuned_model: Option<String>,
    pub trained_tokens: Option<u64>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub finished_at: Option<Timestamp>,
}

impl Job {
    pub(super) fn new(id: JobId, record: JobRecord) -> Self {
        Self {
            id,
            project: record.project,
            name: record.name,
            metadata: record.metadata,
            model: record.model,
            training_file: record.training_file,
            validation_file: record.validation_file,
            method: Method::from_number(record.method),
            hyperparameters: record.resolved.unwrap_or(record.hyperparameters),
            suffix: record.suffix,
            seed: record.seed,
            state: JobState::from_number(record.state),
            error: record.error,
            progress: record.progress,
            fine_tuned_model: record.fine_tuned_model,
            trained_tokens: record.trained_tokens,
            created_at: record.created_at,
            updated_at: record.updated_at,
            finished_at: record.finished_at,
        }
    }
}

/// The level of an event. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Level {
    Info = 1,
    Warn = 2,
    Error = 3,
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }

    pub(super) fn from_number(number: u8) -> Self {
        [Level::Info, Level::Warn].into_iter().find(|level| *level as u8 == number).unwrap_or(Level::Error)
    }
}

/// An event of a job.
#[derive(Clone, Debug)]
pub struct JobEvent {
    pub id: JobEventId,
    pub at: Timestamp,
    pub level: Level,
    pub message: String,
    /// The measurements of a step; a JSON object, as text.
    pub metrics: Option<String>,
}

/// An update of a job's labels; nothing else can change.
#[derive(Clone, Debug)]
pub struct JobPatch {
    pub name: Patch<String>,
    /// A JSON object, as text.
    pub metadata: Patch<String>,
}
