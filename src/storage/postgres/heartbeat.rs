//! Renews a node's heartbeat while the process runs.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::connection::Connection;
use super::connector::Connector;
use super::error::PostgresError;
use super::node::{self, Node};

/// Between two renewals. Several fit into the time for which one is valid.
const INTERVAL: Duration = Duration::from_secs(2);

/// What the last renewal has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pulse {
    /// The node is registered.
    #[default]
    Alive,
    /// The heartbeat could not be renewed, for this reason. It is tried again.
    Missed(String),
    /// Another process has taken over. Renewal has ended.
    Fenced,
}

/// A task that renews the heartbeat over a connection of its own. Dropping it ends the task, but not the heartbeat:
/// see [`node::leave`].
#[derive(Debug)]
pub struct Heartbeat {
    pulse: watch::Receiver<Pulse>,
    _task: JoinSet<()>,
}

impl Heartbeat {
    /// Starts the task on `runtime`.
    pub fn start(runtime: &Handle, connector: Connector, node: Node) -> Self {
        let (sender, pulse) = watch::channel(Pulse::Alive);
        let mut task = JoinSet::new();
        task.spawn_on(run(connector, node, INTERVAL, sender), runtime);
        Self { pulse, _task: task }
    }

    /// What the last renewal has shown.
    pub fn pulse(&self) -> watch::Receiver<Pulse> {
        self.pulse.clone()
    }
}

async fn run(connector: Connector, node: Node, every: Duration, pulse: watch::Sender<Pulse>) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut open: Option<Connection> = None;
    loop {
        ticks.tick().await;
        let result = renew(&connector, &mut open, &node).await;
        let shown = match result {
            Ok(()) => Pulse::Alive,
            Err(PostgresError::Fenced) => Pulse::Fenced,
            Err(error) => {
                open = None;
                Pulse::Missed(error.to_string())
            }
        };
        let has_ended = shown == Pulse::Fenced;
        pulse.send_if_modified(|last| {
            let is_new = *last != shown;
            *last = shown;
            is_new
        });
        if has_ended {
            tracing::error!(node = node.name, "another process has taken over this node");
            return;
        }
    }
}

/// Renews over the open connection, or a new one.
async fn renew(connector: &Connector, open: &mut Option<Connection>, node: &Node) -> Result<(), PostgresError> {
    let mut connection = match open.take().filter(Connection::is_usable) {
        Some(connection) => connection,
        None => connector.connect().await?,
    };
    let result = node::renew(&mut connection, node).await;
    *open = Some(connection);
    result
}
