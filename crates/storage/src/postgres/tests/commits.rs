//! A commit happens once or not at all, and its outcome is told truthfully.

use outpost_testing::needs_postgres;

use super::super::connection::{Connection, Request};
use super::super::connector::Connector;
use super::super::error::PostgresError;
use super::super::transactions::Settled;
use super::super::turn::Turns;
use super::proxy::{Cut, Proxy};
use super::{Database, backend, is_conflict, settings, shared, stored, values, wanted, writes};
use crate::redb::migrations::LAYOUT;
use crate::remote::Wanted;
use crate::tables::{self, KEYS, MESSAGES, PROJECTS};

async fn terminate(connection: &mut Connection, backend: i64) {
    let sql = format!("SELECT pg_terminate_backend({backend}, 60000)");
    connection.run_one(Request::rows(sql, Vec::new())).await.unwrap();
}

#[test]
fn transactions_that_read_what_the_other_writes_conflict() {
    needs_postgres!();
    let database = Database::new();
    let (mut first, mut second) = (database.register("a"), database.register("b"));
    let (mut one, mut two) = (database.connect(), database.connect());
    database.runtime.block_on(async {
        one.begin(&first, &wanted(KEYS, &[b"x"]), &mut Turns::default()).await.unwrap();
        two.begin(&second, &wanted(KEYS, &[b"y"]), &mut Turns::default()).await.unwrap();
        one.commit(&mut first, &writes(&[(KEYS, b"y", Some(b"1"))]), &[]).await.unwrap();
        let loser = two.commit(&mut second, &writes(&[(KEYS, b"x", Some(b"2"))]), &[]).await.unwrap_err();
        assert!(is_conflict(&loser), "{loser:?}");
        assert_eq!(second.seq, 0);
        // The same connection runs the transaction again.
        let read = two.begin(&second, &wanted(KEYS, &[b"y"]), &mut Turns::default()).await.unwrap();
        assert_eq!(values(read), [Some(b"1".to_vec())]);
        two.commit(&mut second, &writes(&[(KEYS, b"x", Some(b"2"))]), &[]).await.unwrap();
    });
    assert_eq!((first.seq, second.seq), (1, 1));
}

#[test]
fn two_transactions_of_a_node_conflict_on_its_row() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let (mut one, mut two) = (database.connect(), database.connect());
    let other = node.clone();
    database.runtime.block_on(async { one.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap() });
    let waiting =
        database.runtime.spawn(async move { two.begin(&other, &Wanted::default(), &mut Turns::default()).await });
    database.wait_for_lock();
    database.runtime.block_on(async {
        one.commit(&mut node, &writes(&[]), &[]).await.unwrap();
        let error = waiting.await.unwrap().unwrap_err();
        assert!(is_conflict(&error), "{error:?}");
    });
}

#[test]
fn a_group_writes_to_all_tables_in_one_commit() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let rows: Vec<_> = tables::ALL.iter().map(|table| (*table, b"k".as_slice(), Some(b"v".as_slice()))).collect();
    database.write(&mut node, &rows);
    assert!(writes(&[]).is_empty() && !writes(&rows).is_empty());
    let removed: Vec<_> = tables::ALL.iter().map(|table| (*table, b"k".as_slice(), None)).collect();
    for table in tables::ALL {
        assert_eq!(stored(&database, *table, b"k").unwrap(), b"v");
    }
    database.write(&mut node, &removed);
    assert_eq!(stored(&database, KEYS, b"k"), None);
}

#[test]
fn a_commit_of_an_aborted_transaction_is_not_taken_for_a_commit() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.run(async |connection| {
        connection.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        connection.commit(&mut node, &writes(&[(KEYS, b"k", Some(b"old"))]), &[]).await.unwrap();
        // Without writes, the database answers all statements of the commit without an error.
        for (rows, reason) in [(writes(&[]), "rolled"), (writes(&[(KEYS, b"k", Some(b"new"))]), "aborted")] {
            connection.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
            connection.run_one(Request::command("SELECT 1 / 0")).await.unwrap_err();
            let error = connection.commit(&mut node, &rows, &[]).await.unwrap_err();
            assert!(is_conflict(&error) && error.to_string().contains(reason), "{error:?}");
        }
        // The connection can be used again.
        connection.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
    });
    assert_eq!(node.seq, 1);
    assert_eq!(stored(&database, KEYS, b"k").unwrap(), b"old");
}

#[test]
fn a_step_out_of_order_is_refused() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.run(async |connection| {
        let bug = |error: PostgresError| matches!(error, PostgresError::Bug(_));
        assert!(bug(connection.fetch(&Wanted::default()).await.unwrap_err()));
        assert!(bug(connection.commit(&mut node, &writes(&[]), &[]).await.unwrap_err()));
        connection.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        assert!(bug(connection.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap_err()));
    });
}

#[test]
fn a_fenced_node_cannot_begin_or_settle() {
    needs_postgres!();
    let database = Database::new();
    let mut old = database.register("a");
    let mut new = database.register("a");
    assert_eq!((old.number, new.number, new.epoch), (1, 1, 2));
    database.run(async |connection| {
        assert_eq!(connection.begin(&old, &Wanted::default(), &mut Turns::default()).await, Err(PostgresError::Fenced));
        assert_eq!(connection.settle(&mut old).await, Err(PostgresError::Fenced));
    });
    database.write(&mut new, &[(KEYS, b"k", Some(b"v"))]);
}

#[test]
fn a_takeover_waits_for_a_transaction_that_has_begun() {
    needs_postgres!();
    let database = Database::new();
    let mut old = database.register("a");
    let mut connection = database.connect();
    database
        .runtime
        .block_on(async { connection.begin(&old, &Wanted::default(), &mut Turns::default()).await.unwrap() });
    let connector = database.connector.clone();
    let takeover = database.runtime.spawn(async move {
        let mut connection = connector.connect().await.unwrap();
        super::node::register(&mut connection, "a", LAYOUT).await.unwrap()
    });
    database.wait_for_lock();
    let new = database.runtime.block_on(async {
        // The takeover may end the connection between the commit and its reply.
        let committed = connection.commit(&mut old, &writes(&[(KEYS, b"k", Some(b"v"))]), &[]).await.map(drop);
        assert!(matches!(committed, Ok(()) | Err(PostgresError::Lost { commit_sent: true, .. })), "{committed:?}");
        takeover.await.unwrap()
    });
    assert_eq!(new.epoch, 2);
    assert_eq!(stored(&database, KEYS, b"k").unwrap(), b"v");
    let lost = database.run(async |connection| connection.begin(&old, &Wanted::default(), &mut Turns::default()).await);
    assert_eq!(lost, Err(PostgresError::Fenced));
}

#[test]
fn a_connection_lost_before_commit_has_written_nothing() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let (mut writer, mut other) = (database.connect(), database.connect());
    database.runtime.block_on(async {
        let backend = backend(&mut writer).await;
        writer.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        terminate(&mut other, backend).await;
        let error = writer.fetch(&wanted(KEYS, &[b"k"])).await.unwrap_err();
        assert!(matches!(error, PostgresError::Lost { commit_sent: false, .. }), "{error:?}");
        assert!(!writer.is_usable());
        assert!(writer.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap_err().is_lost());
        assert_eq!(other.settle(&mut node).await.unwrap(), Settled::NotCommitted);
    });
    database.write(&mut node, &[(KEYS, b"k", Some(b"v"))]);
}

#[test]
fn a_connection_lost_while_a_commit_waits_has_written_nothing() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    database.write(&mut node, &[(KEYS, b"k", Some(b"old"))]);
    let (mut writer, mut blocker, mut other) = (database.connect(), database.connect(), database.connect());
    let mut committed = node.clone();
    let backend = database.runtime.block_on(async {
        blocker.run_one(Request::command("BEGIN; UPDATE outpost_keys SET v = 'locked'")).await.unwrap();
        let backend = backend(&mut writer).await;
        writer.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        backend
    });
    let commit = database
        .runtime
        .spawn(async move { writer.commit(&mut committed, &writes(&[(KEYS, b"k", Some(b"new"))]), &[]).await });
    database.wait_for_lock();
    database.runtime.block_on(async {
        terminate(&mut other, backend).await;
        let error = commit.await.unwrap().unwrap_err();
        assert!(matches!(error, PostgresError::Lost { commit_sent: true, .. }), "{error:?}");
        assert_eq!(other.settle(&mut node).await.unwrap(), Settled::NotCommitted);
        blocker.run_one(Request::command("ROLLBACK")).await.unwrap();
    });
    assert_eq!(stored(&database, KEYS, b"k").unwrap(), b"old");
    assert_eq!(node.seq, 1);
}

/// Commits through a proxy that cuts the connection, and returns what settling says and the node's commits.
fn commit_through(cut: Cut) -> (Database, Settled, i64) {
    let database = Database::new();
    let mut node = database.register("a");
    let proxy = Proxy::start(shared().port(), cut);
    let url = format!("postgres://outpost@127.0.0.1:{}/{}", proxy.port(), database.name);
    let settled = database.runtime.block_on(async {
        let mut writer = Connector::new(settings(&url)).unwrap().connect().await.unwrap();
        writer.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        let rows = writes(&[(MESSAGES, b"m", Some(b"1")), (PROJECTS, b"p", Some(b"2"))]);
        let error = writer.commit(&mut node, &rows, &[]).await.unwrap_err();
        assert!(matches!(error, PostgresError::Lost { commit_sent: true, .. }), "{error:?}");
        assert_eq!(node.seq, 0, "the outcome is not known yet");
        let mut other = database.connector.connect().await.unwrap();
        if cut == Cut::AfterCommit {
            let unsettled = other.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap_err();
            assert!(matches!(unsettled, PostgresError::Lost { commit_sent: true, .. }), "{unsettled:?}");
        }
        other.settle(&mut node).await.unwrap()
    });
    (database, settled, node.seq)
}

#[test]
fn a_commit_that_did_not_reach_the_server_is_settled_as_not_committed() {
    needs_postgres!();
    let (database, settled, seq) = commit_through(Cut::BeforeCommit);
    assert_eq!((settled, seq), (Settled::NotCommitted, 0));
    assert_eq!(stored(&database, MESSAGES, b"m"), None);
}

#[test]
fn a_commit_whose_answer_was_lost_is_settled_as_committed() {
    needs_postgres!();
    let (database, settled, seq) = commit_through(Cut::AfterCommit);
    assert_eq!((settled, seq), (Settled::Committed, 1));
    assert_eq!(stored(&database, MESSAGES, b"m").unwrap(), b"1");
    assert_eq!(stored(&database, PROJECTS, b"p").unwrap(), b"2");
}
