//! A server that is gone or does not answer.

use std::time::Duration;

use outpost_testing::needs_postgres;

use super::super::connector::Connector;
use super::super::error::PostgresError;
use super::super::outage::Outage;
use super::super::pool::Pool;
use super::super::snapshot::PostgresSnapshot;
use super::super::turn::Turns;
use super::proxy::{Cut, Proxy};
use super::{Database, PostgresServer, settings, shared, wanted, writes};
use crate::engine::{EngineRead as _, Health};
use crate::remote::Wanted;
use crate::tables::KEYS;

/// A limit that passes.
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn after_a_restart_of_the_server_everything_works_again() {
    needs_postgres!();
    let mut server = PostgresServer::start();
    let database = Database::on(&server);
    let mut node = database.register("a");
    database.write(&mut node, &[(KEYS, b"k", Some(b"v"))]);
    let pool = database.pool(2);
    let snapshot = PostgresSnapshot::open(&pool).unwrap();
    snapshot.get(KEYS, b"k").unwrap().unwrap();
    let mut writer = database.connect();
    server.stop();

    assert_eq!(snapshot.get(KEYS, b"k").unwrap_err().health, Health::Broken);
    let opened = PostgresSnapshot::open(&pool).and_then(|snapshot| snapshot.get(KEYS, b"k"));
    assert_eq!(opened.unwrap_err().health, Health::Broken);
    let error = database.runtime.block_on(writer.begin(&node, &Wanted::default(), &mut Turns::default())).unwrap_err();
    assert!(matches!(error, PostgresError::Lost { commit_sent: false, .. }), "{error:?}");
    assert!(database.runtime.block_on(database.connector.connect()).err().unwrap().is_lost());

    server.run();
    assert!(snapshot.get(KEYS, b"k").is_err(), "the old snapshot is gone");
    drop(snapshot);
    let again = PostgresSnapshot::open(&pool).unwrap();
    assert_eq!(again.get(KEYS, b"k").unwrap().unwrap(), b"v");
    database.write(&mut node, &[(KEYS, b"k", Some(b"w"))]);
}

#[test]
fn a_server_that_stops_to_answer_is_given_up_after_the_deadline() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let proxy = Proxy::start(shared().port(), Cut::Never);
    let url = format!("postgres://outpost@127.0.0.1:{}/{}", proxy.port(), database.name);
    let connector = Connector::new(settings(&url)).unwrap();
    let pool = Pool::new(connector.clone(), database.runtime.handle().clone(), 1, Outage::never());
    let snapshot = PostgresSnapshot::open(&pool).unwrap();
    let (mut idle, mut writer) = database.runtime.block_on(async {
        let mut writer = connector.connect().await.unwrap();
        writer.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        (connector.connect().await.unwrap(), writer)
    });
    proxy.freeze();
    (idle.timeouts.reply, writer.timeouts.reply) = (SHORT, SHORT);
    database.runtime.block_on(async {
        let read = idle.read(&wanted(KEYS, &[b"k"])).await.unwrap_err();
        assert!(matches!(read, PostgresError::Lost { commit_sent: false, .. }), "{read:?}");
        assert!(!idle.is_usable());
        assert!(
            idle.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap_err().is_lost(),
            "late answers are never read"
        );
        // Its statements are not prepared yet, so COMMIT is not sent.
        let commit = writer.commit(&mut node, &writes(&[(KEYS, b"k", Some(b"v"))]), &[]).await.unwrap_err();
        assert!(matches!(commit, PostgresError::Lost { commit_sent: false, .. }), "{commit:?}");
        let mut short = settings(&url);
        short.timeouts.session = SHORT;
        assert!(Connector::new(short).unwrap().connect().await.err().unwrap().is_lost());
    });
    drop(snapshot);
}

#[test]
fn a_commit_that_is_not_answered_in_time_may_have_taken_place() {
    needs_postgres!();
    let database = Database::new();
    let mut node = database.register("a");
    let proxy = Proxy::start(shared().port(), Cut::Never);
    let url = format!("postgres://outpost@127.0.0.1:{}/{}", proxy.port(), database.name);
    database.runtime.block_on(async {
        let mut writer = Connector::new(settings(&url)).unwrap().connect().await.unwrap();
        let rows = writes(&[(KEYS, b"k", Some(b"v"))]);
        writer.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        writer.commit(&mut node, &rows, &[]).await.unwrap();
        writer.begin(&node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        proxy.freeze();
        writer.timeouts.reply = SHORT;
        let error = writer.commit(&mut node, &rows, &[]).await.unwrap_err();
        assert!(matches!(error, PostgresError::Lost { commit_sent: true, .. }), "{error:?}");
    });
    assert_eq!(node.seq, 1);
}
