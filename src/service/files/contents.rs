//! Large content, stored in chunks: uploaded files, and what trainings save. Chunks that belong to nothing are removed in the
//! background. If nodes share the store, each removes what a dead process has left.

use std::sync::Arc;
use std::time::Duration;

use ring::digest::{Context, SHA256};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::ids::FileId;
use crate::storage::Store;
use crate::storage::content_chunks::{self, CHUNK_BYTES, Chunk};

/// Chunks removed per transaction; other writes wait meanwhile.
const SWEEP_BATCH: usize = 8;
/// The time between two looks for chunks that a process of another node has left.
const ORPHANS_INTERVAL: Duration = Duration::from_secs(30);
/// The time until the first one, when the other nodes are known.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// Removes chunks that belong to nothing, a few at a time, with lower priority than other writes.
struct Sweeper {
    sender: mpsc::UnboundedSender<FileId>,
    /// Ends when the sweeper is dropped.
    _tasks: JoinSet<()>,
}

/// Sweeps chunks on drop, unless they belong to something by then. The writer keeps the order of writes, so
/// earlier ones come first.
pub(in crate::service) struct SweepGuard {
    id: FileId,
    sender: mpsc::UnboundedSender<FileId>,
}

impl Sweeper {
    /// Starts with the chunks that earlier processes have left.
    async fn start(store: Store) -> Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        if store.cluster().is_some() {
            tasks.spawn(look_for_orphans(store.clone(), sender.clone()));
        } else {
            send_orphans(&store, &sender).await?;
        }
        tasks.spawn(sweep(store, receiver));
        Ok(Self { sender, _tasks: tasks })
    }
}

/// Has the chunks removed that belong to nothing and to no live process.
async fn send_orphans(store: &Store, sender: &mpsc::UnboundedSender<FileId>) -> Result<()> {
    let peers = store.peers();
    for id in store.read(move |tx| content_chunks::orphaned(tx, &peers)).await? {
        tracing::info!(content = %id, "removing content that belongs to nothing");
        // Without a receiver, the server stops.
        let _ = sender.send(id);
    }
    Ok(())
}

async fn look_for_orphans(store: Store, sender: mpsc::UnboundedSender<FileId>) {
    let mut wait = FIRST_LOOK;
    loop {
        tokio::time::sleep(wait).await;
        wait = ORPHANS_INTERVAL;
        if let Err(error) = send_orphans(&store, &sender).await {
            tracing::warn!(%error, "content that belongs to nothing could not be looked for");
        }
    }
}

impl Drop for SweepGuard {
    fn drop(&mut self) {
        // If the sweeper is gone, the server is stopping. The next start finds the mark.
        let _ = self.sender.send(self.id);
    }
}

async fn sweep(store: Store, mut ids: mpsc::UnboundedReceiver<FileId>) {
    while let Some(id) = ids.recv().await {
        loop {
            let peers = store.peers();
            match store.write(move |tx| content_chunks::sweep(tx, id, SWEEP_BATCH, &peers)).await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) if error.code() == Code::ShuttingDown => return,
                Err(error) => {
                    tracing::warn!(content = %id, %error, "removed content stays until the next start");
                    break;
                }
            }
        }
    }
}

/// The stored contents. Clones share one sweeper.
#[derive(Clone)]
pub struct Contents {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    sweeper: Arc<Sweeper>,
}

/// Content whose chunks are stored and belong to nothing yet. Unless a record claims them, they are removed.
pub(in crate::service) struct WrittenContent {
    pub id: FileId,
    pub bytes: u64,
    pub chunks: u32,
    _guard: SweepGuard,
}

/// Content that is written piece by piece, on a blocking thread.
pub(in crate::service) struct ContentWriter {
    contents: Contents,
    id: FileId,
    pending: Vec<u8>,
    bytes: u64,
    chunks: u32,
    digest: Context,
    guard: SweepGuard,
}

impl ContentWriter {
    /// Blocking.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.bytes += bytes.len() as u64;
        self.digest.update(bytes);
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.pending.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() == CHUNK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// The content and its SHA-256; `None` if it is empty. Blocking.
    pub fn finish(mut self) -> Result<Option<(WrittenContent, [u8; 32])>> {
        if self.bytes == 0 {
            return Ok(None);
        }
        if !self.pending.is_empty() {
            self.flush()?;
        }
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(self.digest.finish().as_ref());
        let Self { id, bytes, chunks, guard, .. } = self;
        Ok(Some((WrittenContent { id, bytes, chunks, _guard: guard }, sha256)))
    }

    fn flush(&mut self) -> Result<()> {
        let (id, index, chunk) = (self.id, self.chunks, Chunk(std::mem::take(&mut self.pending)));
        let written = self.contents.store.enqueue(move |tx| content_chunks::put(tx, id, index, &chunk))?;
        written.blocking_recv().map_err(Error::internal)??;
        self.chunks += 1;
        Ok(())
    }
}

impl Contents {
    /// Starts the removal of chunks. Needs a tokio runtime.
    pub async fn start(store: Store, clock_rng: Arc<dyn ClockRng>) -> Result<Self> {
        let sweeper = Arc::new(Sweeper::start(store.clone()).await?);
        Ok(Self { store, clock_rng, sweeper })
    }

    /// Removes the chunks of `id` when it is dropped, unless they belong to something by then.
    pub(in crate::service) fn guard(&self, id: FileId) -> SweepGuard {
        SweepGuard { id, sender: self.sweeper.sender.clone() }
    }

    /// Removes the chunks of these contents, which belong to nothing any more.
    pub(in crate::service) fn sweep(&self, released: impl IntoIterator<Item = FileId>) {
        released.into_iter().for_each(|id| drop(self.guard(id)));
    }

    /// Stores content, chunk by chunk.
    pub(in crate::service) async fn write(&self, bytes: &[u8]) -> Result<WrittenContent> {
        let id = FileId::generate(&*self.clock_rng);
        let guard = self.guard(id);
        let mut chunks = 0;
        for part in bytes.chunks(CHUNK_BYTES) {
            let chunk = Chunk(part.to_vec());
            self.store.write(move |tx| content_chunks::put(tx, id, chunks, &chunk)).await?;
            chunks += 1;
        }
        Ok(WrittenContent { id, bytes: bytes.len() as u64, chunks, _guard: guard })
    }

    /// A new content that is written piece by piece.
    pub(in crate::service) fn writer(&self) -> ContentWriter {
        let id = FileId::generate(&*self.clock_rng);
        let (contents, guard, digest) = (self.clone(), self.guard(id), Context::new(&SHA256));
        ContentWriter { contents, id, pending: Vec::new(), bytes: 0, chunks: 0, digest, guard }
    }

    /// The content of `chunks` chunks under `id`.
    pub(in crate::service) async fn read(&self, id: FileId, chunks: u32) -> Result<Vec<u8>> {
        self.store.read(move |tx| content_chunks::read(tx, id, chunks)).await
    }
}
