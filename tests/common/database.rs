//! A PostgreSQL database that several nodes share.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use outpost::clock_rng::ClockRng;
use outpost::storage::{PostgresLocation, PostgresSettings, Store, StoreSettings};
use tempfile::TempDir;

use crate::postgres;

/// A database of the server that the tests share, and the secrets of its first node.
pub struct Database {
    name: String,
    secrets: TempDir,
}

impl Database {
    pub fn new() -> Self {
        Self { name: postgres::shared().new_database(), secrets: tempfile::tempdir().unwrap() }
    }

    pub fn url(&self) -> String {
        postgres::shared().socket_url(&self.name)
    }

    pub fn location(&self, node: &str) -> PostgresLocation {
        let settings = PostgresSettings::parse(&self.url(), None).unwrap();
        PostgresLocation { settings, node: node.to_owned(), readers: 2 }
    }

    /// Opens the store as a node without a server, with a data folder of its own.
    pub fn open_store(&self, node: &str, clock_rng: Arc<dyn ClockRng>) -> (Store, TempDir) {
        let data = tempfile::tempdir().unwrap();
        let settings =
            StoreSettings { dir: data.path().to_owned(), cache_bytes: 16 << 20, queue: 4096, min_free_disk: Some(0) };
        let open = || Store::open_postgres(settings, &self.location(node), clock_rng).unwrap();
        (self.with_secrets(data.path(), open), data)
    }

    /// Starts a node in a data folder, which gets the secrets of the first node.
    pub fn with_secrets<T>(&self, data: &Path, start: impl FnOnce() -> T) -> T {
        fs::create_dir_all(data).unwrap();
        copy_secrets(self.secrets.path(), data);
        let started = start();
        copy_secrets(data, self.secrets.path());
        started
    }
}

/// Copies the files that are the same on all nodes. Those that `to` has stay.
fn copy_secrets(from: &Path, to: &Path) {
    for file in ["pepper", "admin.key"] {
        if from.join(file).exists() && !to.join(file).exists() {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
    }
}
