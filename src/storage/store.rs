//! The store handle.

use std::path::PathBuf;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use redb::Database;
use tokio::sync::oneshot;

use super::database::{self, DatabaseFile, Health, Opener};
use super::error::OpenError;
use super::group_commit::{Message, Task, Writer};
use super::pepper::{self, Pepper};
use super::shared_state::{SharedState, Watcher, shutting_down};
use super::transaction::{ReadTx, WriteTx};
use super::{migrations, private_files};
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::file_lock::FileLock;

/// Settings of a store.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// The data folder.
    pub dir: PathBuf,
    /// Size of the page cache.
    pub cache_bytes: usize,
    /// Max queued writes; more are refused.
    pub queue: usize,
}

/// Numbers of writes and of commits since the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteStats {
    pub commits: u64,
    pub writes: u64,
}

struct Inner {
    shared: Arc<SharedState>,
    // Dropped before the thread is joined, because the writer ends when no sender is left.
    sender: SyncSender<Message>,
    thread: WriterThread,
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
        Self::open_with(settings, clock_rng, database::from_file())
    }

    /// As [`Store::open`], through a chosen backend; for fault injection.
    pub fn open_with(settings: StoreSettings, clock_rng: Arc<dyn ClockRng>, opener: Opener) -> Result<Self, OpenError> {
        let StoreSettings { dir, cache_bytes, queue } = settings;
        private_files::private_dir(&dir).map_err(|error| OpenError::io(&dir, error))?;
        let lock = database::lock_folder(&dir)?;
        let path = dir.join(private_files::DATABASE);
        let pepper = Arc::new(pepper::load_or_create(&dir, path.exists(), &*clock_rng)?);
        if !path.exists() {
            migrations::create(&path, &pepper, cache_bytes)?;
        }
        let source = DatabaseFile { path, cache_bytes, opener };
        let db = source.open()?;
        // redb may panic over damaged pages; that is reported as damage.
        let migrated = database::catch_panic(|| migrations::run(&db, &source.path, &pepper))
            .unwrap_or_else(|| Err(OpenError::corrupt(&source.path, "unreadable pages")));
        if let Err(error) = migrated {
            // After a panic, closing may panic as well.
            let _ = database::catch_panic(move || drop(db));
            return Err(error);
        }
        Self::start(db, source, pepper, queue, lock)
    }

    fn start(
        db: Database,
        source: DatabaseFile,
        pepper: Arc<Pepper>,
        queue: usize,
        lock: FileLock,
    ) -> Result<Self, OpenError> {
        let path = source.path.clone();
        let shared = Arc::new(SharedState::new(db, source, pepper));
        let (sender, inbox) = sync_channel(queue.max(1));
        let writer = Writer { shared: shared.clone(), inbox, _lock: lock };
        let thread = std::thread::Builder::new().name("outpost-writer".into()).spawn(move || writer.run());
        let thread = thread.map_err(|error| OpenError::io(&path, error))?;
        Ok(Self { inner: Arc::new(Inner { shared, sender, thread: WriterThread(Mutex::new(Some(thread))) }) })
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
        let shared = &self.inner.shared;
        if shared.closing.load(Acquire) || !shared.is_open() {
            return Err(shared.absent());
        }
        let (reply, answer) = oneshot::channel();
        match self.inner.sender.try_send(Message::Job(Box::new(Task::new(f, reply)))) {
            Ok(()) => Ok(answer),
            Err(TrySendError::Full(_)) => {
                Err(Error::new(Code::Overloaded, "Too many writes are waiting. Try again shortly, with backoff."))
            }
            Err(TrySendError::Disconnected(_)) => Err(shutting_down()),
        }
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

    /// Runs `f` on a snapshot, on the calling thread. Blocking.
    pub fn read_blocking<T>(&self, f: impl FnOnce(&ReadTx) -> Result<T>) -> Result<T> {
        self.inner.read_blocking(f)
    }

    /// A snapshot for long work on the caller's thread.
    pub(super) fn snapshot(&self) -> Result<ReadTx> {
        self.inner.shared.snapshot()
    }

    pub(super) fn file_bytes(&self) -> u64 {
        std::fs::metadata(&self.inner.shared.source.path).map_or(0, |found| found.len())
    }

    /// The pepper.
    pub fn pepper(&self) -> &Pepper {
        &self.inner.shared.pepper
    }

    /// Registers `watcher` for changes of sealed records, until it is dropped.
    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        self.inner.shared.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(watcher);
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
    fn read_blocking<T>(&self, f: impl FnOnce(&ReadTx) -> Result<T>) -> Result<T> {
        let tx = self.shared.snapshot().inspect_err(|_| {
            // The database is open but cannot create a snapshot.
            if self.shared.database().is_some() {
                self.report(Health::Broken);
            }
        })?;
        let outcome = f(&tx);
        self.report(tx.health());
        tx.close();
        outcome
    }

    /// Tells the writer to check the database, once for any number of reports.
    fn report(&self, met: Health) {
        if met == Health::Sound {
            return;
        }
        if met == Health::Damaged {
            self.shared.log_damage();
        }
        if !self.shared.suspect.swap(true, AcqRel) && self.sender.try_send(Message::Met(met)).is_err() {
            // If the queue is full, a later reader or the writer itself reports it.
            self.shared.clear_suspicion();
        }
    }
}
