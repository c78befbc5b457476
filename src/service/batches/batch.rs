//! A batch: its states and fields.

use serde::{Deserialize, Serialize};

use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::{BatchId, FileId, KeyId, ProjectId};
use crate::storage::batches::BatchRecord;
pub use crate::storage::batches::{BatchErrorRecord as BatchError, BatchTimesRecord as BatchTimes};

/// The state of a batch. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum BatchState {
    Validating = 1,
    Failed = 2,
    InProgress = 3,
    Finalizing = 4,
    Completed = 5,
    Expired = 6,
    Cancelling = 7,
    Cancelled = 8,
}

impl BatchState {
    const ALL: [BatchState; 8] = [
        BatchState::Validating,
        BatchState::Failed,
        BatchState::InProgress,
        BatchState::Finalizing,
        BatchState::Completed,
        BatchState::Expired,
        BatchState::Cancelling,
        BatchState::Cancelled,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            BatchState::Validating => "validating",
            BatchState::Failed => "failed",
            BatchState::InProgress => "in_progress",
            BatchState::Finalizing => "finalizing",
            BatchState::Completed => "completed",
            BatchState::Expired => "expired",
            BatchState::Cancelling => "cancelling",
            BatchState::Cancelled => "cancelled",
        }
    }

    /// True for states that never change again.
    pub fn is_final(self) -> bool {
        matches!(self, BatchState::Failed | BatchState::Completed | BatchState::Expired | BatchState::Cancelled)
    }

    /// Numbers written by a later version are shown as failed.
    pub(super) fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|state| *state as u8 == number).unwrap_or(BatchState::Failed)
    }
}

/// The endpoint that the requests of a batch are for. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum BatchEndpoint {
    ChatCompletions = 1,
    Responses = 2,
    Completions = 3,
    Embeddings = 4,
    Moderations = 5,
}

impl BatchEndpoint {
    const ALL: [BatchEndpoint; 5] = [
        BatchEndpoint::ChatCompletions,
        BatchEndpoint::Responses,
        BatchEndpoint::Completions,
        BatchEndpoint::Embeddings,
        BatchEndpoint::Moderations,
    ];

    /// The path, as in the field `endpoint` and in each line of the input.
    pub fn path(self) -> &'static str {
        match self {
            BatchEndpoint::ChatCompletions => "/v1/chat/completions",
            BatchEndpoint::Responses => "/v1/responses",
            BatchEndpoint::Completions => "/v1/completions",
            BatchEndpoint::Embeddings => "/v1/embeddings",
            BatchEndpoint::Moderations => "/v1/moderations",
        }
    }

    /// The name under which requests of batches are metered.
    pub fn metered_as(self) -> &'static str {
        match self {
            BatchEndpoint::ChatCompletions => "BATCH /chat/completions",
            BatchEndpoint::Responses => "BATCH /responses",
            BatchEndpoint::Completions => "BATCH /completions",
            BatchEndpoint::Embeddings => "BATCH /embeddings",
            BatchEndpoint::Moderations => "BATCH /moderations",
        }
    }

    /// Parses the path.
    pub fn from_path(path: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.path() == path).ok_or_else(|| {
            let shown: String = path.chars().take(40).collect();
            let known = Self::ALL.map(Self::path).join(", ");
            Error::invalid("endpoint", format!("'endpoint' is '{shown}'; batches are supported for {known}."))
        })
    }

    /// Numbers written by a later version end in errors about the requests.
    pub(super) fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|endpoint| *endpoint as u8 == number).unwrap_or(BatchEndpoint::ChatCompletions)
    }
}

/// A batch of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub id: BatchId,
    pub project: ProjectId,
    pub key: KeyId,
    pub endpoint: BatchEndpoint,
    pub input_file: FileId,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    pub state: BatchState,
    /// The state in which a batch that is being finalized ends.
    pub ends_as: Option<BatchState>,
    pub errors: Vec<BatchError>,
    pub output_file: Option<FileId>,
    pub error_file: Option<FileId>,
    /// Requests of the input; 0 until it is validated.
    pub total: u32,
    pub completed: u32,
    pub failed: u32,
    pub times: BatchTimes,
}

impl Batch {
    pub(super) fn new(id: BatchId, record: BatchRecord) -> Self {
        Self {
            id,
            project: record.project,
            key: record.key,
            endpoint: BatchEndpoint::from_number(record.endpoint),
            input_file: record.input_file,
            metadata: record.metadata,
            state: BatchState::from_number(record.state),
            ends_as: record.ends_as.map(BatchState::from_number),
            errors: record.errors,
            output_file: record.output_file,
            error_file: record.error_file,
            total: record.total,
            completed: record.completed,
            failed: record.failed,
            times: record.times,
        }
    }

    /// When it got into a final state.
    pub fn ended_as(&self, state: BatchState) -> Option<Timestamp> {
        self.times.ended.filter(|_| self.state == state)
    }
}

/// A batch to create.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// Absent: the project of the key.
    pub project: Option<ProjectId>,
    pub endpoint: BatchEndpoint,
    pub input_file: FileId,
    /// A JSON object, as text.
    pub metadata: Option<String>,
}
