//! Transactions with typed reads and writes, without redb in the interface.
//!
//! redb may panic over damaged pages. Such a panic becomes an error here, so that it differs from a panic of the
//! program itself.

use std::cell::{Cell, RefCell};
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use redb::{Database, Durability, ReadTransaction, ReadableDatabase as _, ReadableTable, WriteTransaction};

use super::codec::{self, Record};
use super::database::{self, Health, catch_redb_panic};
use super::pepper::Pepper;
use super::tables::Table;
use crate::error::{Error, Result};

/// One stored pair.
pub type Pair<R> = (Vec<u8>, R);
type Each<'a, R> = &'a mut dyn FnMut(&[u8], R) -> Result<ControlFlow<()>>;
type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>>;

/// Reading in a read or write transaction.
pub trait Reader {
    fn pepper(&self) -> &Pepper;

    /// The stored bytes under `key`.
    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Visits the keys that start with `prefix` in descending order, starting below `before` (a whole key) if given,
    /// until `visit` breaks.
    fn visit(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Result<()>;

    fn get<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        self.raw(R::TABLE, key)?.map(|bytes| codec::decode(self.pepper(), key, &bytes)).transpose()
    }

    /// Up to `limit` records in descending key order.
    fn newest<R: Record>(&self, prefix: &[u8], before: Option<&[u8]>, limit: usize) -> Result<Vec<Pair<R>>> {
        let mut found = Vec::new();
        self.each(prefix, before, &mut |key, record: R| {
            found.push((key.to_vec(), record));
            Ok(if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(found)
    }

    /// Decodes and visits records in descending key order.
    fn each<R: Record>(&self, prefix: &[u8], before: Option<&[u8]>, each: Each<'_, R>) -> Result<()> {
        self.visit(R::TABLE, prefix, before, &mut |key, bytes| each(key, codec::decode(self.pepper(), key, bytes)?))
    }
}

/// A snapshot.
pub struct ReadTx {
    tx: ReadTransaction,
    pepper: Arc<Pepper>,
    health: Cell<Health>,
}

impl ReadTx {
    pub(super) fn begin(db: &Database, pepper: Arc<Pepper>) -> Result<Self, redb::Error> {
        let tx = catch_redb_panic(|| Ok(db.begin_read()?))?;
        Ok(Self { tx, pepper, health: Cell::default() })
    }

    pub(super) fn inner(&self) -> &ReadTransaction {
        &self.tx
    }

    /// Whether the disk failed under this snapshot.
    pub(super) fn is_broken(&self) -> bool {
        self.health.get() == Health::Broken
    }

    pub(super) fn health(&self) -> Health {
        self.health.get()
    }

    /// Closes the snapshot, which may panic after damage.
    pub(super) fn close(self) {
        let _ = database::catch_panic(move || drop(self));
    }

    fn failed(&self, error: &redb::Error) -> Error {
        // A closed database is already being reopened.
        if !matches!(error, redb::Error::DatabaseClosed) {
            self.health.set(self.health.get().max(Health::after(error)));
        }
        database::failed(error)
    }
}

impl Reader for ReadTx {
    fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let found = catch_redb_panic(|| {
            let table = self.tx.open_table(table.definition())?;
            Ok(ReadableTable::get(&table, key)?.map(|guard| guard.value().to_vec()))
        });
        found.map_err(|error| self.failed(&error))
    }

    fn visit(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Result<()> {
        let open = || Ok(self.tx.open_table(table.definition())?);
        walk(open, prefix, before, visit).unwrap_or_else(|error| Err(self.failed(&error)))
    }
}

/// Table and key of a written record that decides access.
pub(super) type Change = (Table, Vec<u8>);

/// A write transaction, shared by the closures of one group.
///
/// It counts writes, so that the writer knows whether a failed closure has written. It also notes disk errors and
/// damage, after which it refuses everything and must not be committed.
pub struct WriteTx {
    tx: WriteTransaction,
    pepper: Arc<Pepper>,
    writes: Cell<u64>,
    health: Cell<Health>,
    changes: RefCell<Vec<Change>>,
}

impl WriteTx {
    pub(super) fn begin(db: &Database, pepper: Arc<Pepper>) -> Result<Self, redb::Error> {
        let mut tx = db.begin_write()?;
        tx.set_durability(Durability::Immediate)?;
        tx.set_two_phase_commit(true);
        // Saves the allocator state with each commit, so that opening after a crash need not scan the file.
        tx.set_quick_repair(true);
        Ok(Self { tx, pepper, writes: Cell::new(0), health: Cell::default(), changes: RefCell::default() })
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
        let removed = self.call(|tx| {
            tx.open_table(R::TABLE.definition())?.remove(key)?;
            Ok(())
        });
        if R::SEALED {
            self.changes.borrow_mut().push((R::TABLE, key.to_vec()));
        }
        removed
    }

    pub(super) fn put_raw(&self, table: Table, key: &[u8], bytes: &[u8]) -> Result<()> {
        self.writes.set(self.writes.get() + 1);
        self.call(|tx| {
            tx.open_table(table.definition())?.insert(key, bytes)?;
            Ok(())
        })
    }

    pub(super) fn create(&self, table: Table) -> Result<(), redb::Error> {
        catch_redb_panic(|| {
            self.tx.open_table(table.definition())?;
            Ok(())
        })
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes.get()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.health.get() == Health::Broken
    }

    pub(super) fn health(&self) -> Health {
        self.health.get()
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

    /// Discards the transaction after damage. Its rollback may panic over the same pages. Uses `drop` rather than
    /// `abort`: a panic in `abort` unwinds into the destructor, where a second panic would abort the process.
    pub(super) fn discard(self) {
        let _ = database::catch_panic(move || drop(self));
    }

    /// Calls redb. After damage, redb's state may be inconsistent, so no further call is made.
    fn call<T>(&self, call: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>) -> Result<T> {
        self.usable()?;
        catch_redb_panic(|| call(&self.tx)).map_err(|error| self.failed(&error))
    }

    fn usable(&self) -> Result<()> {
        if self.health.get() == Health::Sound {
            return Ok(());
        }
        Err(database::unavailable("an earlier call in this transaction failed"))
    }

    fn failed(&self, error: &redb::Error) -> Error {
        self.health.set(self.health.get().max(Health::after(error)));
        database::failed(error)
    }
}

impl Reader for WriteTx {
    fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.call(|tx| {
            let table = tx.open_table(table.definition())?;
            let found = table.get(key)?;
            Ok(found.map(|guard| guard.value().to_vec()))
        })
    }

    fn visit(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Result<()> {
        self.usable()?;
        let open = || Ok(self.tx.open_table(table.definition())?);
        walk(open, prefix, before, visit).unwrap_or_else(|error| Err(self.failed(&error)))
    }
}

type Walked = Result<Result<()>, redb::Error>;

/// The outer error is redb's, the inner one the visitor's. A panic of the visitor is resumed after redb's part.
fn walk<T>(
    open: impl FnOnce() -> Result<T, redb::Error>,
    prefix: &[u8],
    before: Option<&[u8]>,
    visit: Visit<'_>,
) -> Walked
where
    T: ReadableTable<&'static [u8], &'static [u8]>,
{
    let mut panic = None;
    let walked = catch_redb_panic(|| {
        walk_table(&open()?, prefix, before, &mut |key, value| {
            catch_unwind(AssertUnwindSafe(|| visit(key, value))).unwrap_or_else(|payload| {
                panic = Some(payload);
                Ok(ControlFlow::Break(()))
            })
        })
    });
    match panic {
        Some(payload) => resume_unwind(payload),
        None => walked,
    }
}

fn walk_table<T>(table: &T, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Walked
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

/// The first key after all that start with `prefix`; `None` if there is none.
fn end_of(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}
