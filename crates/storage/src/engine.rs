//! The port to a storage engine: ordered tables of bytes, in transactions.
//!
//! [`transaction`](crate::transaction) adds records to it. A read sees one snapshot. A write closure may run more than
//! once, so an engine may discard what it did and run it again.
//!
//! Records, MACs, checks and all rules are above the port. Write closures are synchronous. Asynchronous ones would have
//! kept a transaction open while each of them waits for a remote database.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::error::{Code, Error, Result};
use crate::tables::Table;

/// The state of a transaction, or of the connection to its database; best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    #[default]
    Sound,
    /// Damaged pages were read. Other reads may succeed; a write transaction must be discarded.
    Damaged,
    /// The disk failed: the database must be opened again.
    Broken,
}

/// An operation of an engine failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// What the failure says about the transaction.
    pub health: Health,
    /// For the log.
    pub reason: String,
}

/// The client's error.
impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        unavailable(failed.reason)
    }
}

/// The error for operations that the store cannot run now.
pub(super) fn unavailable(cause: impl Into<String>) -> Error {
    Error::new(Code::StorageUnavailable, "The storage is not available at the moment. Try again shortly.")
        .with_cause(cause.into())
}

/// Visits a key and its value, until it breaks or fails.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>;

/// Visits a key and its value, until it breaks.
pub(super) type Export<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// A walk over the keys of a table that start with a prefix, in descending order.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    pub table: Table,
    pub prefix: &'a [u8],
    /// Begins below this whole key, if given.
    pub before: Option<&'a [u8]>,
    /// Visits values, too. Otherwise they are empty.
    pub values: bool,
    /// How many rows will probably be visited; `None` if all of them.
    pub rows: Option<usize>,
}

impl Scan<'_> {
    /// The first key behind the walk; `None` if there is none.
    pub fn end(&self) -> Option<Vec<u8>> {
        self.before.map(<[u8]>::to_vec).or_else(|| end_of(self.prefix))
    }
}

/// The first key after all that start with `prefix`; `None` if there is none.
fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// The outer error is the engine's, the inner one the visitor's.
pub(super) type Scanned = Result<Result<()>, Failed>;

/// Reading in a snapshot or in a write transaction.
pub(super) trait EngineRead {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Failed>;

    /// The values of several keys, in their order.
    fn get_all(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Failed> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    fn scan(&self, scan: &Scan<'_>, visit: Visit<'_>) -> Scanned;
}

/// A snapshot of all tables.
pub(super) trait EngineSnapshot: EngineRead {
    /// The names of all tables, known to this program or not, with the number of their rows.
    fn tables(&self) -> Result<BTreeMap<String, u64>, Failed>;

    /// Visits all rows of a table in ascending order.
    fn export(&self, table: &str, export: Export<'_>) -> Result<(), Failed>;
}

/// A write transaction, which the engine that created it commits or discards.
pub(super) trait EngineWrite: EngineRead {
    fn put(&self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Failed>;

    /// Removes the row of a key, if there is one.
    fn remove(&self, table: Table, key: &[u8]) -> Result<(), Failed>;
}
