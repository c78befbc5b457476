//! A file on its way in: its chunks are stored while they arrive and belong to nothing until the
//! last transaction makes a file of them. Whatever ends an upload before that, its chunks go.

use ring::digest::{Context, SHA256};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::dataset::{Checker, Summary};
use super::holdings::{self, Holding, signed};
use super::places::Place;
use crate::error::{Code, Error, Result};
use crate::ids::{FileId, ProjectId};
use crate::storage::Store;
use crate::storage::file_records::{self, CHUNK_BYTES, Chunk};

/// No file is larger.
pub const LARGEST_FILE: u64 = 512 << 20;

/// Chunks that go in one transaction: their pages are read once more, and others wait meanwhile.
const SWEPT: usize = 8;

/// Removes chunks that belong to no file, a few at a time, behind everything else that is written.
pub(super) struct Sweeper {
    sender: mpsc::UnboundedSender<FileId>,
    /// Ends with the sweeper.
    _tasks: JoinSet<()>,
}

/// Chunks that are swept when this is dropped, unless they have become a file's by then. The
/// writer keeps the order, so a write that was begun before comes first.
pub(super) struct Leftover {
    id: FileId,
    sender: mpsc::UnboundedSender<FileId>,
}

impl Sweeper {
    /// Begins with what an earlier process left.
    pub async fn start(store: Store) -> Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for id in store.read(file_records::orphaned_chunks).await? {
            tracing::info!(file = %id, "removing what was left of an upload");
            // The receiver is at hand.
            let _ = sender.send(id);
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(sweep(store, receiver));
        Ok(Self { sender, _tasks: tasks })
    }

    pub fn later(&self, id: FileId) -> Leftover {
        Leftover { id, sender: self.sender.clone() }
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        // Without a sweeper the server is ending, and the next start finds the mark.
        let _ = self.sender.send(self.id);
    }
}

async fn sweep(store: Store, mut ids: mpsc::UnboundedReceiver<FileId>) {
    while let Some(id) = ids.recv().await {
        loop {
            match store.write(move |tx| file_records::sweep(tx, id, SWEPT)).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if error.code() == Code::ShuttingDown => return,
                Err(error) => {
                    tracing::warn!(file = %id, %error, "removed content stays until the next start");
                    break;
                }
            }
        }
    }
}

/// What is known of the content so far.
struct Progress {
    checker: Checker,
    digest: Context,
}

impl Progress {
    fn new() -> Self {
        Self { checker: Checker::default(), digest: Context::new(&SHA256) }
    }

    fn read(&mut self, piece: &[u8]) -> Result<()> {
        self.digest.update(piece);
        self.checker.read(piece)
    }
}

/// A file that is arriving.
pub struct Upload {
    pub(super) store: Store,
    pub(super) id: FileId,
    /// Where it will most likely belong: known before the file, its quota holds from the start.
    project: Option<ProjectId>,
    progress: Progress,
    pending: Vec<u8>,
    chunks: u32,
    bytes: u64,
    leftover: Leftover,
    place: Place,
}

/// A file that has arrived whole and is in order, but belongs to nobody yet.
pub struct Sealed {
    pub(super) id: FileId,
    pub(super) summary: Summary,
    pub(super) chunks: u32,
    pub(super) bytes: u64,
    pub(super) sha256: [u8; 32],
    _leftover: Leftover,
    _place: Place,
}

impl Upload {
    pub(super) fn new(store: Store, id: FileId, project: Option<ProjectId>, leftover: Leftover, place: Place) -> Self {
        let progress = Progress::new();
        Self { store, id, project, progress, pending: Vec::new(), chunks: 0, bytes: 0, leftover, place }
    }

    /// Takes the next bytes; whole chunks are checked and stored before it returns.
    pub async fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        if self.bytes > LARGEST_FILE {
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

    /// The end of the content.
    pub async fn seal(mut self) -> Result<Sealed> {
        if !self.pending.is_empty() {
            self.flush().await?;
        }
        let Progress { checker, digest } = self.progress;
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(digest.finish().as_ref());
        Ok(Sealed {
            id: self.id,
            summary: checker.finish()?,
            chunks: self.chunks,
            bytes: self.bytes,
            sha256,
            _leftover: self.leftover,
            _place: self.place,
        })
    }

    async fn flush(&mut self) -> Result<()> {
        let piece = std::mem::take(&mut self.pending);
        let mut progress = std::mem::replace(&mut self.progress, Progress::new());
        // Half a megabyte of JSON would hold an async thread for milliseconds.
        let read = tokio::task::spawn_blocking(move || progress.read(&piece).map(|()| (progress, piece)));
        let (progress, piece) = read.await.map_err(Error::internal)??;
        self.progress = progress;
        let (id, place, project, bytes) = (self.id, self.chunks, self.project, self.bytes);
        let chunk = Chunk(piece);
        let written = self.store.write(move |tx| {
            if let Some(project) = project {
                holdings::admit(tx, project, Holding::File, 1, signed(bytes))?;
            }
            file_records::put_chunk(tx, id, place, &chunk)
        });
        written.await?;
        self.chunks += 1;
        Ok(())
    }
}

impl Sealed {
    /// What must be equal for a repeated upload to count as the same.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }
}

/// The answer to a file, or a request, beyond [`LARGEST_FILE`].
pub fn too_large() -> Error {
    let text = format!("The file is larger than {LARGEST_FILE} bytes (512 MiB). Split it into several files.");
    Error::new(Code::RequestTooLarge, text).param("file")
}
