//! A store in a temporary folder, with a clock that the test controls.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use outpost::clock_rng::{ClockRng, Timestamp};
use outpost::error::{Code, Error};
use outpost::ids::ProjectId;
use outpost::service::{
    Access, FirstKey, Key, Keys, NewKey, NewProject, Project, Projects, Rotation, Secret, first_start,
};
use outpost::storage::{Store, StoreSettings};
use ring::rand::{SecureRandom, SystemRandom};

use crate::store_location::open_store;

pub const START: i64 = 1_800_000_000_000;

pub struct Clock {
    wall_clock: AtomicI64,
    uptime: AtomicU64,
    random: SystemRandom,
}

impl Clock {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { wall_clock: AtomicI64::new(START), uptime: AtomicU64::new(1000), random: SystemRandom::new() })
    }

    /// Lets time pass: moves the wall clock and the uptime forward.
    pub fn pass(&self, wait: Duration) {
        self.wall_clock.fetch_add(wait.as_millis() as i64, SeqCst);
        self.uptime.fetch_add(wait.as_millis() as u64, SeqCst);
    }

    /// A clock with the same wall time, for another process.
    fn restarted(&self) -> Arc<Self> {
        let clock = Self::new();
        clock.wall_clock.store(self.wall_clock.load(SeqCst), SeqCst);
        clock
    }

    /// Sets the wall clock forward, or back if `seconds` is negative.
    pub fn jump(&self, seconds: i64) {
        self.wall_clock.fetch_add(seconds * 1000, SeqCst);
    }
}

impl ClockRng for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.wall_clock.load(SeqCst))
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(self.uptime.load(SeqCst))
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.random.fill(bytes).unwrap();
    }

    fn follows_database(&self) -> bool {
        false
    }
}

pub fn settings(dir: &Path) -> StoreSettings {
    StoreSettings { dir: dir.to_owned(), cache_bytes: 16 << 20, queue: 4096, min_free_disk: Some(0) }
}

pub fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// An installation after its first start.
pub struct Fixture {
    pub dir: PathBuf,
    pub clock: Arc<Clock>,
    pub store: Store,
    pub keys: Arc<Keys>,
    pub projects: Projects,
    pub first: FirstKey,
    pub admin: Access,
    pub _dir: tempfile::TempDir,
}

impl Fixture {
    pub async fn new() -> Self {
        let (dir, clock) = (dir(), Clock::new());
        let store = open_store(dir.path(), clock.clone());
        Self::with_store(dir, clock, store).await
    }

    /// With the store in the data folder, whatever the variable `OUTPOST_TEST_STORE` says.
    pub async fn in_folder() -> Self {
        let (dir, clock) = (dir(), Clock::new());
        let store = Store::open(settings(dir.path()), clock.clone()).unwrap();
        Self::with_store(dir, clock, store).await
    }

    pub async fn with_store(dir: tempfile::TempDir, clock: Arc<Clock>, store: Store) -> Self {
        let clock_rng: Arc<dyn ClockRng> = clock.clone();
        let first = first_start(&store, &clock_rng).await.unwrap().unwrap();
        let keys = Arc::new(Keys::new(store.clone(), clock_rng.clone()));
        let projects = Projects::new(store.clone(), clock_rng);
        let admin = keys.authenticate(first.secret.expose()).await.unwrap();
        Self { dir: dir.path().to_owned(), clock, store, keys, projects, first, admin, _dir: dir }
    }

    /// Restarts on the same folder, after a clean stop or a crash.
    pub async fn restart(self, clean: bool) -> Self {
        let Self { dir, clock, store, keys, projects, first, _dir, .. } = self;
        if clean {
            keys.persist_time().await.unwrap();
        }
        drop((keys, projects));
        store.shutdown();
        let clock = clock.restarted();
        let store = open_store(&dir, clock.clone());
        let keys = Arc::new(Keys::new(store.clone(), clock.clone()));
        let projects = Projects::new(store.clone(), clock.clone());
        let admin = keys.authenticate(first.secret.expose()).await.unwrap();
        Self { dir, clock, store, keys, projects, first, admin, _dir }
    }

    pub async fn project(&self, name: &str) -> Project {
        self.projects.create(&self.admin, NewProject { name: name.into(), ..NewProject::default() }).await.unwrap()
    }

    pub async fn key(&self, project: ProjectId, scopes: &[&str]) -> (Key, Secret) {
        let (key, secret) = self.keys.create(&self.admin, new_key(project, scopes)).await.unwrap();
        (key, secret.unwrap())
    }

    /// Creates a key and returns its access.
    pub async fn access(&self, project: ProjectId, scopes: &[&str]) -> Access {
        let (_, secret) = self.key(project, scopes).await;
        self.keys.authenticate(secret.expose()).await.unwrap()
    }

    pub async fn code(&self, secret: &Secret) -> Option<Code> {
        self.keys.authenticate(secret.expose()).await.err().map(|error| error.code())
    }

    pub async fn rotate(&self, key: &Key, grace: i64) -> Result<(Key, Secret), Error> {
        let rotation = Rotation { grace_period_seconds: Some(grace), reason: Some("leaked".into()) };
        let (key, secret) = self.keys.rotate(&self.admin, key.id, rotation).await?;
        Ok((key, secret.unwrap()))
    }
}

pub fn new_key(project: ProjectId, scopes: &[&str]) -> NewKey {
    let scopes = (!scopes.is_empty()).then(|| scopes.iter().map(ToString::to_string).collect());
    NewKey { name: "ci".into(), project, expires_at: None, scopes, models: None }
}

/// Code and param of an error.
pub fn error_fields<T>(outcome: Result<T, Error>) -> (Code, Option<String>) {
    let error = outcome.err().expect("an error");
    assert!(error.message().len() > 20, "{error}");
    (error.code(), error.param_name().map(Into::into))
}
