//! Copies of a store between a data folder and a PostgreSQL database.

use std::path::Path;
use std::time::Duration;

use outpost::ids::FileId;
use outpost::storage::content_chunks::{self, Chunk};
use outpost::storage::{
    OpenError, PostgresLocation, PostgresOpenError, Store, StoreCopyError, StorePlace, WriteTx, check, copy_store,
};
use outpost_testing::needs_postgres;

use crate::database::Database;
use crate::fixture::{Clock, Fixture, dir, settings};

fn postgres(location: &PostgresLocation) -> StorePlace {
    StorePlace::Postgres(Box::new(location.clone()))
}

fn folder(path: &Path) -> StorePlace {
    StorePlace::Folder(path.to_owned())
}

/// Runs statements in a database.
async fn execute(database: &Database, sql: &str) {
    let (client, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    client.batch_execute(sql).await.unwrap();
}

/// Runs statements of PL/pgSQL before each row that is inserted into a table and meets the condition, until the function is
/// dropped.
async fn before_inserts(database: &Database, table: &str, condition: &str, run: &str) {
    let sql = format!(
        "CREATE TABLE IF NOT EXISTS outpost_{table} (k bytea PRIMARY KEY, v bytea NOT NULL); \
         CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {run}; RETURN NEW; END $$; \
         CREATE TRIGGER cut BEFORE INSERT ON outpost_{table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION cut()"
    );
    execute(database, &sql).await;
}

/// A data folder with keys, audit rows and large values, whose server has stopped.
async fn stopped() -> Fixture {
    let fixture = Fixture::in_folder().await;
    for name in ["one", "two"] {
        let project = fixture.project(name).await;
        fixture.key(project.id, &["inference"]).await;
    }
    let chunks = move |tx: &WriteTx| {
        let id = FileId::from_bytes([7; 16]);
        (0..9).try_for_each(|index| content_chunks::put(tx, id, index, &Chunk(vec![index as u8; 500_000])))
    };
    fixture.store.write(chunks).await.unwrap();
    fixture.store.clone().shutdown();
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_copy_has_every_record() {
    needs_postgres!();
    let Fixture { dir: source, clock, store, keys, projects, first, _dir, .. } = stopped().await;
    drop((keys, projects, store));
    let database = Database::new().location("one");
    let there = copy_store(&folder(&source), &postgres(&database), &source).unwrap();
    assert!(there.records["keys"] >= 3 && there.records["content_chunks"] == 9, "{there:?}");

    // The folder's own file must not be used beside the database.
    let refused = Store::open_postgres(settings(&source), &database, clock.clone()).err().unwrap();
    assert!(matches!(refused, OpenError::TwoStores { .. }), "{refused}");
    std::fs::rename(source.join("outpost.redb"), source.join("before")).unwrap();
    let empty = Database::new().location("one");
    let missing = Store::open_existing(settings(&source), Some(&empty), clock.clone()).err().unwrap();
    assert!(matches!(missing, OpenError::Postgres(PostgresOpenError::NoStore { .. })), "{missing}");
    let store = Store::open_existing(settings(&source), Some(&database), clock.clone()).unwrap();
    let running = copy_store(&postgres(&database), &folder(dir().path()), &source).unwrap_err();
    assert!(running.to_string().contains("The server 'one' is using the database"), "{running}");
    let report = store.verify().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let keys = outpost::service::Keys::new(store.clone(), clock.clone());
    keys.authenticate(first.secret.expose()).await.unwrap();
    drop(keys);
    store.shutdown();

    let back = dir();
    let returned = copy_store(&postgres(&database), &folder(back.path()), &source).unwrap();
    assert_eq!(returned.records["keys"], there.records["keys"]);
    let report = check(back.path()).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let store = Store::open(settings(back.path()), clock.clone()).unwrap();
    outpost::service::Keys::new(store, clock).authenticate(first.secret.expose()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_overwrites_nothing_and_needs_the_pepper() {
    needs_postgres!();
    let fixture = stopped().await;
    let (source, database) = (&fixture.dir, Database::new().location("one"));
    copy_store(&folder(source), &postgres(&database), source).unwrap();
    let again = copy_store(&folder(source), &postgres(&database), source).unwrap_err();
    assert!(matches!(again, StoreCopyError::Open(OpenError::Postgres(PostgresOpenError::NotEmpty { .. }))), "{again}");
    let occupied = copy_store(&postgres(&database), &folder(source), source).unwrap_err();
    assert!(matches!(occupied, StoreCopyError::NotEmpty { .. }), "{occupied}");

    let without = dir();
    let lost = copy_store(&postgres(&database), &folder(dir().path()), without.path()).unwrap_err();
    assert!(lost.to_string().contains("Copy the file `pepper`"), "{lost}");
    let refused = Store::open_postgres(settings(without.path()), &database, fixture.clock.clone()).err().unwrap();
    assert!(refused.to_string().contains("Copy the file `pepper`"), "{refused}");
    assert!(!without.path().join("pepper").exists(), "a pepper of its own would only be in the way");

    let other = stopped().await;
    let mixed = copy_store(&postgres(&database), &folder(dir().path()), &other.dir).unwrap_err();
    assert!(mixed.to_string().contains("does not belong to the database"), "{mixed}");
    let nothing = copy_store(&folder(without.path()), &postgres(&database), source).unwrap_err();
    assert!(matches!(nothing, StoreCopyError::NoStore { .. }), "{nothing}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_a_part_of_a_copy_is_no_store_until_the_copy_is_run_again() {
    needs_postgres!();
    let fixture = stopped().await;
    let (source, shared) = (&fixture.dir, Database::new());
    let database = shared.location("one");
    let node = dir();
    std::fs::copy(source.join("pepper"), node.path().join("pepper")).unwrap();
    // The first and the last tables of the copy, and some in between. The last transaction is that of `meta`.
    for table in ["audit", "content_chunks", "keys", "projects", "meta"] {
        let condition = if table == "meta" { "NEW.k = 'pepper_check'" } else { "true" };
        before_inserts(&shared, table, condition, "RAISE EXCEPTION 'the disk is full' USING ERRCODE = '53100'").await;
        let cut = copy_store(&folder(source), &postgres(&database), source).unwrap_err();
        assert!(cut.to_string().contains("the disk is full"), "{table}: {cut}");
        execute(&shared, "DROP FUNCTION cut() CASCADE").await;
        for refused in [
            Store::open_postgres(settings(node.path()), &database, fixture.clock.clone()).err(),
            Store::open_existing(settings(node.path()), Some(&database), fixture.clock.clone()).err(),
        ] {
            let refused = refused.unwrap_or_else(|| panic!("{table}: it is taken for a store"));
            assert!(matches!(refused, OpenError::Postgres(PostgresOpenError::UnfinishedCopy)), "{table}: {refused}");
        }
        let back = copy_store(&postgres(&database), &folder(dir().path()), source).unwrap_err();
        assert!(matches!(back, StoreCopyError::Open(OpenError::Postgres(PostgresOpenError::UnfinishedCopy))), "{back}");
        // The source may have changed before the next attempt.
        execute(&shared, "INSERT INTO outpost_agents (k, v) VALUES ('gone', 'gone') ON CONFLICT DO NOTHING").await;
    }
    copy_store(&folder(source), &postgres(&database), source).unwrap();
    let store = Store::open_existing(settings(node.path()), Some(&database), fixture.clock.clone()).unwrap();
    let report = store.verify().unwrap();
    assert!(report.is_clean() && report.records["agents"] == 0 && report.records["content_chunks"] == 9, "{report:?}");
    store.shutdown();
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_without_a_layout_are_no_store() {
    needs_postgres!();
    let fixture = stopped().await;
    let (shared, node) = (Database::new(), dir());
    let database = shared.location("one");
    // As a copy without the mark of one that has not ended would leave them.
    let rows = "CREATE TABLE outpost_conversations (k bytea PRIMARY KEY, v bytea NOT NULL); \
                CREATE TABLE outpost_meta (k bytea PRIMARY KEY, v bytea NOT NULL); \
                INSERT INTO outpost_conversations (k, v) VALUES ('one', 'row')";
    execute(&shared, rows).await;
    for refused in [
        Store::open_postgres(settings(node.path()), &database, fixture.clock.clone()).err(),
        Store::open_existing(settings(node.path()), Some(&database), fixture.clock.clone()).err(),
    ] {
        let text = refused.unwrap_or_else(|| panic!("it is taken for a store")).to_string();
        assert!(
            text.contains("The table outpost_conversations has rows") && text.contains("drop the tables"),
            "{text}"
        );
    }
    let copied = copy_store(&folder(&fixture.dir), &postgres(&database), &fixture.dir).unwrap_err();
    assert!(
        matches!(copied, StoreCopyError::Open(OpenError::Postgres(PostgresOpenError::NotEmpty { .. }))),
        "{copied}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_starts_over_ends_the_one_that_still_runs() {
    needs_postgres!();
    let fixture = stopped().await;
    let (source, shared) = (fixture.dir.clone(), Database::new());
    let database = shared.location("one");
    // Each copy pauses in the middle.
    before_inserts(&shared, "content_chunks", "true", "PERFORM pg_sleep(0.2)").await;
    // A folder is read by one process at a time, so the second copy has one of its own.
    let other = dir();
    for file in ["pepper", "outpost.redb"] {
        std::fs::copy(source.join(file), other.path().join(file)).unwrap();
    }
    let run = |source: &Path| {
        let (source, database) = (source.to_owned(), database.clone());
        move || copy_store(&folder(&source), &postgres(&database), &source)
    };
    let first = std::thread::spawn(run(&source));
    while !is_paused(&shared).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let second = tokio::task::spawn_blocking(run(other.path())).await.unwrap();
    let first = first.join().unwrap().unwrap_err();
    assert!(first.to_string().contains("another copy into this database has begun"), "{first}");
    assert_eq!(second.unwrap().records["keys"], 3);
    std::fs::rename(source.join("outpost.redb"), source.join("before")).unwrap();
    let store = Store::open_existing(settings(&source), Some(&database), fixture.clock.clone()).unwrap();
    assert!(store.verify().unwrap().is_clean());
    store.shutdown();
}

/// Whether a session sleeps in the database.
async fn is_paused(database: &Database) -> bool {
    let (client, connection) = tokio_postgres::connect(&database.url(), tokio_postgres::NoTls).await.unwrap();
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let sql = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
    !client.query(sql, &[]).await.unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_share_a_database_and_a_restart_takes_over() {
    needs_postgres!();
    let (database, clock) = (Database::new(), Clock::new());
    let (store, _first) = database.open_store("one", clock.clone());
    let (other, _second) = database.open_store("two", clock.clone());
    other.write(|tx| content_chunks::put(tx, FileId::from_bytes([3; 16]), 0, &Chunk(vec![3]))).await.unwrap();
    let found = store.read(|tx| content_chunks::get(tx, FileId::from_bytes([3; 16]), 0)).await.unwrap();
    assert_eq!(found, Some(vec![3]));
    // As after a crash, whose process may still be there.
    let (restarted, _third) = database.open_store("one", clock);
    restarted.write(|tx| content_chunks::put(tx, FileId::from_bytes([1; 16]), 0, &Chunk(vec![1]))).await.unwrap();
    let fenced = store.write(|tx| content_chunks::put(tx, FileId::from_bytes([2; 16]), 0, &Chunk(vec![2]))).await;
    assert_eq!(fenced.unwrap_err().code(), outpost::error::Code::StorageUnavailable);
    assert!(store.ready().await.is_err(), "it must not answer any more");
    // The other node is not concerned.
    other.write(|tx| content_chunks::put(tx, FileId::from_bytes([4; 16]), 0, &Chunk(vec![4]))).await.unwrap();
    restarted.shutdown();
    other.shutdown();
}
