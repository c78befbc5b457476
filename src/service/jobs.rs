//! Fine-tuning jobs. This server cannot train yet: a job is stored with all that it asks for and
//! fails at once, with an event that says why.

use std::sync::Arc;

use serde_json::json;

use super::access::{Access, Scope};
use super::audit::Note;
use super::change::Change;
use super::files::{self, Purpose};
use super::holdings::{self, Holding};
pub use super::job::{Job, JobChange, JobError, JobEvent, JobState, Level};
use super::page::{Listing, Page, PageRequest, page};
use super::training::{NewJob, Recipe};
use super::{authority, claim, fields};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::{FileId, JobEventId, JobId, ProjectId};
use crate::storage::fine_tuning_jobs::{self, JobEventRecord, JobRecord};
use crate::storage::{Reader, Store, WriteTx, project_resources};

const UNAVAILABLE: &str = "training_unavailable";
const CANNOT_TRAIN: &str = "This server cannot train models yet, so the job has failed and nothing was trained. \
    Train elsewhere and import the result with 'outpost models import'.";

/// The rules of fine-tuning jobs.
#[derive(Clone)]
pub struct Jobs {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl Jobs {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Makes a job. Whoever calls has seen to it that the model is there and may be used.
    pub async fn create(&self, access: &Access, new: NewJob) -> Result<Job> {
        let now = self.clock_rng.now();
        let (named, project) = (new.project.is_some(), new.project.unwrap_or(access.project()));
        let record = record(project, Recipe::new(new, &*self.clock_rng)?, now);
        let id = JobId::generate(&*self.clock_rng);
        let events = [JobEventId::generate(&*self.clock_rng), JobEventId::generate(&*self.clock_rng)];
        let note = self.note(access, "fine_tuning_job.created");
        let written = claim::write(&self.store, access, now, authority::manages(project), move |tx, caller| {
            authority::receiving_project(tx, caller, project, named)?;
            file_of(tx, caller, project, record.training_file, "training_file")?;
            record.validation_file.map_or(Ok(()), |file| file_of(tx, caller, project, file, "validation_file"))?;
            holdings::charge(tx, project, now, Holding::Job, 1, 0)?;
            project_resources::insert(tx, id.to_bytes(), &record)?;
            let told = [(Level::Info, format!("Created fine-tuning job: {id}")), (Level::Error, CANNOT_TRAIN.into())];
            for (event, (level, message)) in events.into_iter().zip(told) {
                append(tx, id, event, level, message, now)?;
            }
            note.write(tx, project, id, &json!({ "model": record.model, "training_file": record.training_file }))?;
            Ok(Job::new(id, record.clone()))
        });
        written.await
    }

    /// A page of a project's jobs, the newest first.
    pub async fn list(&self, access: &Access, project: Option<ProjectId>, request: PageRequest) -> Result<Page<Job>> {
        let (named, project) = (project.is_some(), project.unwrap_or(access.project()));
        let listing = Listing { name: "jobs", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, JobId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            authority::own_or_named_project(tx, &access, project, named)?;
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

    /// A page of what happened to a job, the newest first.
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

    /// Changes labels; an absent field stays.
    pub async fn update(&self, access: &Access, id: JobId, change: JobChange) -> Result<Job> {
        if let Change::Set(name) = &change.name {
            fields::name(name)?;
        }
        if let Change::Set(metadata) = &change.metadata {
            fields::metadata(Some(metadata))?;
        }
        let now = self.clock_rng.now();
        self.change(access, id, "fine_tuning_job.updated", now, move |_, record| {
            let old = record.name.clone();
            record.name = change.name.clone().applied(old.clone());
            record.metadata = change.metadata.clone().applied(record.metadata.take());
            Ok(json!({ "old": { "name": old }, "new": { "name": record.name } }))
        })
        .await
    }

    /// Ends a job that has not ended yet.
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

    /// The frame of update and cancel. `change` edits the record and returns the audit detail.
    async fn change(
        &self,
        access: &Access,
        id: JobId,
        action: &'static str,
        now: Timestamp,
        mut change: impl FnMut(&WriteTx, &mut JobRecord) -> Result<serde_json::Value> + Send + 'static,
    ) -> Result<Job> {
        let note = self.note(access, action);
        let permit = authority::manages_owner::<JobRecord>(id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let mut record = find(tx, caller, id)?;
            authority::living_owner(tx, record.project)?;
            let detail = change(tx, &mut record)?;
            record.updated_at = now;
            project_resources::replace(tx, id.to_bytes(), &record)?;
            note.write(tx, record.project, id, &detail)?;
            Ok(Job::new(id, record))
        });
        written.await
    }

    fn note(&self, access: &Access, action: &'static str) -> Note {
        Note::new(&self.clock_rng, Some(access), action)
    }
}

/// A job that has failed already, for nothing here can run it.
fn record(project: ProjectId, recipe: Recipe, now: Timestamp) -> JobRecord {
    JobRecord {
        project,
        name: recipe.name,
        metadata: recipe.metadata,
        model: recipe.model,
        training_file: recipe.training_file,
        validation_file: recipe.validation_file,
        hyperparameters: recipe.hyperparameters,
        suffix: recipe.suffix,
        seed: recipe.seed,
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
    authority::owned(tx, access, Scope::Project, "fine-tuning job", (id, id.to_bytes()))
}

/// Checks a file that a job names: there, within reach, and of the job's project.
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
