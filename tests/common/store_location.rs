//! Where the stores of tests are.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use outpost::app::SystemClockRng;
use outpost::clock_rng::ClockRng;
use outpost::storage::{self, CheckReport, PostgresLocation, PostgresSettings, Store, StoreSettings};

use crate::postgres;

/// The name of every server, which takes over the database of one that has crashed.
const NODE: &str = "test";

/// The URL of the database of the server with this data folder, if the variable `OUTPOST_TEST_STORE` is `postgres`;
/// otherwise its store is in the folder. A folder that is opened again has the same database.
fn store_url(folder: &Path) -> Option<String> {
    static DATABASES: Mutex<Option<HashMap<PathBuf, String>>> = Mutex::new(None);
    if std::env::var("OUTPOST_TEST_STORE").ok()? != "postgres" {
        return None;
    }
    let mut databases = DATABASES.lock().unwrap_or_else(PoisonError::into_inner);
    let databases = databases.get_or_insert_default();
    let database = databases.entry(folder.to_owned()).or_insert_with(|| postgres::shared().new_database());
    Some(postgres::shared().socket_url(database))
}

/// The database of the server with this data folder, if it has one.
pub fn store_location(folder: &Path) -> Option<PostgresLocation> {
    let settings = PostgresSettings::parse(&store_url(folder)?, None).unwrap();
    Some(PostgresLocation { settings, node: NODE.to_owned(), readers: 4 })
}

/// The arguments of the program for the store of the server with this data folder.
pub fn store_arguments(folder: &Path) -> Vec<String> {
    let url = store_url(folder);
    url.map_or_else(Vec::new, |url| ["--store", &url, "--node-name", NODE].map(str::to_owned).to_vec())
}

/// Opens the store of the server with this data folder.
pub fn open_store(folder: &Path, clock_rng: Arc<dyn ClockRng>) -> Store {
    let settings = StoreSettings { dir: folder.to_owned(), cache_bytes: 16 << 20, queue: 4096, min_free_disk: Some(0) };
    Store::open_at(settings, store_location(folder).as_ref(), clock_rng).unwrap()
}

/// Checks the store of the stopped server with this data folder.
pub fn check_store(folder: &Path) -> CheckReport {
    if store_location(folder).is_none() {
        return storage::check(folder).unwrap();
    }
    let store = open_store(folder, Arc::new(SystemClockRng::new()));
    let report = store.verify().unwrap();
    store.shutdown();
    report
}
