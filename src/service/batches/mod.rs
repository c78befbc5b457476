//! Batches: files of requests that are answered in the background.
//!
//! A batch is created and cancelled here. What runs it ([`crate::calls::batches`]) reports back through the methods of
//! [`progress`]. The result of each request is stored in the transaction that records its usage, so a restart neither loses
//! nor repeats one. When all have a result, the results become files.
//!
//! A file of results that grows during the batch would need a position that survives a crash, and the order of its
//! lines would depend on when they are complete.

mod input;
mod output;
mod progress;
mod request_line;
mod validation;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::sync::watch;

pub use self::input::{BatchInput, PendingRequest};
pub use self::output::BatchResult;
pub use self::progress::NextStep;
use super::access::authorize;
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::files::contents::Contents;
use super::files::{self, Purpose};
use super::pagination::{Listing, Page, PageRequest, page};
use super::validation as fields;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::{BatchId, FileId, ProjectId};
use crate::storage::batches::{self, BatchTimesRecord};
pub use crate::storage::batches::{BatchEndpoint, BatchErrorRecord as BatchError, BatchRecord, BatchState};
use crate::storage::{Reader, Store, WriteTx, project_resources};

/// Max batches of a project that have not ended.
const MAX_OPEN: usize = 100;
/// Max batches of a project. A new one replaces the oldest that has ended.
const MAX_BATCHES: usize = 1_000;
/// The time in which a batch must be completed; what is not, expires.
pub const COMPLETION_WINDOW: Duration = Duration::from_secs(24 * 3600);

/// A batch of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    pub id: BatchId,
    #[serde(flatten)]
    pub record: BatchRecord,
}

impl Batch {
    fn of_row((id, record): ([u8; 16], BatchRecord)) -> Self {
        Self { id: BatchId::from_bytes(id), record }
    }
}

/// A batch to create.
#[derive(Clone, Debug)]
pub struct NewBatch {
    /// Absent: the project of the key.
    pub project: Option<ProjectId>,
    pub endpoint: BatchEndpoint,
    pub input_file: FileId,
    /// A JSON object, as text.
    pub metadata: Option<String>,
}

/// The batches service. Clones share it.
#[derive(Clone)]
pub struct Batches {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    contents: Contents,
    /// Changes when a batch may have to be validated, run or ended.
    changes: Arc<watch::Sender<()>>,
}

impl Batches {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>, contents: Contents) -> Self {
        Self { store, clock_rng, contents, changes: Arc::new(watch::channel(()).0) }
    }

    /// Changes when a batch may have to be validated, run or ended.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Lets what runs batches look at them.
    pub(in crate::service) fn look(&self) {
        self.changes.send_replace(());
    }

    /// Creates a batch.
    pub async fn create(&self, access: &Access, new: NewBatch) -> Result<Batch> {
        fields::metadata(new.metadata.as_deref())?;
        let (named, project) = (new.project.is_some(), new.project.unwrap_or(access.project()));
        let now = self.clock_rng.now();
        let record = record(access, project, new, now);
        let id = BatchId::generate(&*self.clock_rng);
        let entry = self.audit_entry(access, "batch.created");
        let permit = move |_: &WriteTx, caller: &Access| {
            caller.require(project, Scope::Project)?;
            caller.require(project, Scope::Inference)
        };
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            authorize::active_project(tx, caller, project, named)?;
            caller.require(project, Scope::Inference)?;
            check_file(tx, caller, &record)?;
            make_room(tx, project)?;
            batches::insert(tx, id, &record)?;
            let BatchRecord { endpoint, input_file, .. } = record;
            entry.write(tx, project, id, &json!({ "endpoint": endpoint.path(), "input_file_id": input_file }))?;
            Ok(Batch { id, record: record.clone() })
        });
        let batch = written.await?;
        self.look();
        Ok(batch)
    }

    /// A page of a project's batches, newest first.
    pub async fn list(&self, access: &Access, project: Option<ProjectId>, request: PageRequest) -> Result<Page<Batch>> {
        let (named, project) = (project.is_some(), project.unwrap_or(access.project()));
        let listing = Listing { name: "batches", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, BatchId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            authorize::own_or_named_project(tx, &access, project, named)?;
            project_resources::newest::<BatchRecord>(tx, project, window.before, window.rows())
        });
        let items = rows.await?.into_iter().map(Batch::of_row).collect();
        Ok(page(self.store.pepper(), listing, window, items, |batch: &Batch| batch.id.to_bytes()))
    }

    pub async fn get(&self, access: &Access, id: BatchId) -> Result<Batch> {
        let access = access.clone();
        let record = self.store.read(move |tx| find(tx, &access, id));
        Ok(Batch { id, record: record.await? })
    }

    /// Cancels a batch that is being validated or is in progress. What is complete stays, and becomes files.
    pub async fn cancel(&self, access: &Access, id: BatchId) -> Result<Batch> {
        let now = self.clock_rng.now();
        let entry = self.audit_entry(access, "batch.cancelled");
        let permit = authorize::manage_owner::<BatchRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let mut record = find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            let state = record.state;
            if !matches!(state, BatchState::Validating | BatchState::InProgress) {
                let text = format!(
                    "The batch is {} and cannot be cancelled. Only batches that are validating or in_progress can.",
                    state.as_str()
                );
                return Err(Error::new(Code::Conflict, text));
            }
            record.state = BatchState::Cancelling;
            record.times.cancelling = Some(now);
            project_resources::replace(tx, id.to_bytes(), &record)?;
            entry.write(tx, record.project, id, &json!({ "state": state }))?;
            Ok(Batch { id, record })
        });
        let batch = written.await?;
        self.look();
        Ok(batch)
    }

    fn audit_entry(&self, access: &Access, action: &'static str) -> AuditEntry {
        AuditEntry::new(&self.clock_rng, Some(access), action)
    }
}

fn record(access: &Access, project: ProjectId, new: NewBatch, now: Timestamp) -> BatchRecord {
    BatchRecord {
        project,
        key: access.key(),
        endpoint: new.endpoint,
        input_file: new.input_file,
        metadata: new.metadata,
        state: BatchState::Validating,
        ends_as: None,
        errors: Vec::new(),
        output_file: None,
        error_file: None,
        total: 0,
        completed: 0,
        failed: 0,
        result_bytes: 0,
        times: BatchTimesRecord {
            created: now,
            expires: now.after(COMPLETION_WINDOW),
            in_progress: None,
            cancelling: None,
            finalizing: None,
            ended: None,
        },
    }
}

fn find(tx: &impl Reader, access: &Access, id: BatchId) -> Result<BatchRecord> {
    authorize::resource(tx, access, Scope::Project, "batch", (id, id.to_bytes()))
}

/// Checks that the input exists, is accessible, belongs to the batch's project and was uploaded for a batch.
fn check_file(tx: &impl Reader, access: &Access, record: &BatchRecord) -> Result<()> {
    let (id, param) = (record.input_file, "input_file_id");
    let file = files::find(tx, access, id).map_err(|error| error.param(param))?;
    if file.project != record.project {
        let text = format!(
            "'{param}' is {id}, which belongs to {}, but the batch to {}. Upload the file to the batch's project.",
            file.project, record.project
        );
        return Err(Error::invalid(param, text));
    }
    if file.purpose != Purpose::Batch {
        let text =
            format!("'{param}' is {id}, which was not uploaded for a batch. Upload it with the purpose 'batch'.");
        return Err(Error::invalid(param, text));
    }
    Ok(())
}

/// Refuses another batch while too many have not ended, and removes the oldest one if there are too many in all.
fn make_room(tx: &WriteTx, project: ProjectId) -> Result<()> {
    // An ended batch stays open until its results are removed.
    let counts = |record: &BatchRecord| record.project == project && record.times.ended.is_none();
    let open = batches::open(tx)?.iter().filter(|(_, record)| counts(record)).count();
    if open >= MAX_OPEN {
        let text = format!(
            "The project has {open} batches that have not ended; at most {MAX_OPEN} are allowed. Create more when some have ended."
        );
        return Err(Error::new(Code::RateLimited, text).retry_after(Duration::from_secs(60)));
    }
    match project_resources::count::<BatchRecord>(tx, project)? >= MAX_BATCHES {
        true => batches::remove_oldest_ended(tx, project),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::KeyId;

    /// As earlier versions of the program have stored it under an idempotency key, without `result_bytes`.
    #[test]
    fn a_batchs_fields_stand_beside_its_id_in_json() {
        let at = Timestamp::from_millis(0);
        let new = NewBatch {
            project: None,
            endpoint: BatchEndpoint::ChatCompletions,
            input_file: FileId::from_bytes([3; 16]),
            metadata: Some("{}".to_owned()),
        };
        let (project, key) = (ProjectId::from_bytes([2; 16]), KeyId::from_bytes([4; 16]));
        let access = Access::new(key, project, crate::service::access::Scopes::DEFAULT, None);
        let batch = Batch { id: BatchId::from_bytes([1; 16]), record: record(&access, project, new, at) };
        let json = concat!(
            r#"{"id":"batch_01010101010101010101010101010101","project":"proj_02020202020202020202020202020202","#,
            r#""key":"key_04040404040404040404040404040404","endpoint":"ChatCompletions","#,
            r#""input_file":"file-03030303030303030303030303030303","metadata":"{}","state":"validating","ends_as":null,"#,
            r#""errors":[],"output_file":null,"error_file":null,"total":0,"completed":0,"failed":0,"#,
            r#""times":{"created":"1970-01-01T00:00:00.000Z","expires":"1970-01-02T00:00:00.000Z","in_progress":null,"#,
            r#""cancelling":null,"finalizing":null,"ended":null}}"#
        );
        assert_eq!(serde_json::from_str::<Batch>(json).unwrap(), batch);
        assert_eq!(serde_json::to_string(&batch).unwrap().replace(r#""result_bytes":0,"#, ""), json);
    }
}
