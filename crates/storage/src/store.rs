//! The store handle.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::cluster::{Cluster, DatabaseClock, Peers};
use crate::engine::Failed;
use crate::error::{Code, Error, Result};
use crate::exchanges::Exchanges;
use crate::meta::LAYOUT_KEY;
use crate::pepper::Pepper;
use crate::postgres::{self, PostgresCopy, PostgresLocation};
use crate::redb;
use crate::redb::database::{Opener, from_file};
use crate::shared_state::{SharedState, Watcher, shutting_down};
use crate::store_engine::StoreEngine;
use crate::store_error::OpenError;
use crate::tables;
use crate::transaction::{ReadTx, Reader as _, WriteTx};
use crate::write_queue::{Message, Task};
use outpost_common::clock_rng::ClockRng;
use outpost_common::disk_space::{DataClass, DiskReserve};

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The data folder.
    pub dir: PathBuf,
    /// Size of the page cache.
    pub cache_bytes: usize,
    /// Max queued writes; more are refused.
    pub queue: usize,
    /// Bytes of the disk that content leaves free; `None`: the default of [`DiskReserve::new`].
    pub min_free_disk: Option<u64>,
}

/// Numbers of writes and of commits since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteStats {
    pub commits: u64,
    pub writes: u64,
}

struct Inner {
    // Dropped before the thread is joined, because the writer ends when no sender is left.
    sender: SyncSender<Message>,
    // Joined before the engine is dropped, which it uses.
    thread: WriterThread,
    engine: Arc<dyn StoreEngine>,
    shared: Arc<SharedState>,
}

/// The writer thread, joined once.
struct WriterThread(Mutex<Option<JoinHandle<()>>>);

impl WriterThread {
    fn join(&self) {
        let handle = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last handle may be dropped on the writer thread itself.
        if let Some(handle) = handle.filter(|handle| handle.thread().id() != std::thread::current().id())
            && handle.join().is_err()
        {
            tracing::error!("the storage writer died");
        }
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.join();
    }
}

/// The durable state of a data folder. Clones share it; dropping the last one closes it.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

impl Store {
    /// Opens or creates the data folder. Blocking.
    pub fn open(settings: StoreSettings, clock_rng: Arc<dyn ClockRng>) -> Result<Self, OpenError> {
        Self::open_with(settings, clock_rng, from_file())
    }

    /// As [`Store::open`], through a chosen backend; for fault injection.
    pub fn open_with(settings: StoreSettings, clock_rng: Arc<dyn ClockRng>, opener: Opener) -> Result<Self, OpenError> {
        let StoreSettings { dir, cache_bytes, queue, min_free_disk } = settings;
        let (sender, inbox) = sync_channel(queue.max(1));
        let (engine, thread) = redb::open(&dir, (cache_bytes, min_free_disk), opener, &*clock_rng, inbox)?;
        let (shared, thread) = (engine.shared.clone(), WriterThread(Mutex::new(Some(thread))));
        Ok(Self { inner: Arc::new(Inner { engine, shared, sender, thread }) })
    }

    /// Opens a database, or without one the data folder. Blocking.
    pub fn open_at(
        settings: StoreSettings,
        location: Option<&PostgresLocation>,
        clock_rng: Arc<dyn ClockRng>,
    ) -> Result<Self, OpenError> {
        match location {
            Some(location) => Self::open_postgres(settings, location, clock_rng),
            None => Self::open(settings, clock_rng),
        }
    }

    /// As [`Self::open_at`], but a database must have a store. Blocking.
    pub fn open_existing(
        settings: StoreSettings,
        location: Option<&PostgresLocation>,
        clock_rng: Arc<dyn ClockRng>,
    ) -> Result<Self, OpenError> {
        if let Some(location) = location {
            PostgresCopy::new(location)?.require_store()?;
        }
        Self::open_at(settings, location, clock_rng)
    }

    /// Opens a database that speaks PostgreSQL's protocol. `settings.dir` has the pepper and the files of the server that
    /// are not in the database. Blocking.
    pub fn open_postgres(
        settings: StoreSettings,
        location: &PostgresLocation,
        clock_rng: Arc<dyn ClockRng>,
    ) -> Result<Self, OpenError> {
        let (sender, inbox) = sync_channel(settings.queue.max(1));
        let (engine, thread) = postgres::open(location, &settings.dir, clock_rng, inbox)?;
        let (shared, thread) = (engine.shared.clone(), WriterThread(Mutex::new(Some(thread))));
        Ok(Self { inner: Arc::new(Inner { engine, shared, sender, thread }) })
    }

    /// Runs `f` in a write transaction and resolves once that is durable.
    ///
    /// `f` may run more than once, and share a transaction with others. If it returns an error, its writes are rolled
    /// back. If the future is dropped, the write still happens.
    pub async fn write<T, F>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&WriteTx) -> Result<T> + Send + 'static,
    {
        self.enqueue(f)?.await.unwrap_or_else(|_| Err(shutting_down()))
    }

    /// Queues a write without waiting. The receiver resolves once it is durable.
    pub fn enqueue<T, F>(&self, f: F) -> Result<oneshot::Receiver<Result<T>>>
    where
        T: Send + 'static,
        F: FnMut(&WriteTx) -> Result<T> + Send + 'static,
    {
        let Inner { engine, shared, .. } = &*self.inner;
        if shared.closing.load(Acquire) {
            return Err(shutting_down());
        }
        engine.check_open()?;
        let (reply, answer) = oneshot::channel();
        match self.inner.sender.try_send(Message::Write(Box::new(Task::new(f, reply)))) {
            Ok(()) => Ok(answer),
            Err(TrySendError::Full(_)) => {
                Err(Error::new(Code::Overloaded, "Too many writes are waiting. Try again shortly, with backoff."))
            }
            Err(TrySendError::Disconnected(_)) => Err(shutting_down()),
        }
    }

    /// Fails with `insufficient_storage` if content of that class is not stored at the moment.
    ///
    /// For work that would be lost at its end; each write checks it anyway.
    pub fn require_space(&self, class: DataClass, bytes: u64) -> Result<()> {
        Ok(self.reserve().map_or(Ok(()), |reserve| reserve.require(class, bytes))?)
    }

    /// Keeps space back for the time when the disk is full, unless that is done. Blocking.
    pub fn keep_space_back(&self) {
        self.inner.engine.keep_space_back();
    }

    /// Runs `f` on a snapshot, on a blocking thread.
    pub async fn read<T, F>(&self, f: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&ReadTx) -> Result<T> + Send + 'static,
    {
        let inner = self.inner.clone();
        let read = tokio::task::spawn_blocking(move || inner.read_blocking(f));
        read.await.unwrap_or_else(|error| Err(Error::internal(error)))
    }

    /// Whether the store can be written and read at the moment.
    ///
    /// # Errors
    /// If it cannot.
    pub async fn ready(&self) -> Result<()> {
        self.inner.engine.check_open()?;
        self.read(|tx| tx.raw(tables::META, LAYOUT_KEY).map(drop)).await
    }

    /// Runs `f` on a snapshot, on the calling thread. Blocking.
    pub fn read_blocking<T>(&self, f: impl FnOnce(&ReadTx) -> Result<T>) -> Result<T> {
        self.inner.read_blocking(f)
    }

    /// A snapshot for long work on the caller's thread.
    pub(super) fn snapshot(&self) -> Result<ReadTx> {
        self.inner.snapshot()
    }

    /// The reserve of the disk with the database; `None` if it is not on a disk of this machine.
    pub(super) fn reserve(&self) -> Option<&DiskReserve> {
        self.inner.engine.reserve()
    }

    /// Bytes that the database takes of its disk; 0 if unknown.
    pub(super) fn written_bytes(&self) -> u64 {
        self.inner.engine.written_bytes()
    }

    /// Size of the database in bytes; 0 if unknown.
    pub(super) fn bytes(&self) -> u64 {
        self.inner.engine.bytes()
    }

    /// The pepper.
    pub fn pepper(&self) -> &Pepper {
        &self.inner.shared.pepper
    }

    /// The nodes that share the database; `None` if this process has the store for itself.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.inner.engine.cluster()
    }

    /// Which processes that share the database may still do what they have claimed.
    pub fn peers(&self) -> Peers {
        Peers::new(self.cluster().cloned())
    }

    /// Small transactions for records that all nodes change; `None` if this process has the store for itself.
    pub fn exchanges(&self) -> Option<Exchanges> {
        let queue = self.inner.engine.exchanges()?;
        Some(Exchanges::new(queue.clone(), self.inner.shared.pepper.clone()))
    }

    /// True if caches of watchers may be used, because changes by other nodes have been announced recently.
    pub fn is_current(&self) -> bool {
        self.cluster().is_none_or(|cluster| cluster.is_current())
    }

    /// The clock that everything above the store uses: with the database's time if nodes share it.
    pub fn clock(&self, machine: Arc<dyn ClockRng>) -> Arc<dyn ClockRng> {
        match self.cluster() {
            Some(cluster) if machine.follows_database() => {
                Arc::new(DatabaseClock { cluster: cluster.clone(), machine })
            }
            _ => machine,
        }
    }

    /// Registers `watcher` for changes of sealed records, until it is dropped.
    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        self.inner.shared.watchers.add(watcher);
    }

    pub fn stats(&self) -> WriteStats {
        let shared = &self.inner.shared;
        WriteStats { commits: shared.commits.load(Relaxed), writes: shared.writes.load(Relaxed) }
    }

    /// Finishes queued writes, refuses new ones, and closes the file cleanly. Blocking.
    pub fn shutdown(self) {
        self.inner.shared.closing.store(true, Release);
        // An error means that the writer has already stopped.
        let _ = self.inner.sender.send(Message::Stop);
        self.inner.thread.join();
    }
}

impl Inner {
    fn snapshot(&self) -> Result<ReadTx> {
        let failed = |failed: Failed| {
            self.engine.report(failed.health, &self.sender);
            if self.shared.closing.load(Acquire) { shutting_down() } else { failed.into() }
        };
        Ok(ReadTx::new(self.engine.snapshot().map_err(failed)?, self.shared.pepper.clone()))
    }

    fn read_blocking<T>(&self, f: impl FnOnce(&ReadTx) -> Result<T>) -> Result<T> {
        let tx = self.snapshot()?;
        let outcome = f(&tx);
        self.engine.report(tx.health(), &self.sender);
        tx.close();
        outcome
    }
}
