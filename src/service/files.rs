//! Files: what training reads. Their content lies in the store, in chunks.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::access::{Access, Scope};
use super::audit::Note;
use super::example::Form;
use super::holdings::{self, Holding, signed};
use super::page::{Listing, Page, PageRequest, page};
use super::places::Places;
use super::upload::{Sealed, Sweeper, Upload};
use super::{authority, claim, fields};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};
use crate::ids::{FileId, ProjectId};
use crate::storage::file_records::{self, FileRecord};
use crate::storage::{Reader, Store, project_resources};

/// Uploads at once, of all and of one project or address; each may hold a chunk and a line in memory.
const UPLOADS: usize = 32;
const UPLOADS_OF_ONE: usize = 8;

/// What a file is for. The number is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Purpose {
    #[serde(rename = "fine-tune")]
    FineTune = 1,
}

impl Purpose {
    pub fn as_str(self) -> &'static str {
        match self {
            Purpose::FineTune => "fine-tune",
        }
    }

    /// Reads the name of a request.
    pub fn from_name(name: &str) -> Result<Self> {
        if name == Purpose::FineTune.as_str() {
            return Ok(Purpose::FineTune);
        }
        let shown: String = name.chars().take(40).collect();
        let text = format!("'purpose' is '{shown}'; this server takes files for: fine-tune.");
        Err(Error::invalid("purpose", text))
    }
}

/// A file as its users see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    pub id: FileId,
    pub project: ProjectId,
    pub name: String,
    pub purpose: Purpose,
    pub bytes: u64,
    /// Lines that training would read, and what they are.
    pub examples: u64,
    pub form: String,
    /// Of the content, in hexadecimal digits.
    pub sha256: String,
    pub created_at: Timestamp,
}

impl File {
    fn new(id: FileId, record: FileRecord) -> Self {
        let FileRecord { project, name, bytes, examples, form, sha256, created_at, .. } = record;
        let form = Form::from_number(form).map_or("unknown", Form::as_str).to_owned();
        let sha256 = sha256.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing into a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        Self { id, project, name, purpose: Purpose::FineTune, bytes, examples, form, sha256, created_at }
    }
}

/// What an upload says beside its content.
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
    /// The next chunk; none at the end. A file that is removed meanwhile breaks off.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.next == self.chunks {
            return Ok(None);
        }
        let (id, place) = (self.id, self.next);
        let chunk = self.store.read(move |tx| file_records::chunk(tx, id, place)).await?;
        self.next += 1;
        chunk.map(Some).ok_or_else(|| Error::not_found("file", id))
    }
}

/// The rules of files.
pub struct Files {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    sweeper: Sweeper,
    places: Arc<Places>,
}

impl Files {
    /// Also begins to remove what uploads of an earlier process left. Needs a tokio runtime.
    pub async fn start(store: Store, clock_rng: Arc<dyn ClockRng>) -> Result<Self> {
        let sweeper = Sweeper::start(store.clone()).await?;
        Ok(Self { store, clock_rng, sweeper, places: Places::new("files are being uploaded", UPLOADS, UPLOADS_OF_ONE) })
    }

    /// Makes room for a file that is about to arrive. Refuses what would be refused at its end, as
    /// far as that is known: `project` may not be told yet.
    /// It counts for the client's `address`, if that is known.
    pub async fn begin(
        &self,
        access: &Access,
        address: Option<IpAddr>,
        project: Option<ProjectId>,
        name: &str,
    ) -> Result<Upload> {
        fields::file_name(name)?;
        // Who is no admin can only mean the project of the key.
        let likely = project.or((!access.is_admin()).then(|| access.project()));
        let caller = access.clone();
        let admitted = self.store.read(move |tx| {
            let Some(likely) = likely else { return Ok(()) };
            authority::receiving_project(tx, &caller, likely, project.is_some())?;
            holdings::admit(tx, likely, Holding::File, 1, 1)
        });
        admitted.await?;
        let place = self.places.take_from(access.project(), address)?;
        let id = FileId::generate(&*self.clock_rng);
        Ok(Upload::new(self.store.clone(), id, likely, self.sweeper.later(id), place))
    }

    /// Makes a file of what has arrived.
    pub async fn create(&self, access: &Access, arrived: Sealed, new: NewFile) -> Result<File> {
        fields::file_name(&new.name)?;
        let now = self.clock_rng.now();
        let project = new.project.unwrap_or(access.project());
        let id = arrived.id;
        let record = FileRecord {
            project,
            name: new.name,
            purpose: new.purpose as u8,
            bytes: arrived.bytes,
            chunks: arrived.chunks,
            examples: arrived.summary.examples,
            form: arrived.summary.form as u8,
            sha256: arrived.sha256,
            created_at: now,
        };
        let note = self.note(access, "file.created");
        let written = claim::write(&self.store, access, now, authority::manages(project), move |tx, caller| {
            authority::receiving_project(tx, caller, project, new.project.is_some())?;
            holdings::charge(tx, project, now, Holding::File, 1, signed(record.bytes))?;
            file_records::insert(tx, id, &record)?;
            note.write(tx, project, id, &json!({ "filename": record.name, "bytes": record.bytes }))?;
            Ok(File::new(id, record.clone()))
        });
        let file = written.await?;
        // Dropped here and not before: until now the chunks may have to go.
        drop(arrived);
        Ok(file)
    }

    /// A page of a project's files, the newest first.
    pub async fn list(&self, access: &Access, project: Option<ProjectId>, request: PageRequest) -> Result<Page<File>> {
        let (named, project) = (project.is_some(), project.unwrap_or(access.project()));
        let listing = Listing { name: "files", owner: Some(project.to_bytes()) };
        let window = request.window(self.store.pepper(), listing, FileId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| {
            authority::own_or_named_project(tx, &access, project, named)?;
            project_resources::newest::<FileRecord>(tx, project, window.before, window.rows())
        });
        let items = rows.await?.into_iter().map(|(id, record)| File::new(FileId::from_bytes(id), record)).collect();
        Ok(page(self.store.pepper(), listing, window, items, |file: &File| file.id.to_bytes()))
    }

    pub async fn get(&self, access: &Access, id: FileId) -> Result<File> {
        let access = access.clone();
        let record = self.store.read(move |tx| find(tx, &access, id));
        Ok(File::new(id, record.await?))
    }

    /// The bytes of a file as they came.
    pub async fn content(&self, access: &Access, id: FileId) -> Result<Content> {
        let access = access.clone();
        let record = self.store.read(move |tx| find(tx, &access, id)).await?;
        Ok(Content { bytes: record.bytes, store: self.store.clone(), id, next: 0, chunks: record.chunks })
    }

    /// Removes a file; jobs that name it keep its id.
    pub async fn delete(&self, access: &Access, id: FileId) -> Result<FileId> {
        let now = self.clock_rng.now();
        let note = self.note(access, "file.deleted");
        // Only what is a file now may be swept: the id of a running upload is not to be named here.
        self.get(access, id).await?;
        // Its chunks go in small steps, even if the caller does not wait for the answer.
        let _chunks = self.sweeper.later(id);
        let permit = authority::manages_owner::<FileRecord>(id.to_bytes());
        let written = claim::write(&self.store, access, now, permit, move |tx, caller| {
            let record = find(tx, caller, id)?;
            authority::living_owner(tx, record.project)?;
            holdings::charge(tx, record.project, now, Holding::File, -1, -signed(record.bytes))?;
            file_records::remove(tx, id, &record)?;
            note.write(tx, record.project, id, &json!({ "filename": record.name, "bytes": record.bytes }))?;
            Ok(id)
        });
        written.await
    }

    fn note(&self, access: &Access, action: &'static str) -> Note {
        Note::new(&self.clock_rng, Some(access), action)
    }
}

/// The file of a path or field, if the caller may manage it.
pub(super) fn find(tx: &impl Reader, access: &Access, id: FileId) -> Result<FileRecord> {
    authority::owned(tx, access, Scope::Project, "file", (id, id.to_bytes()))
}
