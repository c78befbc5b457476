//! Verification: reads all records and reports problems.

mod contents;
pub(crate) mod report;
mod usage_sums;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::error::{Error, Result};
use crate::ids::FileId;
use crate::records::agents::{self, AgentRecord, AgentVersionRecord};
use crate::records::audit::{AuditIndexRow, AuditRecord};
use crate::records::batches::BatchRecord;
use crate::records::chat_completions::ChatCompletionRecord;
use crate::records::content_chunks::{Chunk, OrphanedChunks};
use crate::records::conversations::{self, ConversationRecord, MessageRecord};
use crate::records::files::FileRecord;
use crate::records::fine_tuning_checkpoints::{CheckpointRecord, TunedModelRow};
use crate::records::fine_tuning_jobs::{JobEventRecord, JobRecord, OpenJobRow, TrainingStateRecord};
use crate::records::idempotency_keys::IdempotencyRecord;
use crate::records::keys::{KeyIndexRow, KeyRecord, KeyUse};
use crate::records::limits::{LevelsRecord, LimitsRecord};
use crate::records::project_resources::{self, ProjectResource};
use crate::records::projects::ProjectRecord;
use crate::records::quota_usage::QuotaUsageRecord;
use crate::records::responses::ResponseRecord;
use crate::records::stored_images::{self, ExpiryIndexRow, ImageChunk, StoredImageRecord};
use crate::records::work_leases::WorkLeaseRecord;
use crate::store::Store;
use crate::store_error::CheckError;
use crate::tables;
use crate::transaction::{ReadTx, Reader};
use report::{CheckReport, cause, owner, records, records_with};

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
pub(crate) fn verify(tx: &ReadTx) -> Result<CheckReport> {
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
    usage_sums::check(tx, &mut report)?;
    project_resources::<FileRecord>(tx, &mut report)?;
    project_resources::<CheckpointRecord>(tx, &mut report)?;
    chunks(tx, &mut report)?;
    project_resources::<JobRecord>(tx, &mut report)?;
    jobs(tx, &mut report)?;
    stored_images(tx, &mut report)?;
    project_resources::<ResponseRecord>(tx, &mut report)?;
    contents::responses(tx, &mut report)?;
    project_resources::<ChatCompletionRecord>(tx, &mut report)?;
    contents::chat_completions(tx, &mut report)?;
    project_resources::<BatchRecord>(tx, &mut report)?;
    contents::batches(tx, &mut report)?;
    records(tx, &mut report, &mut |_, _: WorkLeaseRecord| Ok(None))?;
    Ok(report)
}

fn projects(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |key, _: ProjectRecord| {
        Ok((key.len() != 16).then(|| "a project has a malformed id".into()))
    })
}

fn keys(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let related = |key: &[u8], record: &KeyRecord| {
        let project = record.project.to_bytes();
        Ok([project.to_vec(), [&project, key].concat()])
    };
    records_with(tx, report, [tables::PROJECTS, tables::KEYS_BY_PROJECT], related, |_, record, [project, listed]| {
        if !project.exists()? {
            return Ok(Some(format!(
                "key '{}' belongs to project {}, which does not exist",
                record.name, record.project
            )));
        }
        Ok((!listed.exists()?).then(|| format!("key '{}' is missing in the index of its project", record.name)))
    })
}

fn key_index(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let key = |row_key: &[u8], _: &KeyIndexRow| Ok([row_key.get(16..).unwrap_or_default().to_vec()]);
    records_with(tx, report, [tables::KEYS], key, |row_key, _, [key]| {
        let record: Option<KeyRecord> = key.record(tx)?;
        let fits = record.is_some_and(|record| row_key.starts_with(&record.project.to_bytes()));
        Ok((!fits).then(|| "the index of keys lists a key that is not in the project".into()))
    })
}

/// Checks that each resource is listed under its project. Each kind has a line in `verify`.
fn project_resources<R: ProjectResource>(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let entry = |id: &[u8], record: &R| {
        let id = id.try_into().map_err(|_| Error::internal(format!("a {:?} has a malformed id", R::KIND)))?;
        Ok([project_resources::row_key(R::KIND, record.project(), id)])
    };
    records_with(tx, report, [tables::RESOURCES_BY_PROJECT], entry, |_, record, [listed]| {
        let (kind, project) = (R::KIND, record.project());
        Ok((!listed.exists()?).then(|| format!("a {kind:?} of {project} is missing in the index of resources")))
    })
}

/// Checks that files, saved trainings and adapters have their last chunk, and that a chunk belongs to one of them or is marked
/// as orphaned.
fn chunks(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let last = |id: &[u8], chunks: u32| [id, &chunks.saturating_sub(1).to_be_bytes()].concat();
    let mut adapters = BTreeMap::new();
    let end = |id: &[u8], file: &FileRecord| Ok([last(id, file.chunks)]);
    records_with(tx, report, [tables::CONTENT_CHUNKS], end, |_, file, [end]| {
        Ok((!end.exists()?).then(|| format!("the file '{}' has lost the end of its content", file.name)))
    })?;
    let end = |id: &[u8], state: &TrainingStateRecord| Ok([last(id, state.chunks)]);
    records_with(tx, report, [tables::CONTENT_CHUNKS], end, |_, state, [end]| {
        Ok((!end.exists()?).then(|| format!("the saved state of {} has lost its end", state.job)))
    })?;
    let end = |_: &[u8], adapter: &CheckpointRecord| Ok([last(&adapter.weights.to_bytes(), adapter.chunks)]);
    records_with(tx, report, [tables::CONTENT_CHUNKS], end, |_, adapter, [end]| {
        adapters.insert(adapter.weights, adapter.chunks);
        Ok((!end.exists()?).then(|| format!("an adapter of {} has lost its end", adapter.job)))
    })?;
    let related = [tables::FILES, tables::TRAINING_STATES, tables::ORPHANED_CHUNKS];
    let id = |row_key: &[u8], _: &Chunk| Ok([(); 3].map(|()| owner(row_key)));
    records_with(tx, report, related, id, |row_key, _, [file, state, orphaned]| {
        let id = row_key.get(..16).unwrap_or_default();
        let file = file.record::<FileRecord>(tx)?.map(|file| file.chunks);
        let state = || Ok::<_, Error>(state.record::<TrainingStateRecord>(tx)?.map(|state| state.chunks));
        let adapter = || adapters.get(&id.try_into().map_or(FileId::from_bytes([0; 16]), FileId::from_bytes)).copied();
        let chunks = match file {
            Some(chunks) => Some(chunks),
            None => state()?.or_else(adapter),
        };
        let fits = match chunks {
            Some(chunks) => row_key <= last(id, chunks).as_slice(),
            None => orphaned.record::<OrphanedChunks>(tx)?.is_some(),
        };
        Ok((!fits).then(|| "a content chunk belongs to nothing".into()))
    })
}

/// Checks that what a fine-tuning job has refers to it, and the other way round.
fn jobs(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let job = |row_key: &[u8], _: &JobEventRecord| Ok([owner(row_key)]);
    records_with(tx, report, [tables::JOBS], job, |_, _, [job]| {
        Ok((!job.exists()?).then(|| "an event belongs to no fine-tuning job".into()))
    })?;
    let job = |id: &[u8], _: &OpenJobRow| Ok([id.to_vec()]);
    records_with(tx, report, [tables::JOBS], job, |_, _, [job]| {
        Ok((!job.exists()?).then(|| "an open fine-tuning job does not exist".into()))
    })?;
    let job = |_: &[u8], state: &TrainingStateRecord| Ok([state.job.to_bytes().to_vec()]);
    records_with(tx, report, [tables::JOBS], job, |id, state, [job]| {
        let job: Option<JobRecord> = job.record(tx)?;
        let fits = job.and_then(|job| job.saved).is_some_and(|saved| saved.content.to_bytes() == id);
        Ok((!fits).then(|| format!("a saved state is not that of {}", state.job)))
    })?;
    let checkpoint = |_: &[u8], row: &TunedModelRow| Ok([row.0.to_vec()]);
    records_with(tx, report, [tables::CHECKPOINTS], checkpoint, |name, _, [checkpoint]| {
        let checkpoint: Option<CheckpointRecord> = checkpoint.record(tx)?;
        let fits = checkpoint.is_some_and(|found| found.names.iter().any(|known| known.as_bytes() == name));
        Ok((!fits).then(|| "the name of a tuned model belongs to no checkpoint".into()))
    })
}

/// Checks that an image has its chunks and index row, and that these belong to an image.
fn stored_images(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let related = [tables::STORED_IMAGE_CHUNKS, tables::STORED_IMAGES_BY_EXPIRY];
    let keys = |id: &[u8], image: &StoredImageRecord| {
        let last = [id, &image.chunks.saturating_sub(1).to_be_bytes()].concat();
        Ok([last, stored_images::expiry_key(image.expires_at, id)])
    };
    records_with(tx, report, related, keys, |_, image, [last, expiry]| {
        let (is_whole, ends, project) = (last.exists()?, expiry.exists()?, image.project);
        Ok((!is_whole || !ends).then(|| format!("an image of {project} has no content or no expiry entry")))
    })?;
    let image = |row_key: &[u8], _: &ImageChunk| Ok([owner(row_key)]);
    records_with(tx, report, [tables::STORED_IMAGES], image, |row_key, _, [image]| {
        let image: Option<StoredImageRecord> = image.record(tx)?;
        let at = row_key.get(16..).unwrap_or_default().try_into().map(u32::from_be_bytes);
        let fits = image.is_some_and(|image| at.is_ok_and(|at| at < image.chunks));
        Ok((!fits).then(|| "an image chunk belongs to no image".into()))
    })?;
    let image = |key: &[u8], _: &ExpiryIndexRow| Ok([stored_images::parse_expiry_key(key)?.1.to_bytes().to_vec()]);
    records_with(tx, report, [tables::STORED_IMAGES], image, |key, _, [image]| {
        let (expires_at, _) = stored_images::parse_expiry_key(key)?;
        let image: Option<StoredImageRecord> = image.record(tx)?;
        let fits = image.is_some_and(|image| image.expires_at == expires_at);
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
    let conversation = |row_key: &[u8], _: &MessageRecord| Ok([owner(row_key)]);
    records_with(tx, report, [tables::CONVERSATIONS], conversation, |row_key, _, [conversation]| {
        let row = conversations::row_of(row_key);
        let conversation: Option<ConversationRecord> = conversation.record(tx)?;
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
            bytes += version.fields.bytes();
            Ok(ControlFlow::Continue(()))
        })?;
        let expected = (record.version + 1).saturating_sub(record.oldest);
        let fits = (count, bytes) == (expected, record.bytes);
        let project = record.project;
        Ok((!fits).then(|| format!("an agent of {project} has {count} of {expected} versions, {bytes} bytes in all")))
    })?;
    let agent = |row_key: &[u8], _: &AgentVersionRecord| Ok([owner(row_key)]);
    records_with(tx, report, [tables::AGENTS], agent, |row_key, _, [agent]| {
        let version = agents::number(row_key)?;
        let agent: Option<AgentRecord> = agent.record(tx)?;
        let fits = agent.is_some_and(|agent| (agent.oldest..=agent.version).contains(&version));
        Ok((!fits).then(|| format!("version {version} of an agent belongs to none")))
    })
}

fn audit(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let entry = |row_key: &[u8], _: &AuditRecord| Ok([row_key.get(16..).unwrap_or_default().to_vec()]);
    records_with(tx, report, [tables::AUDIT_BY_TIME], entry, |row_key, row, [entry]| {
        let found: Option<AuditIndexRow> = entry.record(tx)?;
        let fits = found.is_some_and(|found| row_key.starts_with(&found.project.to_bytes()));
        Ok((!fits).then(|| format!("audit row {} of {} is missing in the index", row.action, row.at)))
    })?;
    let row = |id: &[u8], entry: &AuditIndexRow| Ok([[&entry.project.to_bytes(), id].concat()]);
    records_with(tx, report, [tables::AUDIT], row, |_, _, [row]| {
        Ok((!row.exists()?).then(|| "the index of the audit log names a row that does not exist".into()))
    })
}
