//! The turn: a row that a process locks while it writes, if the writes of processes conflict.
//!
//! The lock is held by a transaction of its own, because a serializable transaction that waited for the lock would see the
//! database as it was before. A process that does not get it writes without it, so a process that hangs does not
//! keep the others from writing.

use std::time::Duration;

use tokio::time::Instant;

use super::connection::{Connection, Phase, Request};
use super::connector::Connector;
use super::error::PostgresError;
use super::statements;

/// How long no turn is taken after an attempt that has failed. The lock of a process that hangs is gone by then.
const PAUSE: Duration = Duration::from_secs(10);

/// The turn of this process.
#[derive(Default)]
pub(super) struct Turn {
    /// Opened when it is needed.
    connection: Option<Connection>,
    /// No turn is taken until then.
    pauses_until: Option<Instant>,
}

impl Turn {
    /// Waits for the turn.
    ///
    /// # Errors
    /// If another process has it for too long, or the database does not answer. Nothing is tried again for a while.
    pub async fn take(&mut self, connector: &Connector) -> Result<(), PostgresError> {
        let now = Instant::now();
        if self.pauses_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        // If this future is dropped, it pauses as well.
        self.pauses_until = Some(now + PAUSE);
        let mut connection = match self.connection.take().filter(Connection::is_usable) {
            Some(connection) => connection,
            None => connector.connect().await?,
        };
        connection.phase = Phase::Writing;
        let requests =
            vec![Request::command(statements::BEGIN_READ_COMMITTED), Request::rows(statements::LOCK_TURN, Vec::new())];
        connection.run_all(requests).await?;
        (self.connection, self.pauses_until) = (Some(connection), None);
        Ok(())
    }

    /// Ends the turn, if this process has it. Does not wait. Must be called within a runtime.
    pub fn end(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.rollback();
        }
    }
}
