//! The engine, and opening it.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Handle, Runtime};

use super::connection::Connection;
use super::connector::Connector;
use super::error::{PostgresError, PostgresOpenError};
use super::heartbeat::{Heartbeat, Pulse};
use super::node::{self, Node};
use super::pool::Pool;
use super::schema;
use super::settings::PostgresSettings;
use super::snapshot::PostgresSnapshot;
use super::writer_connection::WriterConnection;
use crate::clock_rng::ClockRng;
use crate::file_lock::FileLock;
use crate::storage::engine::{EngineSnapshot, Failed, Health};
use crate::storage::error::OpenError;
use crate::storage::jobs::Message;
use crate::storage::pepper::{self, Pepper};
use crate::storage::private_files;
use crate::storage::redb::database::lock_folder;
use crate::storage::redb::migrations::LAYOUT;
use crate::storage::remote::{Availability, Writer};
use crate::storage::shared_state::SharedState;
use crate::storage::store_engine::StoreEngine;

/// Threads that move bytes between the process and the database.
const NETWORK_THREADS: usize = 2;

/// A database that speaks PostgreSQL's protocol, as the store of a node.
#[derive(Clone, Debug)]
pub struct PostgresLocation {
    pub settings: PostgresSettings,
    /// Tells this node from others.
    pub node: String,
    /// Max connections for reads.
    pub readers: usize,
}

pub(in crate::storage) struct PostgresEngine {
    pool: Arc<Pool>,
    pub shared: Arc<SharedState>,
    availability: Arc<Availability>,
    _heartbeat: Heartbeat,
    _runtime: OwnedRuntime,
    /// No other process uses the data folder.
    _lock: FileLock,
}

impl StoreEngine for PostgresEngine {
    fn check_open(&self) -> Result<(), Failed> {
        self.availability.check()
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
}

/// A runtime that may be dropped on any thread.
struct OwnedRuntime(Option<Runtime>);

impl Drop for OwnedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// What a node has after it has registered.
struct Registered {
    connector: Connector,
    connection: Connection,
    pepper: Pepper,
    node: Node,
}

/// The engine and its writer thread, which takes messages from `inbox` and ends when no sender is left. The data folder
/// `dir` has the pepper, and the files of the server that are not in the database.
///
/// # Errors
/// If the database cannot be used, with the remedy; see [`PostgresOpenError`].
pub(in crate::storage) fn open(
    location: &PostgresLocation,
    dir: &Path,
    clock_rng: &dyn ClockRng,
    inbox: Receiver<Message>,
) -> Result<(Arc<PostgresEngine>, JoinHandle<()>), OpenError> {
    private_files::private_dir(dir).map_err(|error| OpenError::io(dir, error))?;
    let lock = lock_folder(dir)?;
    if dir.join(private_files::DATABASE).exists() {
        return Err(OpenError::TwoStores { path: dir.join(private_files::DATABASE) });
    }
    let io = |error| OpenError::io(dir, error);
    let runtime = Builder::new_multi_thread()
        .worker_threads(NETWORK_THREADS)
        .thread_name("outpost-store")
        .enable_all()
        .build()
        .map_err(io)?;
    let handle = runtime.handle().clone();
    let runtime = OwnedRuntime(Some(runtime));
    let Registered { connector, connection, pepper, node } = register(location, dir, clock_rng, &handle)?;
    let shared = Arc::new(SharedState::new(Arc::new(pepper)));
    let availability = Arc::new(Availability::default());
    let heartbeat = Heartbeat::start(&handle, connector.clone(), node.clone());
    watch_pulse(&heartbeat, availability.clone(), &handle);
    let pool = Pool::new(connector.clone(), handle.clone(), location.readers);
    let engine = Arc::new(PostgresEngine {
        pool,
        shared: shared.clone(),
        availability: availability.clone(),
        _heartbeat: heartbeat,
        _runtime: runtime,
        _lock: lock,
    });
    let remote = WriterConnection::new(connector, handle, node, connection);
    let writer = Writer { remote, inbox, shared, availability };
    let thread = std::thread::Builder::new().name("outpost-writer".into()).spawn(move || writer.run());
    Ok((engine, thread.map_err(io)?))
}

/// Connects, creates the tables, checks the pepper and registers the node, on a thread that may block.
fn register(
    location: &PostgresLocation,
    dir: &Path,
    clock_rng: &dyn ClockRng,
    runtime: &Handle,
) -> Result<Registered, OpenError> {
    let register = || {
        let connector = Connector::new(location.settings.clone()).map_err(PostgresOpenError::from)?;
        let mut connection = runtime.block_on(connector.connect()).map_err(PostgresOpenError::from)?;
        let is_filled = runtime.block_on(async {
            schema::create_tables(&mut connection).await?;
            schema::is_filled(&mut connection).await
        });
        let is_filled = is_filled.map_err(PostgresOpenError::from)?;
        let pepper = pepper::load(dir)?;
        if pepper.is_none() && is_filled {
            return Err(PostgresOpenError::NoPepper { folder: dir.display().to_string() }.into());
        }
        let pepper = pepper.map_or_else(|| pepper::load_or_create(dir, false, clock_rng), Ok)?;
        let node = runtime.block_on(async {
            schema::check_or_fill(&mut connection, &pepper).await?;
            node::register(&mut connection, &location.node, LAYOUT).await
        })?;
        Ok(Registered { connector, connection, pepper, node })
    };
    // The caller may be a thread of another runtime, which must not block on this one.
    std::thread::scope(|scope| scope.spawn(register).join())
        .unwrap_or_else(|_| Err(PostgresOpenError::from(PostgresError::Bug("opening panicked".to_owned())).into()))
}

/// Refuses reads and writes once another process has taken over.
fn watch_pulse(heartbeat: &Heartbeat, availability: Arc<Availability>, runtime: &Handle) {
    let mut pulse = heartbeat.pulse();
    runtime.spawn(async move {
        while pulse.changed().await.is_ok() {
            let shown = pulse.borrow_and_update().clone();
            match shown {
                Pulse::Alive => {}
                Pulse::Missed(reason) => tracing::warn!(reason, "the heartbeat of this node could not be renewed"),
                Pulse::Fenced => availability.fence(),
            }
        }
    });
}
