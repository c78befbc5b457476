//! Transactions as the rest of the program sees them: typed reads, typed writes, and no redb.

use std::cell::{Cell, RefCell};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use redb::{Database, Durability, ReadTransaction, ReadableDatabase as _, ReadableTable, TableError, WriteTransaction};

use super::codec::{self, Record};
use super::database;
use super::pepper::Pepper;
use super::tables::Table;
use crate::error::{Error, Result};

/// One stored pair.
pub type Pair<R> = (Vec<u8>, R);
type Each<'a, R> = &'a mut dyn FnMut(&[u8], R) -> Result<ControlFlow<()>>;
type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>;

/// Reading, the same inside a read and a write transaction.
pub trait Look {
    fn pepper(&self) -> &Pepper;

    /// The stored bytes under `key`.
    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Walks the keys that start with `prefix` from the last to the first, beginning just below
    /// `before` (a whole key) if one is given, until told to break.
    fn visit(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Result<()>;

    fn get<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        self.raw(R::TABLE, key)?.map(|bytes| codec::decode(self.pepper(), key, &bytes)).transpose()
    }

    /// Up to `limit` records, the last keys first.
    fn newest<R: Record>(&self, prefix: &[u8], before: Option<&[u8]>, limit: usize) -> Result<Vec<Pair<R>>> {
        let mut found = Vec::new();
        self.each(prefix, before, &mut |key, record: R| {
            found.push((key.to_vec(), record));
            Ok(if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(found)
    }

    /// Decodes and shows record by record, the last keys first.
    fn each<R: Record>(&self, prefix: &[u8], before: Option<&[u8]>, each: Each<'_, R>) -> Result<()> {
        self.visit(R::TABLE, prefix, before, &mut |key, bytes| each(key, codec::decode(self.pepper(), key, bytes)?))
    }
}

/// A snapshot.
pub struct ReadTx {
    tx: ReadTransaction,
    pepper: Arc<Pepper>,
    broken: Cell<bool>,
}

impl ReadTx {
    pub(super) fn begin(db: &Database, pepper: Arc<Pepper>) -> Result<Self, redb::Error> {
        Ok(Self { tx: db.begin_read()?, pepper, broken: Cell::new(false) })
    }

    pub(super) fn inner(&self) -> &ReadTransaction {
        &self.tx
    }

    /// Whether the disk failed under this snapshot.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    fn failed(&self, error: &redb::Error) -> Error {
        // A closed database is being reopened already.
        if database::needs_reopening(error) && !matches!(error, redb::Error::DatabaseClosed) {
            self.broken.set(true);
        }
        database::failed(error)
    }
}

impl Look for ReadTx {
    fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.tx.open_table(table.definition()).map_err(|error| self.failed(&error.into()))?;
        let found = ReadableTable::get(&table, key).map_err(|error| self.failed(&error.into()))?;
        Ok(found.map(|guard| guard.value().to_vec()))
    }

    fn visit(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Result<()> {
        let table = self.tx.open_table(table.definition()).map_err(|error| self.failed(&error.into()))?;
        walk(&table, prefix, before, visit).unwrap_or_else(|error| Err(self.failed(&error)))
    }
}

/// A record that decides access and was written: its table and key.
pub(super) type Change = (Table, Vec<u8>);

/// A write transaction, shared by the closures of one group.
///
/// It counts writes, so that the writer knows whether a refused closure left a trace, and notes
/// disk errors, after which nothing in it may be committed.
pub struct WriteTx {
    tx: WriteTransaction,
    pepper: Arc<Pepper>,
    writes: Cell<u64>,
    broken: Cell<bool>,
    changes: RefCell<Vec<Change>>,
}

impl WriteTx {
    pub(super) fn begin(db: &Database, pepper: Arc<Pepper>) -> Result<Self, redb::Error> {
        let mut tx = db.begin_write()?;
        tx.set_durability(Durability::Immediate)?;
        tx.set_two_phase_commit(true);
        // Saves the allocator with each commit: opening after a crash need not walk the file.
        tx.set_quick_repair(true);
        Ok(Self { tx, pepper, writes: Cell::new(0), broken: Cell::new(false), changes: RefCell::default() })
    }

    /// Stores `record` under `key`, replacing what is there.
    pub fn put<R: Record>(&self, key: &[u8], record: &R) -> Result<()> {
        let bytes = codec::encode(&self.pepper, key, record)?;
        self.put_raw(R::TABLE, key, &bytes)?;
        if R::SEALED {
            self.changes.borrow_mut().push((R::TABLE, key.to_vec()));
        }
        Ok(())
    }

    /// Removes the record under `key`, if there is one.
    pub fn remove<R: Record>(&self, key: &[u8]) -> Result<()> {
        self.writes.set(self.writes.get() + 1);
        let removed = self.tx.open_table(R::TABLE.definition()).map_err(redb::Error::from).and_then(|mut table| {
            table.remove(key)?;
            Ok(())
        });
        if R::SEALED {
            self.changes.borrow_mut().push((R::TABLE, key.to_vec()));
        }
        removed.map_err(|error| self.failed(&error))
    }

    pub(super) fn put_raw(&self, table: Table, key: &[u8], bytes: &[u8]) -> Result<()> {
        self.writes.set(self.writes.get() + 1);
        let put = self.tx.open_table(table.definition()).map_err(redb::Error::from).and_then(|mut table| {
            table.insert(key, bytes)?;
            Ok(())
        });
        put.map_err(|error| self.failed(&error))
    }

    pub(super) fn create(&self, table: Table) -> Result<(), redb::Error> {
        self.tx.open_table(table.definition())?;
        Ok(())
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.get()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    pub(super) fn take_changes(&self) -> Vec<Change> {
        self.changes.take()
    }

    pub(super) fn commit(self) -> Result<(), redb::Error> {
        Ok(self.tx.commit()?)
    }

    pub(super) fn abort(self) -> Result<(), redb::Error> {
        Ok(self.tx.abort()?)
    }

    fn failed(&self, error: &redb::Error) -> Error {
        if database::needs_reopening(error) {
            self.broken.set(true);
        }
        database::failed(error)
    }
}

impl Look for WriteTx {
    fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = self.tx.open_table(table.definition()).map_err(redb::Error::from).and_then(|table| {
            let found = table.get(key)?;
            Ok(found.map(|guard| guard.value().to_vec()))
        });
        found.map_err(|error| self.failed(&error))
    }

    fn visit(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Result<()> {
        let table = self.tx.open_table(table.definition()).map_err(|error: TableError| self.failed(&error.into()))?;
        walk(&table, prefix, before, visit).unwrap_or_else(|error| Err(self.failed(&error)))
    }
}

type Walked = Result<Result<()>, redb::Error>;

/// The outer error is redb's, the inner one the visitor's.
fn walk<T>(table: &T, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Walked
where
    T: ReadableTable<&'static [u8], &'static [u8]>,
{
    let end = end_of(prefix);
    let upper = before.or(end.as_deref()).map_or(Bound::Unbounded, Bound::Excluded);
    if matches!(upper, Bound::Excluded(upper) if upper <= prefix) {
        return Ok(Ok(()));
    }
    for pair in table.range::<&[u8]>((Bound::Included(prefix), upper))?.rev() {
        let (key, value) = pair?;
        match visit(key.value(), value.value()) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}

/// The first key after all that start with `prefix`; none if there is no such key.
fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
