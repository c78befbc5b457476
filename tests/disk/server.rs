//! An installation whose database is on a simulated disk.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::error::Result;
use outpost::service::{Access, FirstKey, Keys, Projects, first_start};
use outpost::storage::{DATABASE_FILE, OpenError, Opener, Store, StoreSettings};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::simulated_disk::Disk;

/// A clock with a fixed time, and reproducible randomness.
struct Seeded(Mutex<ChaCha8Rng>);

impl ClockRng for Seeded {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000)
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap().fill_bytes(bytes);
    }
}

/// A data folder after its first start, and the content of its database.
pub struct Installation {
    dir: TempDir,
    seed: u64,
    pub first: Arc<FirstKey>,
    pub database: Vec<u8>,
}

/// A single-threaded runtime, so that concurrent submissions have a fixed order.
pub fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn clock_rng(seed: u64) -> Arc<dyn ClockRng> {
    Arc::new(Seeded(Mutex::new(ChaCha8Rng::seed_from_u64(seed))))
}

fn settings(dir: &TempDir, cache_bytes: usize) -> StoreSettings {
    StoreSettings { dir: dir.path().to_owned(), cache_bytes, queue: 4096, min_free_disk: Some(0) }
}

impl Installation {
    pub fn new(seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock_rng = clock_rng(seed);
        let store = Store::open(settings(&dir, 16 << 20), clock_rng.clone()).unwrap();
        let first = runtime().block_on(first_start(&store, &clock_rng)).unwrap().unwrap();
        store.shutdown();
        let database = std::fs::read(dir.path().join(DATABASE_FILE)).unwrap();
        Self { dir, seed, first: Arc::new(first), database }
    }

    /// A copy of the installation in another folder, for another thread.
    pub fn copy(&self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in ["pepper", DATABASE_FILE] {
            std::fs::copy(self.dir.path().join(file), dir.path().join(file)).unwrap();
        }
        Self { dir, seed: self.seed, first: self.first.clone(), database: self.database.clone() }
    }

    /// The data folder. A store on a [`Disk`] does not use the database file in it.
    pub fn path(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub fn open(&self, disk: &Disk) -> Result<Server, OpenError> {
        self.open_with_cache(disk, 16 << 20)
    }

    /// Opens the store with another cache size. A small cache causes more reads from the disk.
    pub fn open_with_cache(&self, disk: &Disk, cache_bytes: usize) -> Result<Server, OpenError> {
        self.open_as(disk.event_count(), cache_bytes, disk.opener())
    }

    /// Opens the store with other random numbers than [`Installation::open`] on a new disk.
    pub fn open_through(&self, opener: Opener) -> Result<Server, OpenError> {
        self.open_as(1 << 40, 16 << 20, opener)
    }

    fn open_as(&self, event_count: u64, cache_bytes: usize, opener: Opener) -> Result<Server, OpenError> {
        let clock_rng = clock_rng(self.seed ^ event_count ^ 1 << 63);
        let store = Store::open_with(settings(&self.dir, cache_bytes), clock_rng.clone(), opener)?;
        let keys = Keys::new(store.clone(), clock_rng.clone());
        let projects = Projects::new(store.clone(), clock_rng.clone());
        Ok(Server { store, keys, projects, clock_rng })
    }
}

/// The opened store of an installation, and its services.
pub struct Server {
    pub store: Store,
    pub keys: Keys,
    pub projects: Projects,
    pub clock_rng: Arc<dyn ClockRng>,
}

impl Server {
    pub async fn admin(&self, installation: &Installation) -> Result<Access> {
        self.keys.authenticate(installation.first.secret.expose()).await
    }

    /// Closes the database cleanly.
    pub fn close(self) {
        drop((self.keys, self.projects));
        self.store.shutdown();
    }
}
