//! The engine, and opening it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread::JoinHandle;

use tokio::runtime::Handle;

use super::blocking::{NetworkRuntime, block_on};
use super::connection::Connection;
use super::connector::Connector;
use super::error::{PostgresError, PostgresOpenError};
use super::exchange_task::ExchangeTask;
use super::membership::{Member, Membership, Pulse};
use super::node::{self, Node};
use super::outage::{self, Outage};
use super::pool::Pool;
use super::schema;
use super::settings::PostgresSettings;
use super::snapshot::PostgresSnapshot;
use super::writer_connection::WriterConnection;
use crate::cluster::{Answer, Cluster};
use crate::engine::{EngineSnapshot, Failed, Health};
use crate::exchanges::ExchangeQueue;
use crate::pepper::{self, Pepper};
use crate::private_files;
use crate::redb::database::lock_folder;
use crate::redb::migrations::LAYOUT;
use crate::remote::{Availability, Writer};
use crate::shared_state::SharedState;
use crate::store_engine::StoreEngine;
use crate::store_error::OpenError;
use crate::write_queue::Message;
use outpost_common::clock_rng::ClockRng;

/// Threads that move bytes between the process and the database.
const NETWORK_THREADS: usize = 2;
/// Attempts of a step of the start that waits for a lock.
const ATTEMPTS: usize = 8;

/// A database that speaks PostgreSQL's protocol, as the store of a node.
#[derive(Clone, Debug)]
pub struct PostgresLocation {
    pub settings: PostgresSettings,
    /// Tells this node from others.
    pub node: String,
    /// Max connections for reads.
    pub readers: usize,
}

pub(crate) struct PostgresEngine {
    pool: Arc<Pool>,
    pub shared: Arc<SharedState>,
    availability: Arc<Availability>,
    cluster: Arc<Cluster>,
    outage: Outage,
    exchanges: ExchangeQueue,
    _exchange_task: ExchangeTask,
    _membership: Membership,
    _runtime: NetworkRuntime,
}

impl StoreEngine for PostgresEngine {
    fn check_open(&self) -> Result<(), Failed> {
        self.availability.check()?;
        match self.outage.has_begun() {
            true => Err(outage::lost().into()),
            false => Ok(()),
        }
    }

    fn snapshot(&self) -> Result<Box<dyn EngineSnapshot>, Failed> {
        if self.availability.is_fenced() {
            return Err(Failed {
                health: Health::Sound,
                reason: "another process has taken over this node".to_owned(),
            });
        }
        Ok(Box::new(PostgresSnapshot::open(&self.pool)?))
    }

    /// Readers replace lost connections themselves.
    fn report(&self, _: Health, _: &SyncSender<Message>) {}

    fn bytes(&self) -> u64 {
        0
    }

    fn cluster(&self) -> Option<&Arc<Cluster>> {
        Some(&self.cluster)
    }

    fn exchanges(&self) -> Option<&ExchangeQueue> {
        Some(&self.exchanges)
    }
}

/// The state of a node after its registration.
struct Registered {
    connector: Connector,
    connection: Connection,
    pepper: Pepper,
    node: Node,
    /// The state of all nodes at that time.
    first: Answer,
}

/// The engine and its writer thread, which takes messages from `inbox` and ends when no sender is left. The data folder
/// `dir` has the pepper, and the files of the server that are not in the database.
///
/// # Errors
/// If the database cannot be used, with the remedy; see [`PostgresOpenError`].
pub(crate) fn open(
    location: &PostgresLocation,
    dir: &Path,
    clock_rng: Arc<dyn ClockRng>,
    inbox: Receiver<Message>,
) -> Result<(Arc<PostgresEngine>, JoinHandle<()>), OpenError> {
    private_files::private_dir(dir).map_err(|error| OpenError::io(dir, error))?;
    let lock = lock_folder(dir)?;
    if dir.join(private_files::DATABASE).exists() {
        return Err(OpenError::TwoStores { path: dir.join(private_files::DATABASE) });
    }
    let io = |error| OpenError::io(dir, error);
    let runtime = NetworkRuntime::new(NETWORK_THREADS).map_err(io)?;
    let handle = runtime.handle().clone();
    let Registered { connector, connection, pepper, node, first } = register(location, dir, &*clock_rng, &handle)?;
    let process = node.process().map_err(PostgresOpenError::from)?;
    let shared = Arc::new(SharedState::new(Arc::new(pepper), Some(process)));
    let cluster = Arc::new(Cluster::new(process, clock_rng.clone(), first));
    let availability = Arc::new(Availability::default());
    let member = Member {
        connector: connector.clone(),
        node: node.clone(),
        cluster: cluster.clone(),
        shared: shared.clone(),
        clock_rng,
    };
    let membership = Membership::start(&handle, member);
    watch_pulse(&location.node, &membership, shared.clone(), availability.clone(), &handle);
    let outage = membership.outage();
    let pool = Pool::new(connector.clone(), handle.clone(), location.readers, outage.clone());
    let (exchange_task, exchanges) =
        ExchangeTask::start(&handle, connector.clone(), availability.clone(), outage.clone());
    let engine = Arc::new(PostgresEngine {
        pool,
        shared: shared.clone(),
        availability: availability.clone(),
        cluster,
        outage: outage.clone(),
        exchanges,
        _exchange_task: exchange_task,
        _membership: membership,
        _runtime: runtime,
    });
    let remote = WriterConnection::new(connector, handle, node, connection, outage);
    let writer = Writer::new(remote, inbox, shared, availability);
    let thread = std::thread::Builder::new().name("outpost-writer".into()).spawn(move || {
        writer.run();
        // Here, not with the engine, because a read that has not ended keeps the engine after a shutdown.
        drop(lock);
    });
    Ok((engine, thread.map_err(io)?))
}

/// Connects, creates the tables, checks the pepper and registers the node.
fn register(
    location: &PostgresLocation,
    dir: &Path,
    clock_rng: &dyn ClockRng,
    runtime: &Handle,
) -> Result<Registered, OpenError> {
    // Before anything is created.
    node::check_name(&location.node)?;
    let connector = Connector::new(location.settings.clone()).map_err(PostgresOpenError::from)?;
    let mut connection = block_on(runtime, connector.connect()).map_err(PostgresOpenError::from)?;
    let has_store = unless_blocked(|| {
        block_on(runtime, async {
            schema::create_tables(&mut connection).await?;
            schema::has_store(&mut connection).await
        })
    })?;
    let kept = pepper::load(dir)?;
    if kept.is_none() && has_store {
        return Err(PostgresOpenError::NoPepper { folder: dir.display().to_string() }.into());
    }
    let is_new = kept.is_none();
    // On disk before the database has a value that requires it.
    let pepper = kept.map_or_else(|| pepper::load_or_create(dir, false, clock_rng), Ok)?;
    let registered = unless_blocked(|| {
        block_on(runtime, async {
            schema::check_or_fill(&mut connection, &pepper).await?;
            let node = node::register(&mut connection, &location.node, LAYOUT).await?;
            let asked = clock_rng.uptime();
            let nodes = node::registered(&mut connection).await?;
            Ok((node, node::answer(&nodes, asked, clock_rng.uptime())?))
        })
    });
    if is_new && matches!(registered, Err(PostgresOpenError::WrongPepper)) {
        // Another node has filled the database meanwhile, with the pepper that this one needs.
        pepper::remove(dir)?;
    }
    let (node, first) = registered?;
    Ok(Registered { connector, connection, pepper, node, first })
}

/// Repeats a step of a start that waits for a lock too long. A process that was paused in a transaction holds its locks until
/// the database ends that transaction, after the `idle_transaction` timeout.
fn unless_blocked<T>(mut step: impl FnMut() -> Result<T, PostgresOpenError>) -> Result<T, PostgresOpenError> {
    let mut attempts = 1;
    loop {
        match step() {
            Err(PostgresOpenError::Failed(PostgresError::Conflict(_))) if attempts < ATTEMPTS => attempts += 1,
            result => return result,
        }
    }
}

/// Refuses reads and writes once another process has taken over.
fn watch_pulse(
    node: &str,
    membership: &Membership,
    shared: Arc<SharedState>,
    availability: Arc<Availability>,
    runtime: &Handle,
) {
    let node = node.to_owned();
    let mut pulse = membership.pulse();
    runtime.spawn(async move {
        while pulse.changed().await.is_ok() {
            let shown = pulse.borrow_and_update().clone();
            match shown {
                Pulse::Alive => tracing::info!("the database answers again"),
                Pulse::Missed(reason) => tracing::warn!(reason, "the database does not answer"),
                // A server that stops ends its heartbeat itself.
                Pulse::Fenced if shared.closing.load(Acquire) => {}
                Pulse::Fenced => {
                    tracing::error!(
                        node,
                        "another process has taken over this node. Give every server a --node-name of its own"
                    );
                    availability.fence();
                    shared.watchers.announce(&[], true);
                }
            }
        }
    });
}
