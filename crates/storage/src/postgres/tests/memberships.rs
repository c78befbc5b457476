//! Nodes learn of one another.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outpost_testing::needs_postgres;
use tokio::sync::watch;
use tokio::time::timeout;

use super::super::connector::Connector;
use super::super::error::PostgresError;
use super::super::membership::{Member, Membership, Pulse};
use super::super::node::{self, Node};
use super::super::pool::Pool;
use super::super::snapshot::PostgresSnapshot;
use super::super::turn::Turns;
use super::proxy::{Cut, Proxy};
use super::{Database, PATIENCE, PostgresServer, settings, shared, writes};
use crate::cluster::Cluster;
use crate::engine::EngineRead as _;
use crate::pepper::Pepper;
use crate::remote::Wanted;
use crate::shared_state::{SharedState, Watcher};
use crate::tables::{KEYS, LIMITS, Table};
use crate::transaction::Change;
use outpost_common::clock_rng::{ClockRng, Timestamp};

/// Shows the time since it was created.
struct Uptime(Instant);

impl ClockRng for Uptime {
    fn now(&self) -> Timestamp {
        Timestamp::ORIGIN
    }

    fn uptime(&self) -> Duration {
        self.0.elapsed()
    }

    fn fill(&self, _: &mut [u8]) {}
}

/// Records the announcements.
#[derive(Default)]
struct Told(Mutex<Vec<Option<Change>>>);

impl Watcher for Told {
    fn changed(&self, table: Table, key: &[u8]) {
        self.0.lock().unwrap().push(Some((table, key.to_vec())));
    }

    fn changes_unknown(&self) {
        self.0.lock().unwrap().push(None);
    }
}

impl Told {
    /// Waits until this many changes were announced, and returns them. `None`: anything may have changed.
    fn wait(&self, count: usize) -> Vec<Option<Change>> {
        let began = Instant::now();
        loop {
            let told = self.0.lock().unwrap();
            if told.len() >= count {
                return told.clone();
            }
            assert!(began.elapsed() < PATIENCE, "told only of {told:?}");
            drop(told);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A running membership.
struct Running {
    membership: Membership,
    cluster: Arc<Cluster>,
    told: Arc<Told>,
}

fn start(database: &Database, connector: Connector, node: &Node) -> Running {
    let clock_rng: Arc<dyn ClockRng> = Arc::new(Uptime(Instant::now()));
    let process = node.process().unwrap();
    let nodes = database.run(async |connection| node::registered(connection).await.unwrap());
    let now = clock_rng.uptime();
    let cluster = Arc::new(Cluster::new(process, clock_rng.clone(), node::answer(&nodes, now, now).unwrap()));
    let shared = Arc::new(SharedState::new(Arc::new(Pepper::from_bytes([7; 32])), Some(process)));
    let told = Arc::new(Told::default());
    let watcher: Arc<dyn Watcher> = told.clone();
    shared.watchers.add(Arc::downgrade(&watcher));
    let member = Member { connector, node: node.clone(), cluster: cluster.clone(), shared, clock_rng };
    Running { membership: Membership::start(database.runtime.handle(), member), cluster, told }
}

async fn shows(pulse: &mut watch::Receiver<Pulse>, expected: impl FnMut(&Pulse) -> bool) {
    timeout(PATIENCE, pulse.wait_for(expected)).await.unwrap().unwrap();
}

/// Commits changes to watched records.
fn change(database: &Database, node: &mut Node, changes: &[Change]) {
    database.run(async |connection| {
        connection.begin(node, &Wanted::default(), &mut Turns::default()).await.unwrap();
        connection.commit(node, &writes(&[]), changes).await.unwrap();
    });
}

#[test]
fn the_heartbeat_is_renewed_until_another_process_takes_over() {
    needs_postgres!();
    let database = Database::new();
    let first = database.register("a");
    // Without renewal it would be too old at once.
    shared().execute(&database.name, "UPDATE outpost_heartbeats SET until_ms = 0");
    let running = start(&database, database.connector.clone(), &first);
    database.wait_until("SELECT count(*) FROM outpost_heartbeats WHERE until_ms > 0");
    database.register("a");
    database.runtime.block_on(shows(&mut running.membership.pulse(), |pulse| *pulse == Pulse::Fenced));
}

#[test]
fn a_node_hears_what_others_change() {
    needs_postgres!();
    let database = Database::new();
    let (first, mut second) = (database.register("a"), database.register("b"));
    change(&database, &mut second, &[(KEYS, b"before".to_vec())]);
    let running = start(&database, database.connector.clone(), &first);
    assert_eq!(running.told.wait(1), [None], "what a node has changed before it is met is unknown");
    let changes = [(KEYS, b"k".to_vec()), (LIMITS, Vec::new())];
    change(&database, &mut second, &changes);
    let mut expected = vec![None, Some(changes[0].clone()), Some(changes[1].clone())];
    assert_eq!(running.told.wait(3), expected);
    let mut third = database.register("c");
    change(&database, &mut third, &[]);
    expected.push(None);
    assert_eq!(running.told.wait(4), expected, "a node that is new");
    change(&database, &mut third, &changes[..1]);
    expected.push(Some(changes[0].clone()));
    assert_eq!(running.told.wait(5), expected);
    assert!(running.cluster.is_current() && running.cluster.alive() == 3);
}

#[test]
fn a_node_hears_of_more_changes_than_it_reads_at_once() {
    needs_postgres!();
    let database = Database::new();
    let (first, mut second) = (database.register("a"), database.register("b"));
    let running = start(&database, database.connector.clone(), &first);
    running.told.wait(1);
    let changes: Vec<Change> = (0..2500_u32).map(|key| (KEYS, key.to_be_bytes().to_vec())).collect();
    change(&database, &mut second, &changes);
    let told: Vec<Change> = running.told.wait(2501).into_iter().flatten().collect();
    assert_eq!(told, changes);
}

#[test]
fn a_process_is_dead_when_its_heartbeat_has_ended() {
    needs_postgres!();
    let database = Database::new();
    let (first, second) = (database.register("a"), database.register("b"));
    let running = start(&database, database.connector.clone(), &first);
    assert!(running.cluster.is_alive(second.process().unwrap()));
    database.run(async |connection| node::leave(connection, &second).await.unwrap());
    let began = Instant::now();
    while running.cluster.is_alive(second.process().unwrap()) {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn reads_end_soon_when_the_database_does_not_answer_any_more() {
    needs_postgres!();
    let database = Database::new();
    let node = database.register("a");
    let proxy = Proxy::start(shared().port(), Cut::Never);
    let url = format!("postgres://outpost@127.0.0.1:{}/{}", proxy.port(), database.name);
    let connector = Connector::new(settings(&url)).unwrap();
    let running = start(&database, connector.clone(), &node);
    let outage = running.membership.outage();
    let pool = Pool::new(connector, database.runtime.handle().clone(), 2, outage.clone());
    let snapshot = PostgresSnapshot::open(&pool).unwrap();
    assert_eq!(snapshot.get(KEYS, b"k").unwrap(), None);
    proxy.freeze();
    // The limits of the connection itself are never reached in this test.
    assert!(snapshot.get(KEYS, b"k").unwrap_err().reason.contains("has not answered for a second"));
    assert!(outage.has_begun() && !running.cluster.is_current());
    assert!(PostgresSnapshot::open(&pool).is_err());
}

#[test]
fn after_a_restart_of_the_database_it_goes_on() {
    needs_postgres!();
    let mut server = PostgresServer::start();
    let database = Database::on(&server);
    let (first, mut second) = (database.register("a"), database.register("b"));
    let running = start(&database, database.connector.clone(), &first);
    running.told.wait(1);
    let mut pulse = running.membership.pulse();
    server.stop();
    database.runtime.block_on(shows(&mut pulse, |pulse| matches!(pulse, Pulse::Missed(_))));
    server.run();
    database.runtime.block_on(shows(&mut pulse, |pulse| *pulse == Pulse::Alive));
    change(&database, &mut second, &[(KEYS, b"k".to_vec())]);
    assert_eq!(running.told.wait(2), [None, Some((KEYS, b"k".to_vec()))]);
    let renewed = database.run(async |connection| node::renew(connection, &first).await);
    assert_eq!(renewed, Ok::<(), PostgresError>(()));
}
