//! Large content, stored in chunks: uploaded files, and what trainings save. Chunks that belong to nothing are removed in the
//! background.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::clock_rng::ClockRng;
use crate::error::{Code, Result};
use crate::ids::FileId;
use crate::storage::Store;
use crate::storage::content_chunks::{self, CHUNK_BYTES, Chunk};

/// Chunks removed per transaction; other writes wait meanwhile.
const SWEEP_BATCH: usize = 8;

/// Removes chunks that belong to nothing, a few at a time, with lower priority than other writes.
struct Sweeper {
    sender: mpsc::UnboundedSender<FileId>,
    /// Ends when the sweeper is dropped.
    _tasks: JoinSet<()>,
}

/// Sweeps chunks on drop, unless they belong to something by then. The writer keeps the order of writes, so
/// earlier ones come first.
pub(super) struct SweepGuard {
    id: FileId,
    sender: mpsc::UnboundedSender<FileId>,
}

impl Sweeper {
    /// Starts with the chunks that an earlier process left.
    async fn start(store: Store) -> Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        for id in store.read(content_chunks::orphaned).await? {
            tracing::info!(content = %id, "removing content that belongs to nothing");
            // The receiver exists, so this cannot fail.
            let _ = sender.send(id);
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(sweep(store, receiver));
        Ok(Self { sender, _tasks: tasks })
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
            match store.write(move |tx| content_chunks::sweep(tx, id, SWEEP_BATCH)).await {
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
pub(super) struct WrittenContent {
    pub id: FileId,
    pub bytes: u64,
    pub chunks: u32,
    _guard: SweepGuard,
}

impl Contents {
    /// Starts the removal of chunks. Needs a tokio runtime.
    pub async fn start(store: Store, clock_rng: Arc<dyn ClockRng>) -> Result<Self> {
        let sweeper = Arc::new(Sweeper::start(store.clone()).await?);
        Ok(Self { store, clock_rng, sweeper })
    }

    /// Removes the chunks of `id` when it is dropped, unless they belong to something by then.
    pub(super) fn guard(&self, id: FileId) -> SweepGuard {
        SweepGuard { id, sender: self.sweeper.sender.clone() }
    }

    /// Removes the chunks of these contents, which belong to nothing any more.
    pub(super) fn sweep(&self, released: impl IntoIterator<Item = FileId>) {
        released.into_iter().for_each(|id| drop(self.guard(id)));
    }

    /// Stores content, chunk by chunk.
    pub(super) async fn write(&self, bytes: &[u8]) -> Result<WrittenContent> {
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

    /// The content of `chunks` chunks under `id`.
    pub(super) async fn read(&self, id: FileId, chunks: u32) -> Result<Vec<u8>> {
        self.store.read(move |tx| content_chunks::read(tx, id, chunks)).await
    }
}
