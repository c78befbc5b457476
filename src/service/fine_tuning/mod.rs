//! Fine-tuning jobs. This server cannot train yet: a job is stored with its parameters and fails at once, with an event
//! that says why.

mod job;
mod spec;

use std::sync::Arc;

use serde_json::json;

pub use self::job::{Job, JobError, JobEvent, JobPatch, JobState, Level};
use self::spec::JobSpec;
pub use self::spec::{Hyperparameters, NewJob, RequestedHyperparameters};
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::files::{self, Purpose};
use super::pagination::{Listing, Page, PageRequest, page};
use super::patch::Patch;
use super::quotas::{self, QuotaKind};
use super::{authorize, validation};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::{FileId, JobEventId, JobId, ProjectId};
use crate::storage::fine_tuning_jobs::{self, JobEventRecord, JobRecord};
use crate::storage::{Reader, Store, WriteTx, project_resources};

const UNAVAILABLE: &str = "training_unavailable";
const CANNOT_TRAIN: &str = "This server cannot train models yet, so the job has failed and nothing was trained. \
    Train elsewhere and import the result with 'outpost models import'.";

/// The fine-tuning service.
#[derive(Clone)]
pub struct Jobs {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl Jobs {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Creates a job. The caller has checked that the model is installed and may be used.
    pub async fn create(&self, access: &Access, new: NewJob) -> Result<Job> {
        let now = self.clock_rng.now();
        let (named, project) = (new.project.is_some(), new.project.unwrap_or(access.project()));
        let record = record(project, JobSpec::new(new, &*self.clock_rng)?, now);
        let id = JobId::generate(&*self.clock_rng);
        let events = [JobEventId::generate(&*self.clock_rng), JobEventId::generate(&*self.clock_rng)];
        let entry = self.audit_entry(access, "fine_tuning_job.created");
        let permit = authorize::manage_project(project);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            authorize::active_project(tx, caller, project, named)?;
            file_of(tx, caller, project, record.training_file, "training_file")?;
            record.validation_file.map_or(Ok(()), |file| file_of(tx, caller, project, file, "validation_file"))?;
            quotas::charge(tx, project, now, QuotaKind::Job, 1, 0)?;
            project_resources::insert(tx, id.to_bytes(), &record)?;
            let messages =
                [(Level::Info, format!("Created fine-tuning job: {id}")), (Level::Error, CANNOT_TRAIN.into())];
            for (event, (level, message)) in events.into_iter().zip(messages) {
                append(tx, id, event, level, message, now)?;
            }
            entry.write(tx, project, id, &json!({ "model": record.model, "training_file": record.training_file }))?;
            Ok(Job::new(id, record.clone()))
        });
        written.await
    }

    /// A page of a project's jobs, newest first.
    pub async fn list(&self, access: &Access, project: Option<ProjectId>, request: PageRequest) -> Result<Page<Job>> {
        let (named, project) = (project.is_some(), project.unwrap_or(access.project()));
        let listing = Listing { name: "jobs", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, JobId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            authorize::own_or_named_project(tx, &access, project, named)?;
            project_resources::newest::<JobRecord>(tx, project, window.before, window.rows())
        });
        let items = rows.await?.into_iter().map(|(id, record)| Job::new(JobId::from_bytes(id), record)).collect();
        Ok(page(self.store.pepper(), listing, window, items, |job: &Job| job.id.to_bytes()))
    }

    pub async fn get(&self, access: &Access, id: JobId) -> Result<Job> {
        let access = access.clone();
        let record = self.store.read(move |tx| find(tx, &access, id));
        Ok(Job::new(id, record.await?))
    }

    /// A page of a job's events, newest first.
    pub async fn events(&self, access: &Access, id: JobId, request: PageRequest) -> Result<Page<JobEvent>> {
        let listing = Listing { name: "job_events", owner: Some(id.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, JobEventId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            find(tx, &access, id)?;
            fine_tuning_jobs::newest_events(tx, id, window.before, window.rows())
        });
        let event = |(id, JobEventRecord { at, level, message })| JobEvent {
            id,
            at,
            level: Level::from_number(level),
            message,
        };
        let events = rows.await?.into_iter().map(event).collect();
        Ok(page(self.store.pepper(), listing, window, events, |event: &JobEvent| event.id.to_bytes()))
    }

    /// Updates labels; absent fields stay.
    pub async fn update(&self, access: &Access, id: JobId, change: JobPatch) -> Result<Job> {
        if let Patch::Set(name) = &change.name {
            validation::name(name)?;
        }
        if let Patch::Set(metadata) = &change.metadata {
            validation::metadata(Some(metadata))?;
        }
        let now = self.clock_rng.now();
        self.change(access, id, "fine_tuning_job.updated", now, move |_, record| {
            let old = record.name.clone();
            record.name = change.name.clone().apply_to(old.clone());
            record.metadata = change.metadata.clone().apply_to(record.metadata.take());
            Ok(json!({ "old": { "name": old }, "new": { "name": record.name } }))
        })
        .await
    }

    /// Cancels a job that has not ended.
    pub async fn cancel(&self, access: &Access, id: JobId) -> Result<Job> {
        let now = self.clock_rng.now();
        let event = JobEventId::generate(&*self.clock_rng);
        self.change(access, id, "fine_tuning_job.cancelled", now, move |tx, record| {
            let state = JobState::from_number(record.state);
            if state.is_final() {
                let text = format!(
                    "The job has {} and can no longer be cancelled. Only queued and running jobs can.",
                    if state == JobState::Cancelled { "been cancelled" } else { state.as_str() }
                );
                return Err(Error::new(Code::Conflict, text));
            }
            record.state = JobState::Cancelled as u8;
            record.finished_at = Some(now);
            append(tx, id, event, Level::Info, "The job was cancelled.".into(), now)?;
            Ok(json!({ "state": state }))
        })
        .await
    }

    /// Common part of update and cancel. `change` edits the record and returns the audit detail.
    async fn change(
        &self,
        access: &Access,
        id: JobId,
        action: &'static str,
        now: Timestamp,
        mut change: impl FnMut(&WriteTx, &mut JobRecord) -> Result<serde_json::Value> + Send + 'static,
    ) -> Result<Job> {
        let entry = self.audit_entry(access, action);
        let permit = authorize::manage_owner::<JobRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let mut record = find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            let detail = change(tx, &mut record)?;
            record.updated_at = now;
            project_resources::replace(tx, id.to_bytes(), &record)?;
            entry.write(tx, record.project, id, &detail)?;
            Ok(Job::new(id, record))
        });
        written.await
    }

    fn audit_entry(&self, access: &Access, action: &'static str) -> AuditEntry {
        AuditEntry::new(&self.clock_rng, Some(access), action)
    }
}

/// A job that has failed, because this server cannot run it.
fn record(project: ProjectId, spec: JobSpec, now: Timestamp) -> JobRecord {
    JobRecord {
        project,
        name: spec.name,
        metadata: spec.metadata,
        model: spec.model,
        training_file: spec.training_file,
        validation_file: spec.validation_file,
        hyperparameters: spec.hyperparameters,
        suffix: spec.suffix,
        seed: spec.seed,
        state: JobState::Failed as u8,
        error: Some(JobError { code: UNAVAILABLE.into(), message: CANNOT_TRAIN.into(), param: None }),
        fine_tuned_model: None,
        trained_tokens: None,
        created_at: now,
        updated_at: now,
        finished_at: Some(now),
    }
}

fn find(tx: &impl Reader, access: &Access, id: JobId) -> Result<JobRecord> {
    authorize::resource(tx, access, Scope::Project, "fine-tuning job", (id, id.to_bytes()))
}

/// Checks that a job's file exists, is accessible and belongs to the job's project.
fn file_of(tx: &impl Reader, access: &Access, project: ProjectId, id: FileId, param: &'static str) -> Result<()> {
    let file = files::find(tx, access, id).map_err(|error| error.param(param))?;
    if file.project != project {
        let text = format!(
            "'{param}' is {id}, which belongs to {}, but the job to {project}. Upload the file to the job's project.",
            file.project
        );
        return Err(Error::invalid(param, text));
    }
    if file.purpose != Purpose::FineTune as u8 {
        let text = format!("'{param}' is {id}, which was not uploaded for fine-tuning. Upload it with that purpose.");
        return Err(Error::invalid(param, text));
    }
    Ok(())
}

fn append(tx: &WriteTx, job: JobId, id: JobEventId, level: Level, message: String, at: Timestamp) -> Result<()> {
    fine_tuning_jobs::append_event(tx, job, id, &JobEventRecord { at, level: level as u8, message })
}
