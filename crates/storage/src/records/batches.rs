//! Stored batches, and the results of their requests until the batch ends.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::project_resources::{self, ProjectResource, ResourceKind};
use crate::codec::{self, Record};
use crate::error::{Error, Result};
use crate::ids::{BatchId, FileId, KeyId, ProjectId};
use crate::numbered::numbered;
use crate::tables::{BATCH_RESULTS, BATCHES, OPEN_BATCHES, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

numbered! {
    /// The state of a batch.
    BatchState else Failed {
        Validating = 1 "validating",
        Failed = 2 "failed",
        InProgress = 3 "in_progress",
        Finalizing = 4 "finalizing",
        Completed = 5 "completed",
        Expired = 6 "expired",
        Cancelling = 7 "cancelling",
        Cancelled = 8 "cancelled",
    }
}

impl BatchState {
    /// True for states that never change again.
    pub fn is_final(self) -> bool {
        matches!(self, BatchState::Failed | BatchState::Completed | BatchState::Expired | BatchState::Cancelled)
    }
}

numbered! {
    /// The endpoint that the requests of a batch are for.
    BatchEndpoint else ChatCompletions {
        ChatCompletions = 1 "ChatCompletions",
        Responses = 2 "Responses",
        Completions = 3 "Completions",
        Embeddings = 4 "Embeddings",
        Moderations = 5 "Moderations",
    }
}

impl BatchEndpoint {
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

    /// Parses the path.
    pub fn from_path(path: &str) -> Result<Self> {
        Self::ALL.iter().copied().find(|endpoint| endpoint.path() == path).ok_or_else(|| {
            let shown: String = path.chars().take(40).collect();
            let known: Vec<&str> = Self::ALL.iter().map(|endpoint| endpoint.path()).collect();
            Error::invalid(
                "endpoint",
                format!("'endpoint' is '{shown}'; batches are supported for {}.", known.join(", ")),
            )
        })
    }
}

/// A batch: what the service stores and shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRecord {
    pub project: ProjectId,
    /// The key that created the batch, which its requests are metered for.
    pub key: KeyId,
    pub endpoint: BatchEndpoint,
    pub input_file: FileId,
    /// A JSON object, as text.
    pub metadata: Option<String>,
    pub state: BatchState,
    /// The state in which a batch that is being finalized ends.
    pub ends_as: Option<BatchState>,
    pub errors: Vec<BatchErrorRecord>,
    pub output_file: Option<FileId>,
    pub error_file: Option<FileId>,
    /// Requests of the input; 0 until it is validated.
    pub total: u32,
    pub completed: u32,
    pub failed: u32,
    /// Bytes of the results that are stored, for the quota. JSON of earlier versions does not have it.
    #[serde(default)]
    pub result_bytes: u64,
    pub times: BatchTimesRecord,
}

/// When a batch got into each of its states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchTimesRecord {
    pub created: Timestamp,
    /// The end of its completion window.
    pub expires: Timestamp,
    pub in_progress: Option<Timestamp>,
    pub cancelling: Option<Timestamp>,
    pub finalizing: Option<Timestamp>,
    /// When it got into its final state.
    pub ended: Option<Timestamp>,
}

/// Why a batch failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchErrorRecord {
    pub code: String,
    pub message: String,
    pub param: Option<String>,
    /// The line of the input, counted from 1.
    pub line: Option<u32>,
}

impl Record for BatchRecord {
    const TABLE: Table = BATCHES;
    const VERSION: u8 = 1;
}

impl ProjectResource for BatchRecord {
    const KIND: ResourceKind = ResourceKind::Batch;

    fn project(&self) -> ProjectId {
        self.project
    }
}

/// The result of one request.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BatchResultRecord {
    /// Set for results of the output file. Others go to the error file.
    pub succeeded: bool,
    /// The line of the file, JSON without a line break.
    pub json: String,
}

impl Record for BatchResultRecord {
    const TABLE: Table = BATCH_RESULTS;
    const VERSION: u8 = 1;
}

/// An index row; all information is in its key.
#[derive(Serialize, Deserialize)]
pub(crate) struct OpenBatchRow;

impl Record for OpenBatchRow {
    const TABLE: Table = OPEN_BATCHES;
    const VERSION: u8 = 1;
}

/// Stores a new batch.
pub fn insert(tx: &WriteTx, id: BatchId, record: &BatchRecord) -> Result<()> {
    project_resources::insert(tx, id.to_bytes(), record)?;
    tx.put(&id.to_bytes(), &OpenBatchRow)
}

/// Every batch that has not ended, or whose results are not removed yet, oldest first.
pub fn open(tx: &impl Reader) -> Result<Vec<(BatchId, BatchRecord)>> {
    let found = project_resources::indexed(tx, OPEN_BATCHES)?;
    Ok(found.into_iter().map(|(id, record)| (BatchId::from_bytes(id), record)).collect())
}

pub fn put_result(tx: &WriteTx, id: BatchId, line: u32, result: &BatchResultRecord) -> Result<()> {
    tx.put(&result_key(id, line), result)
}

/// The result of the request in a line.
pub fn result(tx: &impl Reader, id: BatchId, line: u32) -> Result<Option<BatchResultRecord>> {
    tx.get(&result_key(id, line))
}

pub fn has_result(tx: &impl Reader, id: BatchId, line: u32) -> Result<bool> {
    Ok(tx.raw(BATCH_RESULTS, &result_key(id, line))?.is_some())
}

/// The lines whose requests have a result.
pub fn lines_with_results(tx: &impl Reader, id: BatchId) -> Result<HashSet<u32>> {
    let line_of = |key: Vec<u8>| {
        let line = key.get(16..).and_then(|line| line.try_into().ok()).map(u32::from_be_bytes);
        line.ok_or_else(|| codec::inconsistent("a malformed line among the results of a batch"))
    };
    tx.keys(BATCH_RESULTS, &id.to_bytes(), None, None)?.into_iter().map(line_of).collect()
}

/// Removes up to `limit` results of a batch that has ended. Returns whether none is left; then the batch is no longer open.
pub fn remove_results(tx: &WriteTx, id: BatchId, limit: usize) -> Result<bool> {
    let found = tx.keys(BATCH_RESULTS, &id.to_bytes(), None, Some(limit))?;
    found.iter().try_for_each(|key| tx.remove::<BatchResultRecord>(key))?;
    let done = found.len() < limit;
    if done {
        tx.remove::<OpenBatchRow>(&id.to_bytes())?;
    }
    Ok(done)
}

/// Removes the oldest batch of a project that is not open any more.
pub fn remove_oldest_ended(tx: &WriteTx, project: ProjectId) -> Result<()> {
    let all = project_resources::newest::<BatchRecord>(tx, project, None, usize::MAX)?;
    for (id, record) in all.iter().rev() {
        if tx.get::<OpenBatchRow>(id)?.is_none() {
            return project_resources::remove(tx, *id, record);
        }
    }
    Ok(())
}

fn result_key(id: BatchId, line: u32) -> Vec<u8> {
    [&id.to_bytes()[..], &line.to_be_bytes()].concat()
}
