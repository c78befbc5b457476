//! Reading a whole database without being a node of it. [`CopyTarget`](super::copy_target) fills one.

use std::path::Path;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::blocking::{NetworkRuntime, block_on};
use super::connection::Connection;
use super::connector::Connector;
use super::engine::PostgresLocation;
use super::error::{PostgresError, PostgresOpenError};
use super::outage::Outage;
use super::pool::Pool;
use super::snapshot::PostgresSnapshot;
use super::{node, schema};
use crate::engine::Failed;
use crate::pepper::{self, Pepper};
use crate::store_error::OpenError;
use crate::transaction::ReadTx;

/// A database that is copied. Blocking; not for threads of a runtime.
pub(crate) struct PostgresCopy {
    location: PostgresLocation,
    runtime: NetworkRuntime,
    connector: Connector,
}

impl PostgresCopy {
    /// Connects to the database.
    ///
    /// # Errors
    /// If that fails, with the remedy.
    pub fn new(location: &PostgresLocation) -> Result<Self, OpenError> {
        let runtime = NetworkRuntime::new(1).map_err(|error| OpenError::io(Path::new("/"), error))?;
        let connector = Connector::new(location.settings.clone()).map_err(PostgresOpenError::from)?;
        Ok(Self { location: location.clone(), runtime, connector })
    }

    /// # Errors
    /// If the database has no store.
    pub fn require_store(&self) -> Result<(), OpenError> {
        let mut connection = self.connect()?;
        match block_on(self.runtime(), schema::has_store(&mut connection))? {
            true => Ok(()),
            false => Err(PostgresOpenError::NoStore { database: self.name() }.into()),
        }
    }

    /// A snapshot of a store that no server uses, and whose pepper is in the folder `dir`.
    ///
    /// # Errors
    /// If there is no store, a server uses it, or it has another pepper.
    pub fn snapshot(&self, dir: &Path) -> Result<(ReadTx, Arc<Pepper>), OpenError> {
        self.require_store()?;
        let mut connection = self.connect()?;
        block_on(self.runtime(), node::require_none(&mut connection))?;
        let folder = || PostgresOpenError::NoPepper { folder: dir.display().to_string() };
        let pepper = Arc::new(pepper::load(dir)?.ok_or_else(folder)?);
        block_on(self.runtime(), schema::check(&mut connection, &pepper))?;
        Ok((self.rows(&pepper)?, pepper))
    }

    /// A snapshot of whatever the database has.
    ///
    /// # Errors
    /// If the database fails.
    pub fn rows(&self, pepper: &Arc<Pepper>) -> Result<ReadTx, OpenError> {
        let pool = Pool::new(self.connector.clone(), self.runtime().clone(), 1, Outage::never());
        let snapshot = PostgresSnapshot::open(&pool).map_err(unreadable)?;
        Ok(ReadTx::new(Box::new(snapshot), pepper.clone()))
    }

    pub(super) fn runtime(&self) -> &Handle {
        self.runtime.handle()
    }

    /// The database, for messages.
    pub(super) fn name(&self) -> String {
        self.location.settings.to_string()
    }

    pub fn connect(&self) -> Result<Connection, OpenError> {
        Ok(block_on(self.runtime(), self.connector.connect()).map_err(PostgresOpenError::from)?)
    }
}

fn unreadable(failed: Failed) -> OpenError {
    PostgresOpenError::from(PostgresError::lost(failed.reason)).into()
}
