//! Files: training data, and the requests and results of batches. Their content is stored in chunks.
//!
//! The content is in the database, so one backup and one quota cover everything, a file and its audit row are written
//! in one transaction, and no path is ever derived from what a client sends.

pub mod contents;
pub mod upload;

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use self::contents::Contents;
use self::upload::{CompletedUpload, Upload};
use super::access::authorize;
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::limits::concurrency_limit::ConcurrencyLimit;
use super::limits::quotas::{self, QuotaKind, signed};
use super::pagination::{Listing, Page, PageRequest, page};
use super::training_data::ExampleFormat;
use super::validation;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::display::hex;
use crate::error::{Error, Result};
use crate::ids::{FileId, ProjectId};
use crate::storage::content_chunks;
pub use crate::storage::files::Purpose;
use crate::storage::files::{self, FileRecord};
use crate::storage::{Reader, Store, project_resources};

/// Concurrent uploads, in all and per project or address; each may hold a chunk and a line in memory.
const UPLOADS: usize = 32;
const UPLOADS_OF_ONE: usize = 8;

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    pub id: FileId,
    pub project: ProjectId,
    pub name: String,
    pub purpose: Purpose,
    pub bytes: u64,
    /// Number and format of the training examples, if it is training data.
    pub examples: u64,
    pub example_format: Option<String>,
    /// SHA-256 of the content, in hex.
    pub sha256: String,
    pub created_at: Timestamp,
}

impl File {
    fn new(id: FileId, record: FileRecord) -> Self {
        let FileRecord { project, name, purpose, bytes, examples, example_format, sha256, created_at, .. } = record;
        let format = ExampleFormat::from_number(example_format).map_or("unknown", ExampleFormat::as_str).to_owned();
        let example_format = Some(format).filter(|_| purpose == Purpose::FineTune);
        let sha256 = hex(&sha256);
        Self { id, project, name, purpose, bytes, examples, example_format, sha256, created_at }
    }
}

/// The fields of an upload beside its content.
#[derive(Clone, Debug)]
pub struct NewFile {
    /// Absent: the project of the key.
    pub project: Option<ProjectId>,
    pub name: String,
    pub purpose: Purpose,
}

/// The content of a file, chunk by chunk.
pub struct Content {
    pub bytes: u64,
    store: Store,
    id: FileId,
    next: u32,
    chunks: u32,
}

impl Content {
    /// The next chunk; `None` at the end. 404 if the file is deleted meanwhile.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.next == self.chunks {
            return Ok(None);
        }
        let (id, index) = (self.id, self.next);
        let chunk = self.store.read(move |tx| content_chunks::get(tx, id, index)).await?;
        self.next += 1;
        chunk.map(Some).ok_or_else(|| Error::not_found("file", id))
    }
}

/// The files service.
pub struct Files {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    contents: Contents,
    upload_limit: Arc<ConcurrencyLimit>,
}

impl Files {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>, contents: Contents) -> Self {
        let upload_limit = ConcurrencyLimit::new("files are being uploaded", UPLOADS, UPLOADS_OF_ONE);
        Self { store, clock_rng, contents, upload_limit }
    }

    /// Begins an upload. Fails early if it would be refused at its end, as far as that is known: the fields `project`
    /// and `purpose` may follow later. It counts against the client's `address`, if known.
    pub async fn begin(
        &self,
        access: &Access,
        address: Option<IpAddr>,
        (project, purpose): (Option<ProjectId>, Option<Purpose>),
        name: &str,
    ) -> Result<Upload> {
        validation::file_name(name)?;
        // Without the scope `admin`, only the project of the key is possible.
        let likely = project.or((!access.is_admin()).then(|| access.project()));
        let caller = access.clone();
        let admitted = self.store.read(move |tx| {
            let Some(likely) = likely else { return Ok(()) };
            authorize::active_project(tx, &caller, likely, project.is_some())?;
            quotas::check(tx, likely, QuotaKind::File, 1, 1)
        });
        admitted.await?;
        let slot = self.upload_limit.acquire_from(access.project(), address)?;
        let id = FileId::generate(&*self.clock_rng);
        Ok(Upload::new(self.store.clone(), id, (likely, purpose), self.contents.guard(id), slot))
    }

    /// Creates a file from a completed upload.
    pub async fn create(&self, access: &Access, mut arrived: CompletedUpload, new: NewFile) -> Result<File> {
        validation::file_name(&new.name)?;
        let (examples, example_format) = arrived.examples(new.purpose)?;
        let now = self.clock_rng.now();
        let project = new.project.unwrap_or(access.project());
        let id = arrived.id;
        let record = FileRecord {
            project,
            name: new.name,
            purpose: new.purpose,
            bytes: arrived.bytes,
            chunks: arrived.chunks,
            examples,
            example_format,
            sha256: arrived.sha256,
            created_at: now,
        };
        let entry = self.audit_entry(access, "file.created");
        let permit = authorize::manage_project(project);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            authorize::active_project(tx, caller, project, new.project.is_some())?;
            quotas::charge(tx, project, now, QuotaKind::File, 1, signed(record.bytes))?;
            files::insert(tx, id, &record)?;
            entry.write(tx, project, id, &json!({ "filename": record.name, "bytes": record.bytes }))?;
            Ok(File::new(id, record.clone()))
        });
        let file = written.await?;
        // Dropped only now, because until here the chunks might have to be removed.
        drop(arrived);
        Ok(file)
    }

    /// A page of a project's files, or of those with one purpose, newest first.
    pub async fn list(
        &self,
        access: &Access,
        project: Option<ProjectId>,
        purpose: Option<Purpose>,
        request: PageRequest,
    ) -> Result<Page<File>> {
        let (named, project) = (project.is_some(), project.unwrap_or(access.project()));
        let listing = Listing { name: "files", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, FileId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            authorize::own_or_named_project(tx, &access, project, named)?;
            newest(tx, project, purpose, window.before, window.rows())
        });
        let items = rows.await?.into_iter().map(|(id, record)| File::new(FileId::from_bytes(id), record)).collect();
        Ok(page(self.store.pepper(), listing, window, items, |file: &File| file.id.to_bytes()))
    }

    pub async fn get(&self, access: &Access, id: FileId) -> Result<File> {
        let access = access.clone();
        let record = self.store.read(move |tx| find(tx, &access, id));
        Ok(File::new(id, record.await?))
    }

    /// The content of a file.
    pub async fn content(&self, access: &Access, id: FileId) -> Result<Content> {
        let access = access.clone();
        let record = self.store.read(move |tx| find(tx, &access, id)).await?;
        Ok(Content { bytes: record.bytes, store: self.store.clone(), id, next: 0, chunks: record.chunks })
    }

    /// Deletes a file; jobs that name it keep its id.
    pub async fn delete(&self, access: &Access, id: FileId) -> Result<FileId> {
        let now = self.clock_rng.now();
        let entry = self.audit_entry(access, "file.deleted");
        // Only existing files may be swept, not running uploads.
        self.get(access, id).await?;
        // Its chunks are removed in small steps, even if the caller does not wait.
        let _chunks = self.contents.guard(id);
        let permit = authorize::manage_owner::<FileRecord>(id.to_bytes());
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, id)?;
            authorize::require_active_owner(tx, record.project)?;
            quotas::charge(tx, record.project, now, QuotaKind::File, -1, -signed(record.bytes))?;
            files::remove(tx, id, &record)?;
            entry.write(tx, record.project, id, &json!({ "filename": record.name, "bytes": record.bytes }))?;
            Ok(id)
        });
        written.await
    }

    fn audit_entry(&self, access: &Access, action: &'static str) -> AuditEntry {
        AuditEntry::new(&self.clock_rng, Some(access), action)
    }
}

/// Up to `limit` files of a project older than `before`, newest first.
fn newest(
    tx: &impl Reader,
    project: ProjectId,
    purpose: Option<Purpose>,
    mut before: Option<[u8; 16]>,
    limit: usize,
) -> Result<Vec<([u8; 16], FileRecord)>> {
    let mut found = Vec::new();
    loop {
        let rows = project_resources::newest::<FileRecord>(tx, project, before, limit)?;
        let is_last = rows.len() < limit;
        before = rows.last().map(|(id, _)| *id);
        found.extend(rows.into_iter().filter(|(_, file)| purpose.is_none_or(|purpose| file.purpose == purpose)));
        if is_last || found.len() >= limit {
            found.truncate(limit);
            return Ok(found);
        }
    }
}

/// Finds a file that the caller may manage.
pub(super) fn find(tx: &impl Reader, access: &Access, id: FileId) -> Result<FileRecord> {
    authorize::resource(tx, access, Scope::Project, "file", (id, id.to_bytes()))
}
