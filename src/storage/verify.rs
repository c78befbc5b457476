//! Verification: reads all records and reports problems.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::agents::{self, AgentRecord, AgentVersionRecord};
use super::audit::{AuditIndexRow, AuditRecord};
use super::batches::BatchRecord;
use super::check_report::{CheckReport, cause, records};
use super::content_chunks::{Chunk, OrphanedChunks};
use super::conversations::{self, ConversationRecord, MessageRecord};
use super::error::CheckError;
use super::file_records::FileRecord;
use super::fine_tuning_checkpoints::{CheckpointRecord, TunedModelRow};
use super::fine_tuning_jobs::{JobEventRecord, JobRecord, OpenJobRow, TrainingStateRecord};
use super::idempotency_records::IdempotencyRecord;
use super::keys::{KeyIndexRow, KeyRecord, KeyUse};
use super::limits::{LevelsRecord, LimitsRecord};
use super::project_resources::{self, ProjectResource};
use super::projects::ProjectRecord;
use super::quota_usage::QuotaUsageRecord;
use super::responses::ResponseRecord;
use super::store::Store;
use super::stored_images::{self, ExpiryIndexRow, ImageChunk, StoredImageRecord};
use super::transaction::{ReadTx, Reader};
use super::work_leases::WorkLeaseRecord;
use super::{tables, verify_batches, verify_responses, verify_usage_sums};
use crate::error::{Error, Result};
use crate::ids::FileId;

impl Store {
    /// Reads every record of one snapshot while the server continues. Blocking.
    pub fn verify(&self) -> Result<CheckReport, CheckError> {
        let unfinished = |error: Error| CheckError::Unfinished { reason: cause(&error) };
        let mut report = self.read_blocking(verify).map_err(unfinished)?;
        report.bytes = self.bytes();
        Ok(report)
    }
}

/// Reads every record of a snapshot.
pub(super) fn verify(tx: &ReadTx) -> Result<CheckReport> {
    let mut report = CheckReport { records: tx.tables()?, ..CheckReport::default() };
    projects(tx, &mut report)?;
    keys(tx, &mut report)?;
    key_index(tx, &mut report)?;
    records(tx, &mut report, &mut |_, _: KeyUse| Ok(None))?;
    project_resources::<ConversationRecord>(tx, &mut report)?;
    project_resources::<AgentRecord>(tx, &mut report)?;
    transcripts(tx, &mut report)?;
    agent_versions(tx, &mut report)?;
    audit(tx, &mut report)?;
    records(tx, &mut report, &mut |_, _: LimitsRecord| Ok(None))?;
    records(tx, &mut report, &mut |_, _: LevelsRecord| Ok(None))?;
    records(tx, &mut report, &mut |_, _: QuotaUsageRecord| Ok(None))?;
    records(tx, &mut report, &mut |_, _: IdempotencyRecord| Ok(None))?;
    verify_usage_sums::check(tx, &mut report)?;
    project_resources::<FileRecord>(tx, &mut report)?;
    project_resources::<CheckpointRecord>(tx, &mut report)?;
    chunks(tx, &mut report)?;
    project_resources::<JobRecord>(tx, &mut report)?;
    jobs(tx, &mut report)?;
    stored_images(tx, &mut report)?;
    project_resources::<ResponseRecord>(tx, &mut report)?;
    verify_responses::check(tx, &mut report)?;
    project_resources::<BatchRecord>(tx, &mut report)?;
    verify_batches::check(tx, &mut report)?;
    records(tx, &mut report, &mut |_, _: WorkLeaseRecord| Ok(None))?;
    Ok(report)
}

fn projects(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |key, _: ProjectRecord| {
        Ok((key.len() != 16).then(|| "a project has a malformed id".into()))
    })
}

fn keys(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |key, record: KeyRecord| {
        let project = record.project.to_bytes();
        if tx.raw(tables::PROJECTS, &project)?.is_none() {
            return Ok(Some(format!(
                "key '{}' belongs to project {}, which does not exist",
                record.name, record.project
            )));
        }
        let listed = tx.raw(tables::KEYS_BY_PROJECT, &[&project, key].concat())?.is_some();
        Ok((!listed).then(|| format!("key '{}' is missing in the index of its project", record.name)))
    })
}

fn key_index(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |row_key, _: KeyIndexRow| {
        let (project, key) = row_key.split_at_checked(16).unwrap_or_default();
        let record: Option<KeyRecord> = tx.get(key)?;
        let fits = record.is_some_and(|record| record.project.to_bytes() == project);
        Ok((!fits).then(|| "the index of keys lists a key that is not in the project".into()))
    })
}

/// Checks that each resource is listed under its project. Each kind has a line in `verify`.
fn project_resources<R: ProjectResource>(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |id, record: R| {
        let (kind, project) = (R::KIND, record.project());
        let id = id.try_into().map_err(|_| Error::internal(format!("a {kind:?} has a malformed id")))?;
        let listed = tx.raw(tables::OWNED, &project_resources::row_key(kind, project, id))?.is_some();
        Ok((!listed).then(|| format!("a {kind:?} of {project} is missing in the index of resources")))
    })
}

/// Checks that files, saved trainings and adapters have their last chunk, and that a chunk belongs to one of them or is marked
/// as orphaned.
fn chunks(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let last = |id: &[u8], chunks: u32| [id, &chunks.saturating_sub(1).to_be_bytes()].concat();
    let exists = |id: &[u8], chunks: u32| Ok::<_, Error>(tx.raw(tables::FILE_CHUNKS, &last(id, chunks))?.is_some());
    let mut adapters = BTreeMap::new();
    records(tx, report, &mut |id, file: FileRecord| {
        Ok((!exists(id, file.chunks)?).then(|| format!("the file '{}' has lost the end of its content", file.name)))
    })?;
    records(tx, report, &mut |id, state: TrainingStateRecord| {
        Ok((!exists(id, state.chunks)?).then(|| format!("the saved state of {} has lost its end", state.job)))
    })?;
    records(tx, report, &mut |_, checkpoint: CheckpointRecord| {
        let CheckpointRecord { weights, chunks, job, .. } = checkpoint;
        adapters.insert(weights, chunks);
        Ok((!exists(&weights.to_bytes(), chunks)?).then(|| format!("an adapter of {job} has lost its end")))
    })?;
    records(tx, report, &mut |row_key, _: Chunk| {
        let id = row_key.get(..16).unwrap_or_default();
        let file = tx.get::<FileRecord>(id)?.map(|file| file.chunks);
        let state = || Ok::<_, Error>(tx.get::<TrainingStateRecord>(id)?.map(|state| state.chunks));
        let adapter = || adapters.get(&id.try_into().map_or(FileId::from_bytes([0; 16]), FileId::from_bytes)).copied();
        let chunks = match file {
            Some(chunks) => Some(chunks),
            None => state()?.or_else(adapter),
        };
        let fits = match chunks {
            Some(chunks) => row_key <= last(id, chunks).as_slice(),
            None => tx.get::<OrphanedChunks>(id)?.is_some(),
        };
        Ok((!fits).then(|| "a content chunk belongs to nothing".into()))
    })
}

/// Checks that what a fine-tuning job has refers to it, and the other way round.
fn jobs(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |row_key, _: JobEventRecord| {
        let job = tx.raw(tables::JOBS, row_key.get(..16).unwrap_or_default())?;
        Ok(job.is_none().then(|| "an event belongs to no fine-tuning job".into()))
    })?;
    records(tx, report, &mut |id, _: OpenJobRow| {
        Ok(tx.raw(tables::JOBS, id)?.is_none().then(|| "an open fine-tuning job does not exist".into()))
    })?;
    records(tx, report, &mut |id, state: TrainingStateRecord| {
        let job: Option<JobRecord> = tx.get(&state.job.to_bytes())?;
        let fits = job.and_then(|job| job.saved).is_some_and(|saved| saved.content.to_bytes() == id);
        Ok((!fits).then(|| format!("a saved state is not that of {}", state.job)))
    })?;
    records(tx, report, &mut |name, TunedModelRow(id): TunedModelRow| {
        let checkpoint: Option<CheckpointRecord> = tx.get(&id)?;
        let fits = checkpoint.is_some_and(|found| found.names.iter().any(|known| known.as_bytes() == name));
        Ok((!fits).then(|| "the name of a tuned model belongs to no checkpoint".into()))
    })
}

/// Checks that an image has its chunks and index row, and that these belong to an image.
fn stored_images(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |id, record: StoredImageRecord| {
        let last = [id, &record.chunks.saturating_sub(1).to_be_bytes()].concat();
        let whole = tx.raw(tables::STORED_IMAGE_CHUNKS, &last)?.is_some();
        let ends = tx.raw(tables::STORED_IMAGES_BY_EXPIRY, &stored_images::expiry_key(record.ends_at, id))?.is_some();
        let project = record.project;
        Ok((!whole || !ends).then(|| format!("an image of {project} has no content or no expiry entry")))
    })?;
    records(tx, report, &mut |row_key, _: ImageChunk| {
        let (id, at) = row_key.split_at_checked(16).unwrap_or_default();
        let image: Option<StoredImageRecord> = tx.get(id)?;
        let at = at.try_into().map(u32::from_be_bytes);
        let fits = image.is_some_and(|image| at.is_ok_and(|at| at < image.chunks));
        Ok((!fits).then(|| "an image chunk belongs to no image".into()))
    })?;
    records(tx, report, &mut |key, _: ExpiryIndexRow| {
        let (ends_at, id) = stored_images::parse_expiry_key(key)?;
        let fits = stored_images::find(tx, id)?.is_some_and(|image| image.ends_at == ends_at);
        Ok((!fits).then(|| "an expiry entry belongs to no image".into()))
    })
}

/// Checks the message count and bytes of every conversation, and that every message has a conversation.
fn transcripts(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |id, record: ConversationRecord| {
        let (mut count, mut bytes) = (0, record.metadata.map_or(0, |text| text.len() as u64));
        tx.each(id, None, &mut |_, message: MessageRecord| {
            count += 1;
            bytes += message.json.len() as u64;
            Ok(ControlFlow::Continue(()))
        })?;
        let fits = (count, bytes) == (record.messages, record.bytes);
        let (expected, project) = (record.messages, record.project);
        Ok((!fits)
            .then(|| format!("a conversation of {project} has {count} of {expected} messages, {bytes} bytes in all")))
    })?;
    records(tx, report, &mut |row_key, _: MessageRecord| {
        let row = conversations::row_of(row_key);
        let conversation: Option<ConversationRecord> = tx.get(row_key.get(..16).unwrap_or_default())?;
        let rows = conversation.map_or(0..0, |record| record.first_row..record.next_row);
        let fits = row.is_ok_and(|row| rows.contains(&row));
        Ok((!fits).then(|| "a message is in no conversation".into()))
    })
}

/// Checks the version count and bytes of every agent, and that every version has an agent.
fn agent_versions(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |id, record: AgentRecord| {
        let (mut count, mut bytes) = (0, 0);
        tx.each(id, None, &mut |_, version: AgentVersionRecord| {
            count += 1;
            bytes += version.bytes();
            Ok(ControlFlow::Continue(()))
        })?;
        let expected = (record.version + 1).saturating_sub(record.oldest);
        let fits = (count, bytes) == (expected, record.bytes);
        let project = record.project;
        Ok((!fits).then(|| format!("an agent of {project} has {count} of {expected} versions, {bytes} bytes in all")))
    })?;
    records(tx, report, &mut |row_key, _: AgentVersionRecord| {
        let version = agents::number(row_key)?;
        let agent: Option<AgentRecord> = tx.get(row_key.get(..16).unwrap_or_default())?;
        let fits = agent.is_some_and(|agent| (agent.oldest..=agent.version).contains(&version));
        Ok((!fits).then(|| format!("version {version} of an agent belongs to none")))
    })
}

fn audit(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |row_key, row: AuditRecord| {
        let (project, id) = row_key.split_at_checked(16).unwrap_or_default();
        let found: Option<AuditIndexRow> = tx.get(id)?;
        let fits = found.is_some_and(|found| found.project.to_bytes() == project);
        Ok((!fits).then(|| format!("audit row {} of {} is missing in the index", row.action, row.at)))
    })?;
    records(tx, report, &mut |id, AuditIndexRow { project }| {
        let exists = tx.raw(tables::AUDIT, &[&project.to_bytes(), id].concat())?.is_some();
        Ok((!exists).then(|| "the index of the audit log names a row that does not exist".into()))
    })
}
