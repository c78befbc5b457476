//! Tests against a PostgreSQL server that they start themselves.
#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

mod commits;
mod exchanges;
mod memberships;
mod nodes;
mod opening;
mod outages;
mod proxy;
mod round_trips;
mod snapshots;
mod turns;
mod urls;

use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use outpost_testing::postgres::{PASSWORD, PostgresServer, shared};
use tokio::runtime::Runtime;

use super::connection::{Connection, Request};
use super::connector::Connector;
use super::error::PostgresError;
use super::node::{self, Node};
use super::outage::Outage;
use super::pool::Pool;
use super::schema;
use super::settings::PostgresSettings;
use super::snapshot::PostgresSnapshot;
use super::turn::Turns;
use crate::engine::{EngineRead as _, Scan};
use crate::redb::migrations::LAYOUT;
use crate::remote::{Fetched, Wanted, Writes};
use crate::tables::Table;

/// A limit that no step reaches, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// A row to store, or to remove if it has no value.
type Change<'a> = (Table, &'a [u8], Option<&'a [u8]>);

/// A database with all tables, and a runtime for its connections.
struct Database {
    name: String,
    connector: Connector,
    runtime: Runtime,
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Settings whose limits are never reached.
fn settings(url: &str) -> PostgresSettings {
    let mut settings = PostgresSettings::parse(url, Some(PASSWORD.to_owned())).unwrap();
    let limits = &mut settings.timeouts;
    limits.connect = PATIENCE;
    limits.session = PATIENCE;
    limits.statement = PATIENCE;
    limits.reply = PATIENCE;
    limits.pool = PATIENCE;
    limits.idle_transaction = PATIENCE;
    settings
}

impl Database {
    /// A database of the shared server, copied from one with all tables.
    fn new() -> Self {
        static TEMPLATE: OnceLock<String> = OnceLock::new();
        let template = TEMPLATE.get_or_init(|| Self::on(shared()).name);
        Self::open(shared(), shared().copy_database(template))
    }

    /// A new database of a server.
    fn on(server: &PostgresServer) -> Self {
        let database = Self::open(server, server.new_database());
        database.run(async |connection| schema::create_tables(connection).await.unwrap());
        database
    }

    fn open(server: &PostgresServer, name: String) -> Self {
        let connector = Connector::new(settings(&server.socket_url(&name))).unwrap();
        Self { name, connector, runtime: runtime() }
    }

    fn connect(&self) -> Connection {
        self.runtime.block_on(self.connector.connect()).unwrap()
    }

    /// Runs a call on a new connection.
    fn run<T>(&self, call: impl AsyncFnOnce(&mut Connection) -> T) -> T {
        let mut connection = self.connect();
        self.runtime.block_on(call(&mut connection))
    }

    fn register(&self, name: &str) -> Node {
        self.run(async |connection| node::register(connection, name, LAYOUT).await).unwrap()
    }

    fn pool(&self, size: usize) -> Arc<Pool> {
        Pool::new(self.connector.clone(), self.runtime.handle().clone(), size, Outage::never())
    }

    fn snapshot(&self) -> PostgresSnapshot {
        PostgresSnapshot::open(&self.pool(1)).unwrap()
    }

    /// Writes rows in one transaction.
    fn write(&self, node: &mut Node, rows: &[Change<'_>]) {
        self.run(async |connection| {
            connection.begin(node, &Wanted::default(), &mut Turns::default()).await.unwrap();
            connection.commit(node, &writes(rows), &[]).await.unwrap();
        });
    }

    /// Waits until a statement of another session waits for a lock.
    fn wait_for_lock(&self) {
        self.wait_until(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        );
    }

    /// Waits until a query returns another number than 0.
    fn wait_until(&self, sql: &'static str) {
        let began = Instant::now();
        let mut connection = self.connect();
        while self.runtime.block_on(scalar(&mut connection, sql)) == 0 {
            assert!(began.elapsed() < PATIENCE, "still 0: {sql}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The process ID of a session at the server.
async fn backend(connection: &mut Connection) -> i64 {
    scalar(connection, "SELECT pg_backend_pid()::bigint").await
}

async fn scalar(connection: &mut Connection, sql: &'static str) -> i64 {
    let answer = connection.run_one(Request::rows(sql, Vec::new())).await.unwrap();
    answer.into_rows()[0].get(0)
}

fn writes(rows: &[Change<'_>]) -> Writes {
    let mut writes = Writes::default();
    for (table, key, value) in rows {
        writes.set(*table, key.to_vec(), value.map(<[u8]>::to_vec));
    }
    writes
}

fn wanted(table: Table, keys: &[&[u8]]) -> Wanted {
    let mut wanted = Wanted::default();
    keys.iter().for_each(|key| wanted.key(table, key.to_vec()));
    wanted
}

/// The values of a single table.
fn values(fetched: Fetched) -> Vec<Option<Vec<u8>>> {
    fetched.values.into_iter().next().unwrap()
}

/// All rows that a scan visits.
fn scanned(snapshot: &dyn crate::engine::EngineRead, scan: &Scan<'_>) -> Pairs {
    let mut found = Pairs::new();
    let visited = snapshot.scan(scan, &mut |key, value| {
        found.push((key.to_vec(), value.to_vec()));
        Ok(ControlFlow::Continue(()))
    });
    visited.unwrap().unwrap();
    found
}

/// The value under a key, as a new snapshot sees it.
fn stored(database: &Database, table: Table, key: &[u8]) -> Option<Vec<u8>> {
    database.snapshot().get(table, key).unwrap()
}

fn is_conflict(error: &PostgresError) -> bool {
    matches!(error, PostgresError::Conflict(_))
}
