//! The registration of nodes.

use outpost_testing::needs_postgres;

use super::super::error::{PostgresError, PostgresOpenError};
use super::super::node;
use super::super::turn::Turns;
use super::{Database, shared};
use crate::redb::migrations::LAYOUT;
use crate::remote::Wanted;

fn try_register(database: &Database, name: &str) -> Result<super::Node, PostgresOpenError> {
    database.run(async |connection| node::register(connection, name, LAYOUT).await)
}

#[test]
fn nodes_have_numbers_of_their_own() {
    needs_postgres!();
    let database = Database::new();
    let nodes = [database.register("first"), database.register("second")];
    assert_eq!(nodes.each_ref().map(|node| (node.number, node.epoch, node.seq)), [(1, 1, 0), (2, 1, 0)]);
    database.run(async |connection| {
        for node in &nodes {
            connection.begin(node, &Wanted::default(), &mut Turns::default()).await.unwrap();
            connection.rollback();
        }
        let alive = node::registered(connection).await.unwrap();
        assert_eq!(alive.iter().filter(|known| known.is_alive()).count(), 2);
    });
}

#[test]
fn a_new_name_gets_the_number_of_a_node_that_has_left() {
    needs_postgres!();
    let database = Database::new();
    let (first, second) = (database.register("first"), database.register("second"));
    database.run(async |connection| node::leave(connection, &first).await.unwrap());
    let third = database.register("third");
    assert_eq!((third.number, third.epoch), (1, 2));
    assert_eq!(database.register("first").number, 3, "its number has another name");
    assert_eq!(database.register("second").number, second.number);
}

#[test]
fn a_node_keeps_its_number_while_it_is_silent_for_less_than_a_day() {
    needs_postgres!();
    let database = Database::new();
    let silent = database.register("silent");
    shared().execute(&database.name, "UPDATE outpost_heartbeats SET until_ms = until_ms - 86300000");
    assert_eq!(database.register("second").number, 2);
    let renewed = database.run(async |connection| node::renew(connection, &silent).await);
    assert_eq!(renewed, Ok(()), "it has been cut off, and goes on");
    shared().execute(&database.name, "UPDATE outpost_heartbeats SET until_ms = until_ms - 86500000 WHERE node = 1");
    assert_eq!(database.register("third").number, 1);
    database.run(async |connection| {
        assert_eq!(node::renew(connection, &silent).await, Err(PostgresError::Fenced));
        assert_eq!(
            connection.begin(&silent, &Wanted::default(), &mut Turns::default()).await,
            Err(PostgresError::Fenced)
        );
    });
}

#[test]
fn the_same_name_continues_with_its_sequence_number() {
    needs_postgres!();
    let database = Database::new();
    let mut first = database.register("a");
    database.write(&mut first, &[]);
    let again = database.register("a");
    assert_eq!((again.number, again.epoch, again.seq), (1, 2, 1));
}

#[test]
fn nodes_that_start_at_once_get_different_numbers() {
    needs_postgres!();
    let database = Database::new();
    let start = |name: &'static str| {
        let connector = database.connector.clone();
        database.runtime.spawn(async move {
            let mut connection = connector.connect().await.unwrap();
            node::register(&mut connection, name, LAYOUT).await
        })
    };
    let starts = ["one", "two", "three"].map(start);
    let mut numbers = starts.map(|start| database.runtime.block_on(start).unwrap().unwrap().number);
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_name_must_be_printable_and_short() {
    needs_postgres!();
    let database = Database::new();
    for name in ["", "a\nb", &"n".repeat(201)] {
        assert!(matches!(try_register(&database, name), Err(PostgresOpenError::BadNodeName(_))));
    }
}
