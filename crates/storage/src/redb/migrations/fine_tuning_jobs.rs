//! Layout 3 to 4: fine-tuning jobs have progress and saved states, and their events measurements. Jobs of layout 3 have all
//! ended.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::codec::Record;
use crate::error::Result;
use crate::fine_tuning_jobs::{HyperparametersRecord, JobErrorRecord, JobEventRecord, JobRecord};
use crate::ids::{FileId, ProjectId};
use crate::record_serde;
use crate::tables::{JOB_EVENTS, JOBS, Table};
use crate::transaction::{Reader as _, WriteTx};
use outpost_common::clock_rng::Timestamp;

/// The number of the method that was the only one.
const SUPERVISED: u8 = 1;

#[derive(Serialize, Deserialize)]
struct OldJob {
    #[serde(with = "record_serde::project_id")]
    project: ProjectId,
    name: Option<String>,
    metadata: Option<String>,
    model: String,
    #[serde(with = "record_serde::file_id")]
    training_file: FileId,
    #[serde(with = "record_serde::maybe_file_id")]
    validation_file: Option<FileId>,
    hyperparameters: OldHyperparameters,
    suffix: Option<String>,
    seed: u32,
    state: u8,
    error: Option<JobErrorRecord>,
    fine_tuned_model: Option<String>,
    trained_tokens: Option<u64>,
    #[serde(with = "record_serde::time")]
    created_at: Timestamp,
    #[serde(with = "record_serde::time")]
    updated_at: Timestamp,
    #[serde(with = "record_serde::maybe_time")]
    finished_at: Option<Timestamp>,
}

#[derive(Serialize, Deserialize)]
struct OldHyperparameters {
    n_epochs: Option<u32>,
    batch_size: Option<u32>,
    learning_rate_multiplier: Option<f64>,
}

impl Record for OldJob {
    const TABLE: Table = JOBS;
    const VERSION: u8 = 1;
}

#[derive(Serialize, Deserialize)]
struct OldEvent {
    #[serde(with = "record_serde::time")]
    at: Timestamp,
    level: u8,
    message: String,
}

impl Record for OldEvent {
    const TABLE: Table = JOB_EVENTS;
    const VERSION: u8 = 1;
}

impl From<OldJob> for JobRecord {
    fn from(old: OldJob) -> Self {
        let OldHyperparameters { n_epochs, batch_size, learning_rate_multiplier } = old.hyperparameters;
        Self {
            project: old.project,
            key: None,
            name: old.name,
            metadata: old.metadata,
            model: old.model,
            training_file: old.training_file,
            validation_file: old.validation_file,
            method: SUPERVISED,
            hyperparameters: HyperparametersRecord {
                n_epochs,
                batch_size,
                learning_rate_multiplier,
                ..HyperparametersRecord::default()
            },
            resolved: None,
            suffix: old.suffix,
            seed: old.seed,
            state: old.state,
            error: old.error,
            progress: None,
            saved: None,
            checkpoints: Vec::new(),
            fine_tuned_model: old.fine_tuned_model,
            trained_tokens: old.trained_tokens,
            metered_tokens: 0,
            created_at: old.created_at,
            updated_at: old.updated_at,
            finished_at: old.finished_at,
        }
    }
}

pub(super) fn extend_jobs(tx: &WriteTx) -> Result<()> {
    let mut jobs: Vec<(Vec<u8>, JobRecord)> = Vec::new();
    tx.each(&[], None, &mut |key, old: OldJob| {
        jobs.push((key.to_vec(), old.into()));
        Ok(ControlFlow::Continue(()))
    })?;
    jobs.iter().try_for_each(|(key, job)| tx.put(key, job))?;
    let mut events = Vec::new();
    tx.each(&[], None, &mut |key, OldEvent { at, level, message }| {
        events.push((key.to_vec(), JobEventRecord { at, level, message, metrics: None }));
        Ok(ControlFlow::Continue(()))
    })?;
    events.iter().try_for_each(|(key, event)| tx.put(key, event))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_keeps_its_fields() {
        let time = Timestamp::from_millis(5);
        let old = OldJob {
            project: ProjectId::from_bytes([1; 16]),
            name: Some("name".to_owned()),
            metadata: None,
            model: "base".to_owned(),
            training_file: FileId::from_bytes([2; 16]),
            validation_file: None,
            hyperparameters: OldHyperparameters {
                n_epochs: Some(3),
                batch_size: None,
                learning_rate_multiplier: Some(0.5),
            },
            suffix: None,
            seed: 7,
            state: 4,
            error: None,
            fine_tuned_model: None,
            trained_tokens: None,
            created_at: time,
            updated_at: time,
            finished_at: Some(time),
        };
        let job = JobRecord::from(old);
        assert_eq!((job.method, job.hyperparameters.n_epochs, job.seed, job.state), (SUPERVISED, Some(3), 7, 4));
        assert_eq!((job.model.as_str(), job.finished_at, job.saved), ("base", Some(time), None));
    }
}
