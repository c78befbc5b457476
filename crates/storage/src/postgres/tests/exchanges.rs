//! Exchanges of several nodes add up, and each one is answered.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::super::connector::Connector;
use super::super::exchange_task::ExchangeTask;
use super::super::outage::Outage;
use super::proxy::{Cut, Proxy};
use super::{Database, PATIENCE, settings, shared, stored};
use crate::error::{Code, Error, Result};
use crate::exchanges::{ExchangeQueue, RowExchange};
use crate::remote::Availability;
use crate::tables::{LEVELS, MESSAGES, Table};
use outpost_common::clock_rng::Timestamp;
use outpost_testing::needs_postgres;

/// Adds one to a number.
struct Increment {
    table: Table,
    key: Vec<u8>,
    outcomes: Sender<Result<Timestamp>>,
    ran_at: Option<Timestamp>,
    is_refused: bool,
}

impl RowExchange for Increment {
    fn table(&self) -> Table {
        self.table
    }

    fn key(&self) -> &[u8] {
        &self.key
    }

    fn change(&mut self, now: Timestamp, old: Option<&[u8]>) -> Result<Vec<u8>> {
        if self.is_refused {
            return Err(Error::new(Code::StorageUnavailable, "The record is damaged."));
        }
        self.ran_at = Some(now);
        let old = old.map_or(0, |old| u64::from_be_bytes(old.try_into().unwrap()));
        Ok((old + 1).to_be_bytes().to_vec())
    }

    fn done(self: Box<Self>, outcome: Result<()>) {
        let ran_at = self.ran_at;
        let _ = self.outcomes.send(outcome.map(|()| ran_at.unwrap()));
    }
}

/// The exchanges of a node.
struct Node {
    queue: ExchangeQueue,
    outcomes: Receiver<Result<Timestamp>>,
    sender: Sender<Result<Timestamp>>,
    availability: Arc<Availability>,
    task: ExchangeTask,
}

impl Node {
    fn new(database: &Database, connector: &Connector) -> Self {
        let availability = Arc::new(Availability::default());
        let (task, queue) =
            ExchangeTask::start(database.runtime.handle(), connector.clone(), availability.clone(), Outage::never());
        let (sender, outcomes) = channel();
        Self { queue, outcomes, sender, availability, task }
    }

    fn send(&self, table: Table, key: &[u8], is_refused: bool) {
        let (key, outcomes) = (key.to_vec(), self.sender.clone());
        let exchange = Increment { table, key, outcomes, ran_at: None, is_refused };
        self.queue.try_send(Box::new(exchange)).map_err(drop).unwrap();
    }

    fn outcome(&self) -> Result<Timestamp> {
        self.outcomes.recv_timeout(PATIENCE).unwrap()
    }

    /// Exchanges until one succeeds.
    fn send_until_done(&self, key: &[u8]) {
        loop {
            self.send(LEVELS, key, false);
            if self.outcome().is_ok() {
                return;
            }
        }
    }
}

fn number(database: &Database, table: Table, key: &[u8]) -> u64 {
    stored(database, table, key).map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
}

#[test]
fn exchanges_of_several_nodes_add_up() {
    needs_postgres!();
    const ROUNDS: usize = 60;
    let database = Database::new();
    let nodes = [0, 1, 2].map(|_| Node::new(&database, &database.connector));
    let keys: Vec<Vec<u8>> = (0..20_u8).map(|key| vec![key]).collect();
    // The rows are new, and the nodes meet them in different orders.
    let (mut done, mut failed) = (0, 0);
    for round in 0..ROUNDS {
        for (number, node) in nodes.iter().enumerate() {
            for index in 0..keys.len() {
                let key = &keys[(index * 7 + number * 3 + round) % keys.len()];
                node.send(if index % 2 == 0 { LEVELS } else { MESSAGES }, key, false);
            }
        }
        for node in &nodes {
            for _ in &keys {
                match node.outcome() {
                    Ok(_) => done += 1,
                    Err(_) => failed += 1,
                }
            }
        }
    }
    let sum: u64 = keys.iter().map(|key| number(&database, LEVELS, key) + number(&database, MESSAGES, key)).sum();
    // On a machine that is too busy, some fail. Those may have been committed.
    assert!((done..=done + failed).contains(&sum), "{sum}: {done} done, {failed} failed");
    assert!(done > 0);
}

#[test]
fn exchanges_of_one_row_see_each_other_and_the_databases_clock() {
    needs_postgres!();
    let database = Database::new();
    let node = Node::new(&database, &database.connector);
    for _ in 0..10 {
        node.send(LEVELS, b"k", false);
    }
    node.send(LEVELS, b"k", true);
    node.send(LEVELS, b"other", true);
    let outcomes: Vec<_> = (0..12).map(|_| node.outcome()).collect();
    let times: Vec<Timestamp> = outcomes.into_iter().flatten().collect();
    assert!(times.is_sorted() && times.len() == 10, "{times:?}");
    assert_eq!(number(&database, LEVELS, b"k"), 10);
    assert_eq!(stored(&database, LEVELS, b"other"), None, "a refused exchange writes nothing");
    // A second connection's clock.
    let now = database.run(async |connection| super::scalar(connection, super::super::statements::NOW).await);
    assert!(times[9].as_millis() <= now && now - times[9].as_millis() < 600_000);
}

#[test]
fn a_row_that_another_node_inserts_meanwhile_is_read_first() {
    needs_postgres!();
    let database = Database::new();
    let node = Node::new(&database, &database.connector);
    // The row is there, but not committed.
    let mut other = database.connect();
    let insert = "BEGIN; INSERT INTO outpost_levels (k, v) VALUES ('k', '\\x0000000000000007')";
    let run = |sql: &'static str, connection: &mut super::Connection| {
        database.runtime.block_on(connection.run_one(super::Request::command(sql))).unwrap();
    };
    run(insert, &mut other);
    node.send(LEVELS, b"k", false);
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let mut observer = database.connect();
    // It does not wait for long.
    let early = loop {
        if let Ok(outcome) = node.outcomes.try_recv() {
            break Some(outcome);
        }
        if database.runtime.block_on(super::scalar(&mut observer, waits)) > 0 {
            break None;
        }
    };
    run("COMMIT", &mut other);
    match early.unwrap_or_else(|| node.outcome()) {
        Ok(_) => assert_eq!(number(&database, LEVELS, b"k"), 8),
        // The machine was too busy.
        Err(_) => assert!(number(&database, LEVELS, b"k") >= 7),
    }
}

#[test]
fn a_database_that_does_not_answer_fails_the_exchange_and_is_asked_again() {
    needs_postgres!();
    let database = Database::new();
    let proxy = Proxy::start(shared().port(), Cut::Never);
    let url = format!("postgres://outpost@127.0.0.1:{}/{}", proxy.port(), database.name);
    let node = Node::new(&database, &Connector::new(settings(&url)).unwrap());
    node.send_until_done(b"k");
    proxy.freeze();
    node.send(LEVELS, b"k", false);
    assert_eq!(node.outcome().unwrap_err().code(), Code::StorageUnavailable);

    let node = Node::new(&database, &database.connector);
    node.send_until_done(b"k");
    assert!(number(&database, LEVELS, b"k") >= 2);
    // The connection is ended by the server.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.run(async |connection| connection.run_one(super::Request::rows(end, Vec::new())).await.unwrap());
    node.send_until_done(b"k");
}

#[test]
fn a_node_that_was_replaced_or_has_stopped_exchanges_nothing() {
    needs_postgres!();
    let database = Database::new();
    let node = Node::new(&database, &database.connector);
    node.availability.fence();
    node.send(LEVELS, b"k", false);
    assert_eq!(node.outcome().unwrap_err().code(), Code::StorageUnavailable);
    assert_eq!(stored(&database, LEVELS, b"k"), None);
    let Node { queue, task, .. } = node;
    drop(task);
    // The task ends at its next step.
    let began = std::time::Instant::now();
    while !queue.is_closed() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
}
