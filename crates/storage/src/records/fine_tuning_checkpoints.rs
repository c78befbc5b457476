//! Stored adapters that fine-tuning jobs have trained, and the names of the models that they are.
//!
//! Adapters and saved states are in the database. A checkpoint, the state to continue from and the end of a job are
//! stored in one transaction, so a crash leaves nothing half-served, and a job never repeats a checkpoint. Backups,
//! quotas and the integrity check cover them without code of their own. The price is the size of the database: a state
//! takes 12 bytes for each parameter of the adapter, and is replaced every two minutes.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::content_chunks;
use super::project_resources::{self, ProjectResource, ResourceKind};
use crate::codec::Record;
use crate::error::{Error, Result};
use crate::ids::{CheckpointId, FileId, JobId, ProjectId};
use crate::tables::{CHECKPOINTS, TUNED_MODELS, Table};
use crate::transaction::{Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

/// An adapter.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CheckpointRecord {
    pub project: ProjectId,
    pub job: JobId,
    pub step: u32,
    /// The names of the models that it is: that of the checkpoint, and after the last step that of the job.
    pub names: Vec<String>,
    /// The ID of the base model.
    pub base: String,
    pub train_loss: f32,
    pub train_accuracy: f32,
    pub valid_loss: Option<f32>,
    pub valid_accuracy: Option<f32>,
    /// `adapter_config.json`
    pub config: String,
    /// `adapter_model.safetensors`
    pub weights: FileId,
    pub bytes: u64,
    pub chunks: u32,
    pub created_at: Timestamp,
}

impl Record for CheckpointRecord {
    const TABLE: Table = CHECKPOINTS;
    const VERSION: u8 = 1;
}

impl ProjectResource for CheckpointRecord {
    const KIND: ResourceKind = ResourceKind::Checkpoint;

    fn project(&self) -> ProjectId {
        self.project
    }
}

/// The table whose keys are the names of tuned models, for watchers.
pub const NAMES: Table = TUNED_MODELS;

/// The checkpoint that a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunedModelRow(pub [u8; 16]);

impl Record for TunedModelRow {
    const TABLE: Table = TUNED_MODELS;
    const VERSION: u8 = 1;
    const WATCHED: bool = true;
}

/// Stores a new checkpoint, whose weights are stored, with its names.
pub fn insert(tx: &WriteTx, id: CheckpointId, record: &CheckpointRecord) -> Result<()> {
    content_chunks::claim(tx, record.weights)?;
    for name in &record.names {
        if tx.get::<TunedModelRow>(name.as_bytes())?.is_some() {
            return Err(Error::internal(format!("there are two models '{name}'")));
        }
        tx.put(name.as_bytes(), &TunedModelRow(id.to_bytes()))?;
    }
    project_resources::insert(tx, id.to_bytes(), record)
}

/// The names of all tuned models, in descending order.
pub fn names(tx: &impl Reader) -> Result<Vec<String>> {
    let mut names = Vec::new();
    tx.each(&[], None, &mut |key, TunedModelRow(_)| {
        names.push(String::from_utf8_lossy(key).into_owned());
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(names)
}

/// The checkpoint with a name.
pub fn named(tx: &impl Reader, name: &str) -> Result<Option<(CheckpointId, CheckpointRecord)>> {
    let Some(TunedModelRow(id)) = tx.get(name.as_bytes())? else { return Ok(None) };
    Ok(project_resources::find(tx, id)?.map(|record| (CheckpointId::from_bytes(id), record)))
}

/// Removes a checkpoint and its names. Its chunks are removed by [`content_chunks::sweep`].
pub fn remove(tx: &WriteTx, id: CheckpointId, record: &CheckpointRecord) -> Result<()> {
    record.names.iter().try_for_each(|name| tx.remove::<TunedModelRow>(name.as_bytes()))?;
    content_chunks::release(tx, record.weights)?;
    project_resources::remove(tx, id.to_bytes(), record)
}
