//! One node at a time.

use super::super::error::{PostgresError, PostgresOpenError};
use super::super::heartbeat::{Heartbeat, Pulse};
use super::super::node;
use super::{Database, PATIENCE, shared};
use crate::storage::redb::migrations::LAYOUT;
use crate::storage::remote::Wanted;
use tokio::time::timeout;

fn try_register(database: &Database, name: &str) -> Result<super::Node, PostgresOpenError> {
    database.run(async |connection| node::register(connection, name, LAYOUT).await)
}

fn is_refused_for(name: &str, result: Result<super::Node, PostgresOpenError>) -> bool {
    matches!(result, Err(PostgresOpenError::OtherNode { name: other, seconds: 1..=10 }) if other == name)
}

#[test]
fn a_second_name_is_refused_while_the_first_is_alive() {
    let database = Database::new();
    let first = database.register("first");
    assert_eq!((first.number, first.epoch, first.seq), (1, 1, 0));
    assert!(is_refused_for("first", try_register(&database, "second")));
    database.run(async |connection| connection.begin(&first, &Wanted::default()).await.map(drop)).unwrap();
}

#[test]
fn a_node_that_has_left_makes_room_at_once() {
    let database = Database::new();
    let first = database.register("first");
    database.run(async |connection| node::leave(connection, &first).await.unwrap());
    let second = database.register("second");
    assert_eq!((second.number, second.epoch), (2, 1));
    assert!(is_refused_for("second", try_register(&database, "first")));
}

#[test]
fn a_silent_node_is_fenced_by_the_next_one() {
    let database = Database::new();
    let silent = database.register("silent");
    shared().execute(&database.name, "UPDATE outpost_heartbeats SET until_ms = until_ms - 10001");
    database.register("next");
    database.run(async |connection| {
        assert_eq!(node::renew(connection, &silent).await, Err(PostgresError::Fenced));
        assert_eq!(connection.begin(&silent, &Wanted::default()).await, Err(PostgresError::Fenced));
    });
}

#[test]
fn the_same_name_continues_with_its_sequence_number() {
    let database = Database::new();
    let mut first = database.register("a");
    database.write(&mut first, &[]);
    let again = database.register("a");
    assert_eq!((again.number, again.epoch, again.seq), (1, 2, 1));
}

#[test]
fn of_two_nodes_that_start_at_once_one_is_refused() {
    let database = Database::new();
    let start = |name: &'static str| {
        let connector = database.connector.clone();
        database.runtime.spawn(async move {
            let mut connection = connector.connect().await.unwrap();
            node::register(&mut connection, name, LAYOUT).await
        })
    };
    let starts = [start("one"), start("two")];
    let results = starts.map(|start| database.runtime.block_on(start).unwrap());
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1, "{results:?}");
}

#[test]
fn a_name_must_be_printable_and_short() {
    let database = Database::new();
    for name in ["", "a\nb", &"n".repeat(201)] {
        assert!(matches!(try_register(&database, name), Err(PostgresOpenError::BadNodeName(_))));
    }
}

#[test]
fn the_heartbeat_is_renewed_until_another_process_takes_over() {
    let database = Database::new();
    let first = database.register("a");
    // Without renewal it would be too old at once.
    shared().execute(&database.name, "UPDATE outpost_heartbeats SET until_ms = 0");
    let heartbeat = Heartbeat::start(database.runtime.handle(), database.connector.clone(), first);
    let mut pulse = heartbeat.pulse();
    database.wait_until("SELECT count(*) FROM outpost_heartbeats WHERE until_ms > 0");
    assert!(is_refused_for("a", try_register(&database, "b")));
    database.register("a");
    let fenced = async { timeout(PATIENCE, pulse.wait_for(|pulse| *pulse == Pulse::Fenced)).await.unwrap().map(drop) };
    database.runtime.block_on(fenced).unwrap();
}
