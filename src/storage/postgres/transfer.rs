//! Reading a whole database, and filling an empty one, without being a node of it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::blocking::{NetworkRuntime, block_on};
use super::connection::{Connection, Request};
use super::connector::Connector;
use super::engine::PostgresLocation;
use super::error::{PostgresError, PostgresOpenError};
use super::outage::Outage;
use super::pool::Pool;
use super::snapshot::PostgresSnapshot;
use super::{node, schema, statements};
use crate::storage::engine::{EngineSnapshot as _, Failed};
use crate::storage::error::OpenError;
use crate::storage::pepper::{self, Pepper};
use crate::storage::remote::Row;
use crate::storage::tables;
use crate::storage::transaction::ReadTx;

/// A database that is copied. Blocking; not for threads of a runtime.
pub(in crate::storage) struct PostgresCopy {
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
        let is_filled = block_on(self.runtime.handle(), async {
            let names = schema::existing(&mut connection).await?;
            Ok(names.iter().any(|name| name == tables::META.name()) && schema::is_filled(&mut connection).await?)
        });
        match is_filled.map_err(|error: PostgresError| PostgresOpenError::from(error))? {
            true => Ok(()),
            false => Err(PostgresOpenError::NoStore { database: self.location.settings.to_string() }.into()),
        }
    }

    /// A snapshot of a store that no server uses, and whose pepper is in the folder `dir`.
    ///
    /// # Errors
    /// If there is no store, a server uses it, or it has another pepper.
    pub fn snapshot(&self, dir: &Path) -> Result<(ReadTx, Arc<Pepper>), OpenError> {
        self.require_store()?;
        let mut connection = self.connect()?;
        block_on(self.runtime.handle(), node::require_none(&mut connection))?;
        let folder = || PostgresOpenError::NoPepper { folder: dir.display().to_string() };
        let pepper = Arc::new(pepper::load(dir)?.ok_or_else(folder)?);
        block_on(self.runtime.handle(), schema::check(&mut connection, &pepper))?;
        let pool = Pool::new(self.connector.clone(), self.runtime.handle().clone(), 1, Outage::never());
        let snapshot = PostgresSnapshot::open(&pool).map_err(unreadable)?;
        Ok((ReadTx::new(Box::new(snapshot), pepper.clone()), pepper))
    }

    /// Creates the tables of an empty database.
    ///
    /// # Errors
    /// [`PostgresOpenError::NotEmpty`] if any table has rows.
    pub fn prepare(&self) -> Result<(), OpenError> {
        let mut connection = self.connect()?;
        block_on(self.runtime.handle(), schema::create_tables(&mut connection)).map_err(PostgresOpenError::from)?;
        drop(connection);
        let filled: BTreeMap<_, _> = self.counts()?.into_iter().filter(|(_, rows)| *rows > 0).collect();
        match filled.is_empty() {
            true => Ok(()),
            false => Err(PostgresOpenError::NotEmpty { database: self.location.settings.to_string() }.into()),
        }
    }

    fn counts(&self) -> Result<BTreeMap<String, u64>, OpenError> {
        let pool = Pool::new(self.connector.clone(), self.runtime.handle().clone(), 1, Outage::never());
        PostgresSnapshot::open(&pool).and_then(|snapshot| snapshot.tables()).map_err(unreadable)
    }

    /// Stores rows of a table, which takes effect at once.
    ///
    /// # Errors
    /// If the database fails.
    pub fn put(&self, connection: &mut Connection, table: &str, rows: &[Row]) -> Result<(), PostgresError> {
        let (keys, values): (Vec<&[u8]>, Vec<&[u8]>) =
            rows.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).unzip();
        let request = Request::count(statements::put(table), vec![&keys, &values]);
        block_on(self.runtime.handle(), connection.run_one(request)).map(drop)
    }

    pub fn connect(&self) -> Result<Connection, OpenError> {
        Ok(block_on(self.runtime.handle(), self.connector.connect()).map_err(PostgresOpenError::from)?)
    }
}

fn unreadable(failed: Failed) -> OpenError {
    PostgresOpenError::from(PostgresError::lost(failed.reason)).into()
}
