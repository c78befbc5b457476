//! The connection of the writer thread.

use tokio::runtime::Handle;

use super::blocking::block_on;
use super::connection::Connection;
use super::connector::Connector;
use super::error::PostgresError;
use super::node::{self, Node};
use super::outage::Outage;
use super::transactions::Settled;
use super::turn::Turns;
use crate::remote::{Fetched, Remote, RemoteError, Wanted, Writes};
use crate::transaction::Change;

/// Runs the transactions of this node. Blocking; not for threads of a runtime.
pub(super) struct WriterConnection {
    connector: Connector,
    runtime: Handle,
    node: Node,
    /// `None` if it is lost.
    connection: Option<Connection>,
    /// A transaction is open.
    has_begun: bool,
    outage: Outage,
    turns: Turns,
}

impl WriterConnection {
    pub fn new(connector: Connector, runtime: Handle, node: Node, connection: Connection, outage: Outage) -> Self {
        Self {
            connector,
            runtime,
            node,
            connection: Some(connection),
            has_begun: false,
            outage,
            turns: Turns::default(),
        }
    }

    /// Drops a connection that is lost.
    fn note<T>(&mut self, result: Result<T, PostgresError>) -> Result<T, PostgresError> {
        if let Err(error) = &result {
            self.has_begun = false;
            if error.is_lost() {
                self.connection = None;
            }
        }
        result
    }

    fn read(&mut self, wanted: &Wanted) -> Result<Fetched, PostgresError> {
        let Self { connection, runtime, node, outage, turns, .. } = self;
        let connection = connection.as_mut().ok_or_else(|| PostgresError::lost("there is no connection"))?;
        let result = match std::mem::replace(&mut self.has_begun, true) {
            true => block_on(runtime, outage.bound(connection.fetch(wanted))),
            false => block_on(runtime, outage.bound(connection.begin(node, wanted, turns))),
        };
        self.note(result)
    }
}

impl Remote for WriterConnection {
    fn fetch(&mut self, wanted: &Wanted) -> Result<Fetched, RemoteError> {
        self.read(wanted).map_err(|error| match remote_error(error) {
            // Nothing of this transaction has been committed.
            RemoteError::Unknown(reason) => RemoteError::Unavailable(reason),
            other => other,
        })
    }

    fn commit(&mut self, writes: &Writes, changes: &[Change]) -> Result<(), RemoteError> {
        if writes.is_empty() {
            self.rollback();
            return Ok(());
        }
        if !self.has_begun {
            self.fetch(&Wanted::default())?;
        }
        self.has_begun = false;
        let Self { connection, runtime, node, outage, .. } = self;
        let Some(connection) = connection.as_mut() else {
            return Err(RemoteError::Unavailable("there is no connection".to_owned()));
        };
        // After this, only a new connection can tell the outcome.
        let result = block_on(runtime, outage.bound(connection.commit(node, writes, changes)));
        let result = result.map_err(|error| if error.is_lost() { error.in_commit() } else { error });
        self.note(result).map_err(remote_error)
    }

    fn rollback(&mut self) {
        self.has_begun = false;
        if let Some(connection) = &mut self.connection {
            // Sending needs a runtime.
            let _entered = self.runtime.enter();
            connection.rollback();
        }
    }

    fn reconnect(&mut self) -> Result<bool, RemoteError> {
        self.has_begun = false;
        self.connection = None;
        let Self { connector, runtime, node, .. } = self;
        let reconnected = block_on(runtime, async {
            let mut connection = connector.connect().await?;
            let settled = connection.settle(node).await?;
            Ok((connection, settled))
        });
        let (connection, settled) = reconnected.map_err(remote_error)?;
        self.connection = Some(connection);
        Ok(settled == Settled::Committed)
    }

    fn take_turn(&mut self) {
        self.turns.want();
    }

    fn is_unreachable(&self) -> bool {
        self.outage.has_begun()
    }

    fn close(&mut self) {
        let Self { connection, runtime, node, .. } = self;
        if let Some(connection) = connection {
            // Otherwise another node can start when the heartbeat has expired.
            let left = block_on(runtime, node::leave(connection, node));
            left.unwrap_or_else(|error| tracing::warn!(%error, "this node could not sign off"));
        }
    }
}

fn remote_error(error: PostgresError) -> RemoteError {
    let reason = error.to_string();
    match error {
        PostgresError::Conflict(_) => RemoteError::Conflict(reason),
        PostgresError::Lost { commit_sent: true, .. } => RemoteError::Unknown(reason),
        // An operator may have changed something for a moment, such as a password.
        PostgresError::Lost { commit_sent: false, .. } | PostgresError::Refused(_) => RemoteError::Unavailable(reason),
        PostgresError::Fenced => RemoteError::Fenced(reason),
        PostgresError::Bug(_) => RemoteError::Refused(reason),
    }
}
