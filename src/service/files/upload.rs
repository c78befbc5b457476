//! File uploads. Chunks are stored while they arrive and belong to no file until the last transaction creates one. If
//! the upload ends before that, its chunks are removed.

use ring::digest::{Context, SHA256};

use super::contents::SweepGuard;
use crate::error::{Code, Error, Result};
use crate::ids::{FileId, ProjectId};
use crate::service::limits::concurrency_limit::Slot;
use crate::service::limits::quotas::{self, QuotaKind, signed};
use crate::service::training_data::{Summary, Validator};
use crate::storage::Store;
use crate::storage::content_chunks::{self, CHUNK_BYTES, Chunk};
use crate::storage::files::Purpose;

/// Max size of a file.
pub const MAX_FILE_BYTES: u64 = 512 << 20;

/// Validation state and digest of the content so far.
struct Progress {
    /// The validation as training examples, or its first error if they may turn out to be something else; `None` if they are
    /// something else.
    validator: Option<Result<Validator>>,
    digest: Context,
}

impl Progress {
    /// `purpose`: if it is known before the content.
    fn new(purpose: Option<Purpose>) -> Self {
        let may_train = purpose.is_none_or(|purpose| purpose == Purpose::FineTune);
        Self { validator: may_train.then(|| Ok(Validator::default())), digest: Context::new(&SHA256) }
    }

    fn read(&mut self, content: &[u8], purpose: Option<Purpose>) -> Result<()> {
        self.digest.update(content);
        let Some(Ok(validator)) = &mut self.validator else { return Ok(()) };
        match (validator.read(content), purpose) {
            (Err(error), None) => self.validator = Some(Err(error)),
            (read, _) => return read,
        }
        Ok(())
    }
}

/// A running upload.
pub struct Upload {
    pub(super) store: Store,
    pub(super) id: FileId,
    /// The likely project; if known before the file, its quota is checked from the start.
    project: Option<ProjectId>,
    purpose: Option<Purpose>,
    progress: Progress,
    pending: Vec<u8>,
    chunks: u32,
    bytes: u64,
    sweep_guard: SweepGuard,
    slot: Slot,
}

/// A completed, valid upload that is not yet a file.
pub struct CompletedUpload {
    pub(super) id: FileId,
    /// The training examples; `None` if they are something else.
    examples: Option<Result<Summary>>,
    pub(super) chunks: u32,
    pub(super) bytes: u64,
    pub(super) sha256: [u8; 32],
    _sweep_guard: SweepGuard,
    _slot: Slot,
}

impl Upload {
    pub(super) fn new(
        store: Store,
        id: FileId,
        (project, purpose): (Option<ProjectId>, Option<Purpose>),
        sweep_guard: SweepGuard,
        slot: Slot,
    ) -> Self {
        let progress = Progress::new(purpose);
        Self { store, id, project, purpose, progress, pending: Vec::new(), chunks: 0, bytes: 0, sweep_guard, slot }
    }

    /// Writes the next bytes; complete chunks are validated and stored before it returns.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        if self.bytes > MAX_FILE_BYTES {
            return Err(too_large());
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() == CHUNK_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Ends the content.
    pub async fn finish(mut self) -> Result<CompletedUpload> {
        if !self.pending.is_empty() {
            self.flush().await?;
        }
        let Progress { validator, digest } = self.progress;
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest.finish().as_ref());
        let examples = validator.map(|validator| validator.and_then(Validator::finish));
        let examples = match (examples, self.purpose) {
            (Some(Err(error)), Some(_)) => return Err(error),
            (examples, _) => examples,
        };
        Ok(CompletedUpload {
            id: self.id,
            examples,
            chunks: self.chunks,
            bytes: self.bytes,
            sha256,
            _sweep_guard: self.sweep_guard,
            _slot: self.slot,
        })
    }

    async fn flush(&mut self) -> Result<()> {
        let content = std::mem::take(&mut self.pending);
        let purpose = self.purpose;
        let mut progress = std::mem::replace(&mut self.progress, Progress::new(purpose));
        // Validating a chunk would block an async thread for milliseconds.
        let read = tokio::task::spawn_blocking(move || progress.read(&content, purpose).map(|()| (progress, content)));
        let (progress, content) = read.await.map_err(Error::internal)??;
        self.progress = progress;
        let (id, index, project, bytes) = (self.id, self.chunks, self.project, self.bytes);
        let chunk = Chunk(content);
        let written = self.store.write(move |tx| {
            if let Some(project) = project {
                quotas::check(tx, project, QuotaKind::File, 1, signed(bytes))?;
            }
            content_chunks::put(tx, id, index, &chunk)
        });
        written.await?;
        self.chunks += 1;
        Ok(())
    }
}

impl CompletedUpload {
    /// The digest that identifies a repeated upload.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    /// The number of training examples and their format as a number: zeros for other purposes. To be called once.
    pub(super) fn examples(&mut self, purpose: Purpose) -> Result<(u64, u8)> {
        match (purpose, self.examples.take()) {
            (Purpose::FineTune, Some(summary)) => summary.map(|Summary { examples, form }| (examples, form as u8)),
            (Purpose::FineTune, None) => Err(Error::internal("the examples of a training file are not checked")),
            _ if self.bytes == 0 => {
                let text = "The file is empty. It must have at least one line with a request.";
                Err(Error::invalid("file", text))
            }
            _ => Ok((0, 0)),
        }
    }
}

/// The error for a file or request larger than [`MAX_FILE_BYTES`].
pub fn too_large() -> Error {
    let text = format!("The file is larger than {MAX_FILE_BYTES} bytes (512 MiB). Split it into several files.");
    Error::new(Code::RequestTooLarge, text).param("file")
}
