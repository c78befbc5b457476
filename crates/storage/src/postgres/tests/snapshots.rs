//! A snapshot sees one state of the database.

use outpost_testing::needs_postgres;

use super::super::connector::Connector;
use super::super::outage::Outage;
use super::super::pool::Pool;
use super::super::snapshot::PostgresSnapshot;
use super::{Database, settings, shared, stored};
use crate::engine::{EngineRead as _, Health};
use crate::tables::{KEYS, MESSAGES};
use std::time::Duration;

#[test]
fn a_snapshot_does_not_see_later_writes() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.write(&mut node, &[(KEYS, b"k", Some(b"old"))]);
    let snapshot = database.snapshot();
    assert_eq!(snapshot.get(KEYS, b"k").unwrap().unwrap(), b"old");
    database.write(&mut node, &[(KEYS, b"k", Some(b"new")), (MESSAGES, b"m", Some(b"new"))]);
    assert_eq!(snapshot.get(KEYS, b"k").unwrap().unwrap(), b"old");
    assert_eq!(snapshot.get(MESSAGES, b"m").unwrap(), None, "also in a table that it reads later");
    assert_eq!(stored(&database, KEYS, b"k").unwrap(), b"new");
}

#[test]
fn a_connection_of_the_pool_begins_a_new_snapshot_each_time() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let pool = database.pool(1);
    for round in 0..3_u8 {
        database.write(&mut node, &[(KEYS, b"k", Some(&[round]))]);
        let snapshot = PostgresSnapshot::open(&pool).unwrap();
        assert_eq!(snapshot.get(KEYS, b"k").unwrap().unwrap(), [round]);
    }
    // The database runs ROLLBACK, for which nothing waits.
    database.wait_until(
        "SELECT CASE count(*) WHEN 0 THEN 1 ELSE 0 END::bigint FROM pg_stat_activity \
         WHERE datname = current_database() AND state LIKE 'idle in%'",
    );
}

#[test]
fn a_full_pool_fails_after_its_deadline() {
    needs_postgres!();
    let database = Database::new();
    let mut settings = settings(&shared().socket_url(&database.name));
    settings.timeouts.pool = Duration::from_millis(20);
    let pool = Pool::new(Connector::new(settings).unwrap(), database.runtime.handle().clone(), 1, Outage::never());
    let first = PostgresSnapshot::open(&pool).unwrap();
    let failed = PostgresSnapshot::open(&pool).err().unwrap();
    assert_eq!(failed.health, Health::Sound);
    assert!(failed.reason.contains("all 1 connections"), "{}", failed.reason);
    drop(first);
    PostgresSnapshot::open(&pool).unwrap();
}

#[test]
fn a_connection_that_was_lost_while_idle_is_replaced() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.write(&mut node, &[(KEYS, b"k", Some(b"v"))]);
    let pool = database.pool(2);
    let read = || PostgresSnapshot::open(&pool).unwrap().get(KEYS, b"k").unwrap();
    assert!(read().is_some());
    terminate_others(&database);
    assert!(read().is_some());
}

#[test]
fn a_connection_that_is_lost_within_a_snapshot_ends_it() {
    needs_postgres!();
    let database = Database::new();
    let pool = database.pool(2);
    let snapshot = PostgresSnapshot::open(&pool).unwrap();
    assert_eq!(snapshot.get(KEYS, b"k").unwrap(), None);
    terminate_others(&database);
    for _ in 0..2 {
        assert_eq!(snapshot.get(KEYS, b"k").unwrap_err().health, Health::Broken);
    }
    drop(snapshot);
    assert_eq!(PostgresSnapshot::open(&pool).unwrap().get(KEYS, b"k").unwrap(), None);
}

/// Ends all other sessions of the database, and waits until they have ended.
fn terminate_others(database: &Database) {
    let others = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity \
                  WHERE datname = current_database() AND pid <> pg_backend_pid()";
    shared().execute(&database.name, others);
}
