//! Copies of a store that has records of every kind, between a data folder and a PostgreSQL database, compared byte by byte.

use std::collections::BTreeMap;
use std::path::Path;

use outpost::app::SystemClockRng;
use outpost::clock_rng::ClockRng as _;
use outpost::storage::{Store, StorePlace, check, copy_store};
use outpost_testing::needs_postgres;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableHandle as _};
use tempfile::TempDir;

use crate::database::Database as SharedDatabase;
use crate::fixture::{Clock, dir, settings};
use crate::seed;

/// The rows of each table, ordered by key.
type Tables = BTreeMap<String, Vec<(Vec<u8>, Vec<u8>)>>;

fn rows_of_folder(folder: &Path) -> Tables {
    let database = Database::open(folder.join("outpost.redb")).unwrap();
    let tx = database.begin_read().unwrap();
    let rows = |name: &str| {
        let table = tx.open_table(TableDefinition::<&[u8], &[u8]>::new(name)).unwrap();
        let pairs = table.iter().unwrap().map(|row| {
            let (key, value) = row.unwrap();
            (key.value().to_vec(), value.value().to_vec())
        });
        pairs.collect()
    };
    tx.list_tables().unwrap().map(|table| (table.name().to_owned(), rows(table.name()))).collect()
}

/// The rows of the tables with these names.
async fn rows_of_database<'a>(url: &str, names: impl Iterator<Item = &'a String>) -> Tables {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let mut tables = Tables::new();
    for name in names {
        let found = client.query(&format!("SELECT k, v FROM outpost_{name} ORDER BY k"), &[]).await.unwrap();
        tables.insert(name.clone(), found.iter().map(|row| (row.get(0), row.get(1))).collect());
    }
    tables
}

/// Panics with the first row that differs, and not with all of them.
fn assert_equal(one: &Tables, other: &Tables, what: &str) {
    assert!(one.keys().eq(other.keys()), "{what}: other tables");
    for (name, rows) in one {
        assert_eq!(rows.len(), other[name].len(), "{what}: the number of rows of {name}");
        let differs = rows.iter().zip(&other[name]).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{what}: a row of {name}");
    }
}

fn assert_clean(report: &outpost::storage::CheckReport, records: u64) {
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.records.values().sum::<u64>(), records);
}

/// A stopped store in a folder, with this many projects.
async fn filled(projects: usize) -> TempDir {
    let (folder, clock) = (dir(), Clock::new());
    let store = Store::open(settings(folder.path()), clock.clone()).unwrap();
    seed::fill(&store, &clock, projects).await;
    store.shutdown();
    folder
}

/// Returns the number of records, and when each step ended, in milliseconds.
async fn copy_there_and_back(projects: usize) -> (u64, Vec<(&'static str, u128)>) {
    let clock = SystemClockRng::new();
    let began = clock.uptime();
    let mut times = Vec::new();
    let mut lap = |what: &'static str| times.push((what, (clock.uptime() - began).as_millis()));
    let source = filled(projects).await;
    lap("filled");
    let original = rows_of_folder(source.path());
    let records = original.values().map(|rows| rows.len() as u64).sum();
    assert!(records >= (projects * seed::RECORDS_PER_PROJECT) as u64, "{records}");
    let empty: Vec<_> = original.iter().filter(|(_, rows)| rows.is_empty()).map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        empty,
        ["work_leases"],
        "only processes that share a database have leases; all other records are copied"
    );
    lap("read");
    assert_clean(&check(source.path()).unwrap(), records);
    lap("checked");

    let shared = SharedDatabase::new();
    let location = shared.location("one");
    let database = StorePlace::Postgres(Box::new(location.clone()));
    let folder = StorePlace::Folder(source.path().to_owned());
    copy_store(&folder, &database, source.path()).unwrap();
    lap("copied to PostgreSQL and compared");
    assert_equal(&rows_of_database(&shared.url(), original.keys()).await, &original, "the database");
    lap("read");
    // A store in a folder of its own, which has the pepper only.
    let node = dir();
    std::fs::copy(source.path().join("pepper"), node.path().join("pepper")).unwrap();
    let store = Store::open_existing(settings(node.path()), Some(&location), Clock::new()).unwrap();
    assert_clean(&store.verify().unwrap(), records);
    store.shutdown();
    lap("checked");

    let back = dir();
    copy_store(&database, &StorePlace::Folder(back.path().to_owned()), source.path()).unwrap();
    lap("copied to a folder and compared");
    assert_equal(&rows_of_folder(back.path()), &original, "the folder");
    assert_clean(&check(back.path()).unwrap(), records);
    lap("read and checked");
    (records, times)
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_every_kind_are_the_same_after_a_copy_there_and_back() {
    needs_postgres!();
    copy_there_and_back(8).await;
}

/// Run with `cargo test --test storage -- --ignored --nocapture a_hundred_thousand_records`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute or more"]
async fn a_hundred_thousand_records_are_the_same_after_a_copy_there_and_back() {
    needs_postgres!();
    let (records, times) = copy_there_and_back(100_000 / seed::RECORDS_PER_PROJECT + 1).await;
    println!("{records} records: {times:?}");
}
