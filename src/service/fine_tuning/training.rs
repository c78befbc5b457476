//! Reports of a job's training. These methods have no [`Access`](super::Access): the server itself calls them. If nodes
//! share the store, each of them requires that this process has claimed the job.

use std::collections::BTreeMap;

use super::Jobs;
use super::checkpoints::{self, model_name};
use super::claims::{claimed, of};
use super::job::{Job, JobError, JobState, Level, Progress};
use super::job_records::{Ended, end, meter, plain_event};
use super::spec::Hyperparameters;
use crate::clock_rng::Timestamp;
use crate::error::{Code, Error, Result};
use crate::ids::{CheckpointId, FileId, JobEventId, JobId};
use crate::service::Access;
use crate::service::access::authorize;
use crate::service::files::contents::SweepGuard;
use crate::service::limits::quotas::{self, signed};
use crate::storage::files::FileRecord;
use crate::storage::fine_tuning_checkpoints::{self, CheckpointRecord};
use crate::storage::fine_tuning_jobs::{self, JobEventRecord, JobRecord, SavedStateRecord, append_event};
use crate::storage::work_leases::{self, Work};
use crate::storage::{WriteTx, project_resources};

/// Checkpoints of a job that are kept.
const MAX_CHECKPOINTS: usize = 3;

/// A job that has not ended.
#[derive(Clone, Debug)]
pub struct OpenJob {
    pub job: Job,
    /// As requested.
    pub requested: Hyperparameters,
    /// With the values that were chosen for "auto"; `None` before the first start.
    pub resolved: Option<Hyperparameters>,
    /// The step of the saved state, if there is one.
    pub saved_step: Option<u32>,
}

/// An adapter that a training has made.
#[derive(Clone, Debug)]
pub struct NewAdapter<'a> {
    /// `adapter_config.json`
    pub config: &'a str,
    /// `adapter_model.safetensors`
    pub weights: &'a [u8],
}

/// A state of a training that is to be saved.
#[derive(Clone, Debug)]
pub struct NewState<'a> {
    pub step: u32,
    /// Set for the last step of the training.
    pub is_last: bool,
    /// Tokens that were trained on since the beginning.
    pub tokens: u64,
    pub bytes: &'a [u8],
    pub adapter: Option<NewAdapter<'a>>,
}

impl Jobs {
    /// The jobs that have not ended and that no other live process trains, oldest first. Those of archived projects wait.
    pub async fn open_jobs(&self) -> Result<Vec<OpenJob>> {
        let peers = self.store.peers();
        let jobs = self.store.read(move |tx| {
            let mut jobs = fine_tuning_jobs::open_jobs(tx)?;
            let mut active = BTreeMap::new();
            for (_, record) in &jobs {
                active.insert(record.project, authorize::is_active_project(tx, record.project)?);
            }
            jobs.retain(|(_, record)| active.get(&record.project) == Some(&true));
            work_leases::retain_available(tx, &mut jobs, |(id, _)| Work::Job(*id), &peers)?;
            Ok(jobs)
        });
        let jobs = jobs.await?;
        let open = |(id, record): (JobId, JobRecord)| OpenJob {
            requested: record.hyperparameters.clone(),
            resolved: record.resolved.clone(),
            saved_step: record.saved.map(|saved| saved.step),
            job: Job::new(id, record),
        };
        Ok(jobs.into_iter().map(open).collect())
    }

    /// The content of one of a job's files. `Err` with `invalid_parameter` if the file was deleted.
    pub async fn file_content(&self, id: FileId, param: &'static str) -> Result<Vec<u8>> {
        let file = self.store.read(move |tx| project_resources::find::<FileRecord>(tx, id.to_bytes())).await?;
        let deleted = || Error::invalid(param, format!("The file {id} of '{param}' was deleted."));
        let content = self.contents.read(id, file.ok_or_else(deleted)?.chunks).await;
        content.map_err(|error| if error.code() == Code::NotFound { deleted() } else { error })
    }

    /// The state that a job's training saved last.
    pub async fn saved_state(&self, id: JobId) -> Result<Option<Vec<u8>>> {
        match self.store.read(move |tx| Ok(of(tx, id)?.saved)).await? {
            Some(saved) => self.contents.read(saved.content, saved.chunks).await.map(Some),
            None => Ok(None),
        }
    }

    /// Records that a job's training starts or resumes. `false`: the job was paused or has ended meanwhile.
    pub async fn start(&self, id: JobId, resolved: Hyperparameters, message: String) -> Result<bool> {
        let (now, event) = (self.clock_rng.now(), JobEventId::generate(&*self.clock_rng));
        let started = self.store.write(move |tx| {
            let mut record = claimed(tx, id)?;
            if !matches!(JobState::from_number(record.state), JobState::Queued | JobState::Running) {
                return Ok(false);
            }
            record.state = JobState::Running as u8;
            record.resolved = Some(resolved.clone());
            record.updated_at = now;
            append_event(tx, id, event, &plain_event(now, Level::Info, message.clone()))?;
            project_resources::replace(tx, id.to_bytes(), &record)?;
            Ok(true)
        });
        started.await
    }

    /// Stores how far a training has come, with the tokens that it was trained on since the beginning. `metrics`: an event for a
    /// step, with a message and its measurements as JSON. `false`: the training is to stop, because the project was archived.
    pub async fn report(
        &self,
        id: JobId,
        progress: Progress,
        tokens: u64,
        metrics: Option<(String, String)>,
    ) -> Result<bool> {
        let (now, event) = (self.clock_rng.now(), JobEventId::generate(&*self.clock_rng));
        let written = self.store.write(move |tx| {
            let mut record = claimed(tx, id)?;
            if JobState::from_number(record.state).is_final() {
                return Ok(true);
            }
            record.progress = Some(progress);
            record.trained_tokens = Some(tokens);
            record.updated_at = now;
            project_resources::replace(tx, id.to_bytes(), &record)?;
            if let Some((message, metrics)) = metrics.clone() {
                let new = JobEventRecord { metrics: Some(metrics), ..plain_event(now, Level::Info, message) };
                append_event(tx, id, event, &new)?;
            }
            authorize::is_active_project(tx, record.project)
        });
        written.await
    }

    /// Adds an event to a job.
    pub async fn add_event(&self, id: JobId, level: Level, message: String) -> Result<()> {
        let (now, event) = (self.clock_rng.now(), JobEventId::generate(&*self.clock_rng));
        let record = plain_event(now, level, message);
        let written = self.store.write(move |tx| {
            work_leases::require(tx, Work::Job(id))?;
            append_event(tx, id, event, &record)
        });
        written.await
    }

    /// Saves the state of a training. If it comes with an adapter, this is a checkpoint, which can be called as a model; the
    /// last one ends the job. Nothing is saved if the job has ended meanwhile.
    pub async fn save(&self, id: JobId, new: NewState<'_>) -> Result<JobState> {
        let now = self.clock_rng.now();
        let NewState { step, is_last, tokens, bytes, adapter } = new;
        // The state of an ended training is of no use.
        let state = match is_last {
            true => None,
            false => Some(self.contents.write(bytes).await?),
        };
        let saved = state.as_ref().map(|state| SavedStateRecord {
            content: state.id,
            bytes: state.bytes,
            chunks: state.chunks,
            step,
        });
        let written = match &adapter {
            Some(adapter) => Some((adapter.config.to_owned(), self.contents.write(adapter.weights).await?)),
            None => None,
        };
        let adapter = written.as_ref().map(|(config, content)| WrittenAdapter {
            config: config.clone(),
            weights: content.id,
            bytes: content.bytes,
            chunks: content.chunks,
        });
        let (checkpoint, tail) = (CheckpointId::generate(&*self.clock_rng), self.usage_tail());
        let events = [JobEventId::generate(&*self.clock_rng), JobEventId::generate(&*self.clock_rng)];
        let saving = self.store.write(move |tx| {
            let mut record = claimed(tx, id)?;
            let before = JobState::from_number(record.state);
            if before.is_final() {
                return Ok((before, Vec::new(), (record.project, 0)));
            }
            let (mut released, mut metered) = (Vec::new(), 0);
            let old_bytes = record.saved.map_or(0, |saved| saved.bytes);
            let new_bytes = saved.map_or(0, |saved| saved.bytes);
            quotas::charge_bytes(tx, record.project, now, signed(new_bytes) - signed(old_bytes))?;
            released.extend(fine_tuning_jobs::replace_state(tx, id, &mut record, saved)?);
            record.trained_tokens = Some(tokens);
            if let Some(adapter) = adapter.clone() {
                let name = model_name(tx, id, &record)?;
                let names = [format!("{name}:ckpt-step-{step}")].into_iter().chain(is_last.then(|| name.clone()));
                let new = checkpoint_record(id, &record, (step, names.collect()), adapter, now);
                let message = format!("Checkpoint created at step {step}: {}", new.names[0]);
                append_event(tx, id, events[0], &plain_event(now, Level::Info, message))?;
                released.extend(add_checkpoint(tx, &mut record, checkpoint, &new)?);
                if is_last {
                    let message = format!("The job has succeeded. The new model is {name}.");
                    append_event(tx, id, events[1], &plain_event(now, Level::Info, message))?;
                    record.fine_tuned_model = Some(name);
                    let ended = Ended { state: JobState::Succeeded, error: None, at: now, tail };
                    metered = end(tx, id, &mut record, ended)?.0;
                }
            }
            record.updated_at = now;
            project_resources::replace(tx, id.to_bytes(), &record)?;
            Ok((JobState::from_number(record.state), released, (record.project, metered)))
        });
        let (state, released, (project, metered)) = saving.await?;
        self.limits.add_used(project, metered);
        self.contents.sweep(released);
        Ok(state)
    }

    /// Meters what a training has done when it stops before its end.
    pub async fn meter(&self, id: JobId) -> Result<()> {
        let (now, tail) = (self.clock_rng.now(), self.usage_tail());
        let written = self.store.write(move |tx| {
            let mut record = claimed(tx, id)?;
            let metered = meter(tx, &mut record, now, tail)?;
            project_resources::replace(tx, id.to_bytes(), &record)?;
            Ok((record.project, metered))
        });
        let (project, metered) = written.await?;
        self.limits.add_used(project, metered);
        Ok(())
    }

    /// Ends a job that cannot continue. Does nothing if it has ended meanwhile.
    pub async fn fail(&self, id: JobId, error: JobError) -> Result<()> {
        let (now, tail) = (self.clock_rng.now(), self.usage_tail());
        let event = JobEventId::generate(&*self.clock_rng);
        let failing = self.store.write(move |tx| {
            let mut record = claimed(tx, id)?;
            if JobState::from_number(record.state).is_final() {
                return Ok((None, (record.project, 0)));
            }
            let ended = Ended { state: JobState::Failed, error: Some(error.clone()), at: now, tail };
            let (metered, released) = end(tx, id, &mut record, ended)?;
            record.updated_at = now;
            append_event(tx, id, event, &plain_event(now, Level::Error, error.message.clone()))?;
            project_resources::replace(tx, id.to_bytes(), &record)?;
            Ok((released, (record.project, metered)))
        });
        let (released, (project, metered)) = failing.await?;
        self.limits.add_used(project, metered);
        self.contents.sweep(released);
        Ok(())
    }

    /// Random bytes for the key of a usage record.
    pub(super) fn usage_tail(&self) -> [u8; 6] {
        let mut tail = [0; 6];
        self.clock_rng.fill(&mut tail);
        tail
    }

    /// Removes the chunks of a job's saved state when it is dropped, if the job has ended by then.
    pub(super) async fn saved_chunks(&self, access: &Access, id: JobId) -> Result<Option<SweepGuard>> {
        let access = access.clone();
        let saved = self.store.read(move |tx| Ok(super::find(tx, &access, id)?.saved)).await?;
        Ok(saved.map(|saved| self.contents.guard(saved.content)))
    }
}

/// An adapter whose weights are stored.
#[derive(Clone)]
struct WrittenAdapter {
    config: String,
    weights: FileId,
    bytes: u64,
    chunks: u32,
}

fn checkpoint_record(
    job: JobId,
    record: &JobRecord,
    (step, names): (u32, Vec<String>),
    WrittenAdapter { config, weights, bytes, chunks }: WrittenAdapter,
    created_at: Timestamp,
) -> CheckpointRecord {
    let Progress { train_loss, train_accuracy, valid_loss, valid_accuracy, .. } = record.progress.unwrap_or_default();
    let (project, base) = (record.project, record.model.clone());
    CheckpointRecord {
        project,
        job,
        step,
        names,
        base,
        train_loss,
        train_accuracy,
        valid_loss,
        valid_accuracy,
        config,
        weights,
        bytes,
        chunks,
        created_at,
    }
}

/// Adds a checkpoint to a job, and removes its oldest if there are too many. Returns the contents of those.
fn add_checkpoint(
    tx: &WriteTx,
    record: &mut JobRecord,
    id: CheckpointId,
    new: &CheckpointRecord,
) -> Result<Vec<FileId>> {
    quotas::charge_bytes(tx, record.project, new.created_at, signed(new.bytes))?;
    fine_tuning_checkpoints::insert(tx, id, new)?;
    record.checkpoints.push(id.to_bytes());
    let excess = record.checkpoints.len().saturating_sub(MAX_CHECKPOINTS);
    let oldest = record.checkpoints.drain(..excess).map(CheckpointId::from_bytes);
    let removed = oldest.map(|id| checkpoints::remove(tx, id, new.created_at)).collect::<Result<Vec<_>>>()?;
    Ok(removed.into_iter().flatten().collect())
}
