//! Connections for reading, shared by the threads that read.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::blocking::block_on;
use super::connection::Connection;
use super::connector::Connector;
use super::error::PostgresError;
use super::outage::{self, Outage};
use crate::engine::{Failed, Health};

/// A bounded set of connections, opened when needed and kept.
pub struct Pool {
    connector: Connector,
    /// Runs the connections. Its threads must run by themselves: the threads that read only block on it.
    runtime: Handle,
    size: usize,
    outage: Outage,
    slots: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    /// A pool of at most `size` connections. `runtime` must be a multi-threaded one.
    pub(super) fn new(connector: Connector, runtime: Handle, size: usize, outage: Outage) -> Arc<Self> {
        let size = size.max(1);
        Arc::new(Self {
            connector,
            runtime,
            size,
            outage,
            slots: Arc::new(Semaphore::new(size)),
            idle: Mutex::default(),
        })
    }

    /// Takes a connection. Blocking; not for threads of a runtime.
    ///
    /// # Errors
    /// If all connections stay in use for too long, or the database cannot be reached.
    pub(super) fn take(self: &Arc<Self>) -> Result<PooledConnection, Failed> {
        if self.outage.has_begun() {
            // These will not answer any more.
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
            return Err(outage::lost().into());
        }
        let limit = self.connector.timeouts().pool;
        let slot = block_on(&self.runtime, async { timeout(limit, self.slots.clone().acquire_owned()).await });
        let Ok(Ok(slot)) = slot else {
            let reason = format!("all {} connections for reads were in use for {limit:?}", self.size);
            return Err(Failed { health: Health::Sound, reason });
        };
        let kept = self.take_idle();
        let was_idle = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => self.connect()?,
        };
        Ok(PooledConnection { pool: self.clone(), connection: Some(connection), was_idle, _slot: slot })
    }

    /// The connection that was used last, if it is still open. The others are closed when they are not.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(Connection::is_usable);
        idle.pop()
    }

    fn connect(&self) -> Result<Connection, PostgresError> {
        block_on(&self.runtime, self.outage.bound(self.connector.connect()))
    }
}

/// A connection that goes back to its pool when dropped.
pub(super) struct PooledConnection {
    pool: Arc<Pool>,
    /// `None` only after a failed replacement.
    connection: Option<Connection>,
    was_idle: bool,
    // Released after the connection is back.
    _slot: OwnedSemaphorePermit,
}

impl PooledConnection {
    /// Runs `call` with the connection on the pool's runtime. Blocking.
    pub fn run<T>(
        &mut self,
        call: impl AsyncFnOnce(&mut Connection) -> Result<T, PostgresError>,
    ) -> Result<T, PostgresError> {
        let Some(connection) = &mut self.connection else {
            return Err(PostgresError::lost("there is no connection"));
        };
        let result = block_on(&self.pool.runtime, self.pool.outage.bound(call(connection)));
        if result.is_err() && self.pool.outage.has_begun() {
            self.connection = None;
        }
        result
    }

    /// Replaces a connection that turned out to be lost while it was idle. Returns whether there is a new one to try.
    pub fn replace(&mut self) -> Result<bool, PostgresError> {
        if !std::mem::take(&mut self.was_idle) {
            return Ok(false);
        }
        self.connection = None;
        self.connection = Some(self.pool.connect()?);
        Ok(true)
    }

    /// The pool's time limits.
    pub fn timeouts(&self) -> &super::settings::Timeouts {
        self.pool.connector.timeouts()
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take().filter(Connection::is_usable) {
            connection.rollback();
            self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}
