//! The adapters that jobs have trained, as models that their project can call.

use serde_json::json;

use super::super::access::Scope;
use super::super::pagination::{Listing, Page, PageRequest, page};
use super::{Access, Jobs, find};
use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::ids::{CheckpointId, FileId, JobId, ProjectId};
use crate::service::access::authorize;
use crate::service::limits::quotas::{self, signed};
use crate::storage::fine_tuning_checkpoints::{self, CheckpointRecord};
use crate::storage::fine_tuning_jobs::JobRecord;
use crate::storage::{Reader, WriteTx, content_chunks, project_resources, projects};

/// Begins the names of all tuned models.
pub const TUNED_PREFIX: &str = "ft:";
/// Tuned models of a project that are listed.
const MAX_LISTED: usize = 10_000;
/// Characters of the project's name in the name of a model.
const MAX_PROJECT_CHARS: usize = 24;
/// Digits of the job's id in the name of a model.
const ID_DIGITS: usize = 12;

/// A checkpoint of a job.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    pub id: CheckpointId,
    pub job: JobId,
    pub step: u32,
    /// The model that it is.
    pub model: String,
    pub train_loss: f32,
    pub train_accuracy: f32,
    pub valid_loss: Option<f32>,
    pub valid_accuracy: Option<f32>,
    pub created_at: Timestamp,
}

/// A model that a job has trained: a checkpoint under one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedModel {
    pub name: String,
    pub checkpoint: CheckpointId,
    pub project: ProjectId,
    /// The ID of the base model.
    pub base: String,
    /// Size of the adapter's weights.
    pub bytes: u64,
    pub created_at: Timestamp,
}

/// Where a checkpoint's adapter is read from.
#[derive(Clone)]
pub struct StoredAdapter {
    jobs: Jobs,
    checkpoint: CheckpointId,
}

impl StoredAdapter {
    /// Reads `adapter_config.json` and `adapter_model.safetensors`. Blocks.
    pub fn read(&self) -> Result<(String, Vec<u8>)> {
        let id = self.checkpoint;
        self.jobs.store.read_blocking(|tx| {
            let found = project_resources::find::<CheckpointRecord>(tx, id.to_bytes())?;
            read_adapter(tx, id, found.ok_or_else(|| Error::not_found("checkpoint", id))?)
        })
    }
}

/// The contents of a checkpoint's `adapter_config.json` and `adapter_model.safetensors`.
pub(super) fn read_adapter(tx: &impl Reader, id: CheckpointId, record: CheckpointRecord) -> Result<(String, Vec<u8>)> {
    let CheckpointRecord { config, weights, chunks, bytes, .. } = record;
    let content = content_chunks::read(tx, weights, chunks)?;
    match content.len() as u64 == bytes {
        true => Ok((config, content)),
        false => Err(Error::internal(format!("the adapter {id} has {} of {bytes} bytes", content.len()))),
    }
}

impl std::fmt::Debug for StoredAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredAdapter").field("checkpoint", &self.checkpoint).finish_non_exhaustive()
    }
}

impl Jobs {
    /// A page of a job's checkpoints, newest first.
    pub async fn checkpoints(&self, access: &Access, id: JobId, request: PageRequest) -> Result<Page<Checkpoint>> {
        let listing = Listing { name: "job_checkpoints", owner: Some(id.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, CheckpointId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            let ids = find(tx, &access, id)?.checkpoints.into_iter().rev();
            let older = ids.filter(|id| window.before.is_none_or(|before| *id < before)).take(window.rows());
            older.map(|id| Ok((id, project_resources::find::<CheckpointRecord>(tx, id)?))).collect::<Result<Vec<_>>>()
        });
        let checkpoint = |(id, record): ([u8; 16], Option<CheckpointRecord>)| {
            let record = record?;
            Some(Checkpoint {
                id: CheckpointId::from_bytes(id),
                job: record.job,
                step: record.step,
                model: record.names.into_iter().next().unwrap_or_default(),
                train_loss: record.train_loss,
                train_accuracy: record.train_accuracy,
                valid_loss: record.valid_loss,
                valid_accuracy: record.valid_accuracy,
                created_at: record.created_at,
            })
        };
        let items = rows.await?.into_iter().filter_map(checkpoint).collect();
        Ok(page(self.store.pepper(), listing, window, items, |found: &Checkpoint| found.id.to_bytes()))
    }

    /// The tuned models of the key's project, newest first.
    pub async fn tuned_models(&self, access: &Access) -> Result<Vec<TunedModel>> {
        let project = access.project();
        let rows =
            self.store.read(move |tx| project_resources::newest::<CheckpointRecord>(tx, project, None, MAX_LISTED));
        let models = |(id, record): ([u8; 16], CheckpointRecord)| {
            let names = record.names.clone();
            names.into_iter().rev().map(move |name| tuned(CheckpointId::from_bytes(id), &record, name))
        };
        Ok(rows.await?.into_iter().flat_map(models).collect())
    }

    /// The tuned model of a name, if it belongs to the key's project.
    pub async fn tuned_model(&self, access: &Access, name: &str) -> Result<Option<TunedModel>> {
        let (project, name) = (access.project(), name.to_owned());
        let found = self.store.read(move |tx| {
            let found = fine_tuning_checkpoints::named(tx, &name)?.filter(|(_, record)| record.project == project);
            Ok(found.map(|(id, record)| tuned(id, &record, name)))
        });
        found.await
    }

    /// True if a tuned model exists, in any project.
    pub async fn has_model(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.store.read(move |tx| Ok(fine_tuning_checkpoints::named(tx, &name)?.is_some())).await
    }

    /// The adapter of a tuned model.
    pub fn adapter(&self, model: &TunedModel) -> StoredAdapter {
        StoredAdapter { jobs: self.clone(), checkpoint: model.checkpoint }
    }

    /// Deletes a tuned model with all its names. Returns these.
    pub async fn delete_model(&self, access: &Access, name: &str) -> Result<Vec<String>> {
        let now = self.clock_rng.now();
        let project = access.project();
        let entry = self.audit_entry(access, "tuned_model.deleted");
        let name = name.to_owned();
        let permit = authorize::manage_project(project);
        let deleted = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            caller.require(project, Scope::Project)?;
            let found = fine_tuning_checkpoints::named(tx, &name)?.filter(|(_, record)| record.project == project);
            let (id, record) = found.ok_or_else(|| Error::not_found("model", &name))?;
            if let Some(mut job) = project_resources::find::<JobRecord>(tx, record.job.to_bytes())? {
                job.checkpoints.retain(|checkpoint| *checkpoint != id.to_bytes());
                project_resources::replace(tx, record.job.to_bytes(), &job)?;
            }
            let content = remove(tx, id, now)?;
            entry.write(tx, project, &name, &json!({ "job": record.job, "bytes": record.bytes }))?;
            Ok((record.names, content))
        });
        let (names, content) = deleted.await?;
        self.contents.sweep(content);
        Ok(names)
    }
}

fn tuned(checkpoint: CheckpointId, record: &CheckpointRecord, name: String) -> TunedModel {
    let CheckpointRecord { project, base, bytes, created_at, .. } = record;
    TunedModel { name, checkpoint, project: *project, base: base.clone(), bytes: *bytes, created_at: *created_at }
}

/// Removes a checkpoint, if it exists. Returns its content.
pub(super) fn remove(tx: &WriteTx, id: CheckpointId, now: Timestamp) -> Result<Option<FileId>> {
    let Some(record) = project_resources::find::<CheckpointRecord>(tx, id.to_bytes())? else { return Ok(None) };
    quotas::charge_bytes(tx, record.project, now, -signed(record.bytes))?;
    fine_tuning_checkpoints::remove(tx, id, &record)?;
    Ok(Some(record.weights))
}

/// The name of the model that a job trains: `ft:<base>:<project>:<suffix>:<id>`.
pub(super) fn model_name(tx: &impl Reader, id: JobId, record: &JobRecord) -> Result<String> {
    let project = projects::find(tx, record.project)?.map(|project| slug(&project.name)).unwrap_or_default();
    let suffix = record.suffix.as_deref().unwrap_or_default();
    let id = id.to_string();
    let digits = &id[id.len() - ID_DIGITS..];
    Ok(format!("{TUNED_PREFIX}{}:{project}:{suffix}:{digits}", record.model))
}

/// A name as part of a model's name: lower case letters and digits of ASCII, and hyphens between them.
fn slug(name: &str) -> String {
    let mut slug = String::new();
    for part in name.split(|char: char| !char.is_ascii_alphanumeric()).filter(|part| !part.is_empty()) {
        let hyphen = if slug.is_empty() { "" } else { "-" };
        if slug.len() + hyphen.len() + part.len() > MAX_PROJECT_CHARS {
            slug.extend((hyphen.to_owned() + part).chars().take(MAX_PROJECT_CHARS - slug.len()));
            break;
        }
        slug.push_str(hyphen);
        slug.push_str(part);
    }
    slug.make_ascii_lowercase();
    slug.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::slug;

    #[test]
    fn a_slug_has_only_letters_digits_and_hyphens() {
        assert_eq!(slug("Support Bot (v2)"), "support-bot-v2");
        assert_eq!(slug("  ü: "), "");
        assert_eq!(slug("a project with a very long name"), "a-project-with-a-very-lo");
        assert_eq!(slug("abcdefghijklmnopqrstuvw x"), "abcdefghijklmnopqrstuvw");
    }
}
