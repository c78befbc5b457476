//! Rows come back as they were written, in the order of redb.

use std::cell::RefCell;
use std::ops::ControlFlow;

use outpost_testing::needs_postgres;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::super::turn::Turns;
use super::{Database, Pairs, scanned, stored, values, wanted, writes};
use crate::engine::{EngineRead as _, EngineSnapshot as _, EngineWrite as _, Scan};
use crate::redb::transaction::in_memory;
use crate::remote::{Page, Wanted};
use crate::tables::{self, CONTENT_CHUNKS, HORIZON, KEYS, MESSAGES};

const BINARY: &[&[u8]] = &[b"", b"\0", b"\0\0", b"\\x00'", b"a", b"a\0", b"\x7f", b"\x80", b"\xff", b"\xff\xff"];

#[test]
fn binary_keys_and_values_round_trip() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let rows: Vec<_> = BINARY.iter().map(|key| (MESSAGES, *key, Some(*key))).collect();
    database.write(&mut node, &rows);
    let snapshot = database.snapshot();
    for key in BINARY {
        assert_eq!(snapshot.get(MESSAGES, key).unwrap().as_deref(), Some(*key));
    }
    assert_eq!(snapshot.get(MESSAGES, b"absent").unwrap(), None);
    assert_eq!(snapshot.get(KEYS, b"a").unwrap(), None, "tables are separate");
    let all = Scan { table: MESSAGES, prefix: b"", before: None, values: true, rows: None };
    let descending: Vec<Vec<u8>> = scanned(&snapshot, &all).into_iter().map(|(key, _)| key).collect();
    assert_eq!(descending, BINARY.iter().rev().map(|key| key.to_vec()).collect::<Vec<_>>());
}

#[test]
fn a_put_replaces_and_a_remove_removes() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.write(&mut node, &[(KEYS, b"k", Some(b"1")), (KEYS, b"l", Some(b"1")), (HORIZON, b"", Some(b"h"))]);
    database.write(&mut node, &[(KEYS, b"k", Some(b"2")), (KEYS, b"l", None), (KEYS, b"absent", None)]);
    assert_eq!(stored(&database, KEYS, b"k").unwrap(), b"2");
    assert_eq!(stored(&database, KEYS, b"l"), None);
    assert_eq!(stored(&database, HORIZON, b"").unwrap(), b"h");
    assert_eq!(node.seq, 2);
}

#[test]
fn one_step_reads_keys_of_several_tables_and_pages() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.write(&mut node, &[(KEYS, b"a", Some(b"1")), (KEYS, b"b", Some(b"2")), (MESSAGES, b"m", Some(b"3"))]);
    let mut step = wanted(KEYS, &[b"b", b"absent", b"a", b"b"]);
    step.key(MESSAGES, b"m".to_vec());
    let page = |values, rows| Page { table: KEYS, from: b"".to_vec(), end: None, values, rows };
    step.pages = vec![page(true, 1), page(false, 9), Page { end: Some(b"b".to_vec()), ..page(true, 9) }];
    let fetched = database.run(async |connection| {
        let first = connection.begin(&node, &step, &mut Turns::default()).await.unwrap();
        assert_eq!(connection.fetch(&step).await.unwrap(), first);
        connection.rollback();
        first
    });
    let one = |value: &[u8]| Some(value.to_vec());
    // The second `b` is not read again.
    assert_eq!(fetched.values, [vec![one(b"2"), None, one(b"1")], vec![one(b"3")]]);
    let pair = |key: &[u8], value: &[u8]| (key.to_vec(), value.to_vec());
    assert_eq!(fetched.pages, [vec![pair(b"b", b"2")], vec![pair(b"b", b""), pair(b"a", b"")], vec![pair(b"a", b"1")]]);
}

#[test]
fn a_transaction_does_not_see_its_writes_before_commit_and_rollback_drops_them() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.run(async |connection| {
        connection.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        connection.rollback();
        connection.rollback();
        connection.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        connection.commit(&mut node, &writes(&[(KEYS, b"k", Some(b"v"))]), &[]).await.unwrap();
        let read = connection.begin(&node, &wanted(KEYS, &[b"k"]), &mut Turns::default()).await.unwrap();
        assert_eq!(values(read), [Some(b"v".to_vec())]);
        connection.commit(&mut node, &writes(&[]), &[]).await.unwrap();
    });
    assert_eq!(node.seq, 2);
}

type PrefixAndBefore = (Vec<u8>, Option<Vec<u8>>);

/// Rows of a table, and the scans over them.
fn cases() -> impl Strategy<Value = (Pairs, Vec<PrefixAndBefore>)> {
    // Few different bytes, so that prefixes match, and the largest one, behind which nothing comes.
    let key = || prop::collection::vec(prop::sample::select(vec![0_u8, 1, 0x7f, 0xfe, 0xff]), 0..4);
    let rows = prop::collection::vec((key(), prop::collection::vec(any::<u8>(), 0..8)), 0..300);
    let scan = (prop::collection::vec(prop::sample::select(vec![0_u8, 1, 0xff]), 0..3), prop::option::of(key()));
    (rows, prop::collection::vec(scan, 1..8))
}

#[test]
fn scans_visit_the_rows_of_redb_in_its_order() {
    needs_postgres!();
    let database = Database::new();
    let node = RefCell::new(database.register("a"));
    let mut runner = TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let result = runner.run(&cases(), |(rows, scans)| {
        let all = Scan { table: MESSAGES, prefix: b"", before: None, values: false, rows: None };
        let old = scanned(&database.snapshot(), &all);
        let removed = old.iter().map(|(key, _)| (MESSAGES, key.as_slice(), None));
        let put = rows.iter().map(|(key, value)| (MESSAGES, key.as_slice(), Some(value.as_slice())));
        database.write(&mut node.borrow_mut(), &removed.chain(put).collect::<Vec<_>>());
        let redb = in_memory();
        for (key, value) in &rows {
            redb.put(MESSAGES, key, value).unwrap();
        }
        let snapshot = database.snapshot();
        for (prefix, before) in &scans {
            for (values, hint) in [(true, None), (false, Some(1)), (true, Some(3))] {
                let scan = Scan { table: MESSAGES, prefix, before: before.as_deref(), values, rows: hint };
                prop_assert_eq!(scanned(&snapshot, &scan), scanned(&redb, &scan));
            }
        }
        Ok(())
    });
    result.unwrap();
}

#[test]
fn pages_grow_without_a_gap() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let keys: Vec<Vec<u8>> = (0..3000_u32).map(|number| number.to_be_bytes().to_vec()).collect();
    let rows: Vec<_> = keys.iter().map(|key| (MESSAGES, key.as_slice(), Some(key.as_slice()))).collect();
    database.write(&mut node, &rows);
    // Chunks are larger than a page.
    let chunk = vec![7_u8; 900_000];
    let chunks: Vec<_> =
        keys.iter().take(9).map(|key| (CONTENT_CHUNKS, key.as_slice(), Some(chunk.as_slice()))).collect();
    database.write(&mut node, &chunks);
    let snapshot = database.snapshot();
    let scan = |table| Scan { table, prefix: b"\0", before: None, values: true, rows: None };
    let found: Vec<Vec<u8>> = scanned(&snapshot, &scan(MESSAGES)).into_iter().map(|(key, _)| key).collect();
    assert_eq!(found, keys.iter().rev().cloned().collect::<Vec<_>>());
    assert_eq!(scanned(&snapshot, &scan(CONTENT_CHUNKS)).len(), 9);
    let mut exported = Vec::new();
    snapshot
        .export("messages", &mut |key, value| {
            assert_eq!(key, value);
            exported.push(key.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(exported, keys);
}

#[test]
fn a_visitor_may_read_and_stop() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.write(&mut node, &[(KEYS, b"a", Some(b"1")), (KEYS, b"b", Some(b"2"))]);
    let snapshot = database.snapshot();
    let mut seen = Vec::new();
    let all = Scan { table: KEYS, prefix: b"", before: None, values: false, rows: None };
    let visited = snapshot.scan(&all, &mut |key, _| {
        seen.push(snapshot.get(KEYS, key).unwrap());
        Ok(ControlFlow::Break(()))
    });
    visited.unwrap().unwrap();
    assert_eq!(seen, [Some(b"2".to_vec())]);
    let failing = snapshot.scan(&all, &mut |_, _| Err(crate::error::Error::internal("no")));
    assert!(failing.unwrap().is_err());
    assert_eq!(snapshot.get_all(KEYS, &[b"b".to_vec(), b"x".to_vec()]).unwrap(), [Some(b"2".to_vec()), None]);
    assert!(snapshot.get_all(KEYS, &[]).unwrap().is_empty());
}

#[test]
fn tables_are_listed_with_their_rows() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.write(&mut node, &[(KEYS, b"a", Some(b"1")), (KEYS, b"b", Some(b"2"))]);
    super::shared().execute(&database.name, "CREATE TABLE outpost_later (k bytea PRIMARY KEY, v bytea NOT NULL)");
    let snapshot = database.snapshot();
    let found = snapshot.tables().unwrap();
    assert_eq!(found["keys"], 2);
    assert_eq!(found["later"], 0, "a table that this program does not know");
    assert_eq!(found.len(), tables::ALL.len() + 1, "without the tables of the engine itself");
    assert!(snapshot.export("keys; DROP TABLE outpost_keys", &mut |_, _| ControlFlow::Continue(())).is_err());
    assert_eq!(snapshot.get(KEYS, b"a").unwrap().as_deref(), Some(b"1".as_slice()));
}
