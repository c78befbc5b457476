//! Fine-tuning jobs, and the models that they have trained.
//!
//! A job is queued here. What trains it ([`crate::calls::fine_tuning`]) reports back through the methods of [`training`].

mod checkpoints;
mod claims;
mod export;
mod job;
mod job_records;
mod model_changes;
mod spec;
mod training;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::json;
use tokio::sync::watch;

pub use self::checkpoints::{Checkpoint, StoredAdapter, TUNED_PREFIX, TunedModel};
pub use self::export::export_model;
pub use self::job::{Job, JobError, JobEvent, JobPatch, JobState, Level, Progress};
use self::job_records::{Ended, end, plain_event};
pub use self::model_changes::{ModelObservation, ModelObserver};
use self::spec::JobSpec;
pub use self::spec::{Hyperparameters, Method, NewJob, RequestedHyperparameters, draw_seed, limits};
pub use self::training::{NewAdapter, NewState, OpenJob};
use super::access::authorize;
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::files::contents::Contents;
use super::files::{self, Purpose};
use super::limits::Limits;
use super::limits::quotas::{self, QuotaKind};
use super::pagination::{Listing, Page, PageRequest, page};
use super::training_data::ExampleFormat;
use super::validation;
use super::writes::patch::Patch;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::{FileId, JobEventId, JobId, KeyId, ProjectId};
use crate::storage::files::FileRecord;
use crate::storage::fine_tuning_jobs::{self, JobEventRecord, JobRecord, append_event};
use crate::storage::{Reader, Store, WriteTx, project_resources};

/// The fine-tuning service.
#[derive(Clone)]
pub struct Jobs {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    contents: Contents,
    limits: Limits,
    /// Changes when a job may have to be started, paused or cancelled.
    changes: Arc<watch::Sender<()>>,
}

impl Jobs {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>, contents: Contents, limits: Limits) -> Self {
        Self { store, clock_rng, contents, limits, changes: Arc::new(watch::channel(()).0) }
    }

    /// Changes when a job may have to be started, paused or cancelled.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Lets what trains jobs look at them.
    pub(in crate::service) fn look(&self) {
        self.changes.send_replace(());
    }

    /// Creates a job for a model that the key may call. The caller has checked that it is installed.
    pub async fn create(&self, access: &Access, new: NewJob) -> Result<Job> {
        let now = self.clock_rng.now();
        let (named, project) = (new.project.is_some(), new.project.unwrap_or(access.project()));
        let record = record(project, access.key(), JobSpec::new(new, &*self.clock_rng)?, now);
        let id = JobId::generate(&*self.clock_rng);
        let event = JobEventId::generate(&*self.clock_rng);
        let entry = self.audit_entry(access, "fine_tuning_job.created");
        let model = record.model.clone();
        let permit = move |_: &WriteTx, caller: &Access| {
            caller.require(project, Scope::Project)?;
            caller.require_model(&model)
        };
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            authorize::active_project(tx, caller, project, named)?;
            caller.require_model(&record.model)?;
            let method = Method::from_number(record.method);
            check_file(tx, caller, project, method, (record.training_file, "training_file"))?;
            if let Some(file) = record.validation_file {
                check_file(tx, caller, project, method, (file, "validation_file"))?;
            }
            quotas::charge(tx, project, now, QuotaKind::Job, 1, 0)?;
            fine_tuning_jobs::insert(tx, id, &record)?;
            append_event(tx, id, event, &plain_event(now, Level::Info, format!("Created fine-tuning job: {id}")))?;
            entry.write(tx, project, id, &json!({ "model": record.model, "training_file": record.training_file }))?;
            Ok(Job::new(id, record.clone()))
        });
        let job = written.await?;
        self.look();
        Ok(job)
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
        let event = |(id, JobEventRecord { at, level, message, metrics })| JobEvent {
            id,
            at,
            level: Level::from_number(level),
            message,
            metrics,
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

    /// Cancels a job that has not ended. Its checkpoints stay.
    pub async fn cancel(&self, access: &Access, id: JobId) -> Result<Job> {
        let now = self.clock_rng.now();
        let event = JobEventId::generate(&*self.clock_rng);
        let tail = self.usage_tail();
        let chunks = self.saved_chunks(access, id).await?;
        let metered = Arc::new(AtomicU64::new(0));
        let tokens = metered.clone();
        let job = self.change(access, id, "fine_tuning_job.cancelled", now, move |tx, record| {
            let state = JobState::from_number(record.state);
            if state.is_final() {
                return Err(conflict(state, "cancelled", "queued, running and paused"));
            }
            let ended = Ended { state: JobState::Cancelled, error: None, at: now, tail };
            metered.store(end(tx, id, record, ended)?.0, Ordering::Relaxed);
            append_event(tx, id, event, &plain_event(now, Level::Info, "The job was cancelled.".into()))?;
            Ok(json!({ "state": state }))
        });
        let job = job.await?;
        self.limits.add_used(job.project, tokens.load(Ordering::Relaxed));
        drop(chunks);
        self.look();
        Ok(job)
    }

    /// Pauses a job that is queued or running. It keeps what it has learned.
    pub async fn pause(&self, access: &Access, id: JobId) -> Result<Job> {
        self.switch(access, id, JobState::Paused, "fine_tuning_job.paused", "The job was paused.").await
    }

    /// Queues a paused job again.
    pub async fn resume(&self, access: &Access, id: JobId) -> Result<Job> {
        self.switch(access, id, JobState::Queued, "fine_tuning_job.resumed", "The job was resumed.").await
    }

    /// Pauses or resumes a job.
    async fn switch(
        &self,
        access: &Access,
        id: JobId,
        to: JobState,
        action: &'static str,
        message: &'static str,
    ) -> Result<Job> {
        let now = self.clock_rng.now();
        let event = JobEventId::generate(&*self.clock_rng);
        let job = self.change(access, id, action, now, move |tx, record| {
            let state = JobState::from_number(record.state);
            let possible = match to {
                JobState::Paused => matches!(state, JobState::Queued | JobState::Running),
                _ => state == JobState::Paused,
            };
            if !possible {
                return Err(match to {
                    JobState::Paused => conflict(state, "paused", "queued and running"),
                    _ => conflict(state, "resumed", "paused"),
                });
            }
            record.state = to as u8;
            append_event(tx, id, event, &plain_event(now, Level::Info, message.into()))?;
            Ok(json!({ "state": state }))
        });
        let job = job.await?;
        self.look();
        Ok(job)
    }

    /// Common part of all changes by a caller. `change` edits the record and returns the audit detail.
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

fn conflict(state: JobState, done: &str, possible: &str) -> Error {
    let cannot = match state {
        JobState::Cancelled => "has been cancelled and cannot",
        JobState::Succeeded => "has succeeded and can no longer",
        JobState::Failed => "has failed and can no longer",
        JobState::Queued => "is queued and cannot",
        JobState::Running => "is running and cannot",
        JobState::Paused => "is paused and cannot",
    };
    Error::new(Code::Conflict, format!("The job {cannot} be {done}. Only {possible} jobs can."))
}

fn record(project: ProjectId, key: KeyId, spec: JobSpec, now: Timestamp) -> JobRecord {
    JobRecord {
        project,
        key: Some(key),
        name: spec.name,
        metadata: spec.metadata,
        model: spec.model,
        training_file: spec.training_file,
        validation_file: spec.validation_file,
        method: spec.method as u8,
        hyperparameters: spec.hyperparameters,
        resolved: None,
        suffix: spec.suffix,
        seed: spec.seed,
        state: JobState::Queued as u8,
        error: None,
        progress: None,
        saved: None,
        checkpoints: Vec::new(),
        fine_tuned_model: None,
        trained_tokens: None,
        metered_tokens: 0,
        created_at: now,
        updated_at: now,
        finished_at: None,
    }
}

fn find(tx: &impl Reader, access: &Access, id: JobId) -> Result<JobRecord> {
    authorize::resource(tx, access, Scope::Project, "fine-tuning job", (id, id.to_bytes()))
}

/// Checks that a job's file exists, is accessible, belongs to the job's project and has examples for the method.
fn check_file(
    tx: &impl Reader,
    access: &Access,
    project: ProjectId,
    method: Method,
    (id, param): (FileId, &'static str),
) -> Result<()> {
    let file: FileRecord = files::find(tx, access, id).map_err(|error| error.param(param))?;
    if file.project != project {
        let text = format!(
            "'{param}' is {id}, which belongs to {}, but the job to {project}. Upload the file to the job's project.",
            file.project
        );
        return Err(Error::invalid(param, text));
    }
    if file.purpose != Purpose::FineTune {
        let text = format!("'{param}' is {id}, which was not uploaded for fine-tuning. Upload it with that purpose.");
        return Err(Error::invalid(param, text));
    }
    let wrong = |text: &str| Error::invalid(param, format!("'{param}' is {id}, but {text}"));
    check_format(method, ExampleFormat::from_number(file.example_format)).map_err(wrong)
}

/// Checks that a method can train on examples of a format.
///
/// # Errors
/// What is wrong with the examples, and the remedy.
pub fn check_format(method: Method, format: Option<ExampleFormat>) -> std::result::Result<(), &'static str> {
    match (method, format == Some(ExampleFormat::Preference)) {
        (Method::Dpo, false) => Err(
            "its examples have no preferences. The method 'dpo' needs 'input', 'preferred_output' and 'non_preferred_output' in each line.",
        ),
        (Method::Supervised, true) => Err("its examples are preferences. Train on them with the method 'dpo'."),
        _ => Ok(()),
    }
}
