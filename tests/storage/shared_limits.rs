//! Limits of two nodes over one PostgreSQL database, with a clock that the test controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use outpost::clock_rng::ClockRng;
use outpost::error::{Code, Result};
use outpost::ids::ProjectId;
use outpost::service::limits::{Limits, LimitsPatch, RatesPatch};
use outpost::service::usage::{Meter, Outcome};
use outpost::service::writes::patch::Patch;
use outpost::storage::Store;
use outpost_testing::needs_postgres;
use tempfile::TempDir;

use crate::database::Database;
use crate::fixture::{Clock, Fixture};

struct Node {
    store: Store,
    limits: Limits,
    meter: Meter,
}

struct Nodes {
    fixture: Fixture,
    nodes: [Node; 2],
    project: ProjectId,
    database: Database,
    _folder: TempDir,
}

impl Node {
    fn new(store: Store, clock_rng: &Arc<dyn ClockRng>) -> Self {
        let limits = Limits::new(store.clone(), clock_rng.clone());
        Self { meter: Meter::new(store.clone(), clock_rng.clone(), limits.clone()), limits, store }
    }

    /// A request that uses tokens.
    async fn use_tokens(&self, fixture: &Fixture, prompt: u64, output: u64) -> Result<()> {
        let recorder = self.meter.open(&fixture.admin, "POST /chat/completions".to_owned());
        self.limits.status(fixture.first.project.id).await?;
        let charged = recorder.charge_prompt(prompt).await;
        if charged.is_ok() {
            recorder.set_output(output);
        }
        recorder.close(if charged.is_ok() { Outcome::Succeeded } else { Outcome::Limited }).await?;
        charged
    }

    /// Lets requests in until one is refused.
    async fn admit_all(&self, project: ProjectId) -> u64 {
        let mut admitted = 0;
        while self.limits.admit(project).await.unwrap().1.is_ok() {
            admitted += 1;
        }
        admitted
    }
}

impl Nodes {
    async fn start() -> Self {
        let (database, clock) = (Database::new(), Clock::new());
        let (store, folder) = database.open_store("a", clock.clone());
        let fixture = Fixture::with_store(folder, clock.clone(), store).await;
        let (other, folder) = database.open_store("b", clock.clone());
        let clock_rng: Arc<dyn ClockRng> = clock;
        let nodes = [fixture.store.clone(), other].map(|store| Node::new(store, &clock_rng));
        Self { project: fixture.first.project.id, nodes, fixture, database, _folder: folder }
    }

    async fn set(&self, own: RatesPatch) {
        self.nodes[0].limits.update(&self.fixture.admin, self.project, LimitsPatch::own(own)).await.unwrap();
    }

    async fn set_requests(&self, requests: i64, burst: i64) {
        let (requests_per_minute, burst_limit) = (Patch::Set(requests), Patch::Set(burst));
        self.set(RatesPatch { requests_per_minute, burst_limit, ..RatesPatch::default() }).await;
    }

    /// Waits until the second node has heard of a change.
    async fn wait_for_limit(&self, requests: u64) {
        for _ in 0..1000 {
            let status = self.nodes[1].limits.status(self.project).await.unwrap();
            if status.requests.is_some_and(|requests_status| requests_status.limit == requests) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the second node does not hear of the change");
    }

    /// Returns the database, for the next start.
    async fn stop(self) -> Database {
        let Self { fixture, nodes, database, .. } = self;
        drop(fixture);
        for Node { store, limits, meter } in nodes {
            limits.return_leases().await.unwrap();
            drop((limits, meter));
            tokio::task::spawn_blocking(move || store.shutdown()).await.unwrap();
        }
        database
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_nodes_admit_together_what_one_would() {
    needs_postgres!();
    const STEPS: u64 = 40;
    let nodes = Nodes::start().await;
    nodes.set_requests(6000, 300).await;
    let admitted = AtomicU64::new(0);
    let hammer = |node: &'static str| {
        let (nodes, admitted) = (&nodes, &admitted);
        let node = &nodes.nodes[usize::from(node == "b")];
        futures_util::future::join_all((0..8).map(move |_| async move {
            admitted.fetch_add(node.admit_all(nodes.project).await, SeqCst);
        }))
    };
    for _ in 0..STEPS {
        tokio::join!(hammer("a"), hammer("b"));
        nodes.fixture.clock.pass(Duration::from_millis(500));
        nodes.nodes.iter().for_each(|node| node.limits.exchange_leases());
    }
    // A hundred a second. The last half second is not used.
    let (total, max) = (admitted.load(SeqCst), 300 + (STEPS - 1) * 50);
    assert!(total <= max, "{total} of {max}");
    assert!(total >= max - 2 * 75, "{total} of {max}: a lease is a quarter of the bucket at most");
    nodes.stop().await;
}

#[tokio::test]
async fn a_debt_of_one_node_is_seen_on_the_other() {
    needs_postgres!();
    let nodes = Nodes::start().await;
    let [first, second] = &nodes.nodes;
    nodes.set(RatesPatch { tokens_per_minute: Patch::Set(600), ..RatesPatch::default() }).await;
    first.use_tokens(&nodes.fixture, 10, 690).await.unwrap();
    // As the server does twice a second; this one waits for the answer.
    first.limits.return_leases().await.unwrap();
    let refused = second.use_tokens(&nodes.fixture, 1, 0).await.unwrap_err();
    assert_eq!((refused.code(), refused.wait()), (Code::RateLimited, Some(Duration::from_millis(10_100))));
    nodes.fixture.clock.pass(Duration::from_millis(10_100));
    second.use_tokens(&nodes.fixture, 1, 0).await.unwrap();
    nodes.stop().await;
}

#[tokio::test]
async fn a_changed_limit_holds_on_both_and_adds_nothing() {
    needs_postgres!();
    let nodes = Nodes::start().await;
    nodes.set_requests(60, 20).await;
    nodes.wait_for_limit(60).await;
    let [first, second] = &nodes.nodes;
    assert_eq!(first.admit_all(nodes.project).await + second.admit_all(nodes.project).await, 20);
    // Half a minute passes at the old rate, more than the bucket holds.
    nodes.fixture.clock.pass(Duration::from_secs(30));
    nodes.set_requests(6000, 1000).await;
    nodes.wait_for_limit(6000).await;
    assert_eq!(second.admit_all(nodes.project).await, 20);
    assert_eq!(first.admit_all(nodes.project).await, 0);
    nodes.fixture.clock.pass(Duration::from_secs(1));
    assert_eq!(second.admit_all(nodes.project).await, 100);
    nodes.stop().await;
}

#[tokio::test]
async fn a_budget_counts_the_tokens_of_all_nodes() {
    needs_postgres!();
    let nodes = Nodes::start().await;
    let [first, second] = &nodes.nodes;
    nodes.set(RatesPatch { token_budget: Patch::Set(1000), ..RatesPatch::default() }).await;
    first.use_tokens(&nodes.fixture, 100, 300).await.unwrap();
    second.use_tokens(&nodes.fixture, 100, 400).await.unwrap();
    nodes.fixture.clock.pass(Duration::from_secs(1));
    for node in [first, second] {
        let refused = node.use_tokens(&nodes.fixture, 101, 0).await.unwrap_err();
        assert_eq!(refused.code(), Code::InsufficientQuota);
        assert!(refused.to_string().contains("900 are used"), "{refused}");
    }
    first.use_tokens(&nodes.fixture, 100, 0).await.unwrap();
    assert!(first.use_tokens(&nodes.fixture, 1, 0).await.is_err(), "its own tokens count at once");
    nodes.fixture.clock.pass(Duration::from_secs(1));
    assert!(second.use_tokens(&nodes.fixture, 1, 0).await.is_err());
    nodes.stop().await;
}

#[tokio::test]
async fn a_restart_of_all_nodes_refills_nothing() {
    needs_postgres!();
    let nodes = Nodes::start().await;
    nodes.set_requests(2, 4).await;
    nodes.wait_for_limit(2).await;
    let admitted = nodes.nodes[1].admit_all(nodes.project).await;
    assert_eq!(admitted + nodes.nodes[0].admit_all(nodes.project).await, 4);
    let (clock, project) = (nodes.fixture.clock.clone(), nodes.project);
    let clock_rng: Arc<dyn ClockRng> = clock.clone();
    let (store, _folder) = nodes.stop().await.open_store("a", clock_rng.clone());
    let node = Node::new(store, &clock_rng);
    let refused = node.limits.admit(project).await.unwrap().1.unwrap_err();
    assert_eq!(refused.wait(), Some(Duration::from_secs(30)));
    clock.pass(Duration::from_secs(30));
    assert_eq!(node.admit_all(project).await, 1);
    let report = node.store.verify().unwrap();
    assert_eq!(report.records["levels"], 1);
}
