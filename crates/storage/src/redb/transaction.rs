//! redb's transactions.
//!
//! redb may panic over damaged pages. Such a panic becomes an error here, so that it differs from a panic of the
//! program itself.
//!
//! A panic that reaches the writer is therefore a bug in a closure and stays a 500. After either, the transaction is
//! dropped and the database handle closed: on the old handle, a poisoned lock of redb would panic in a destructor
//! during the next commit, which would end the process. The transaction is not aborted, because a panic in `abort`
//! unwinds into that same destructor. A reader that finds damage opens a new handle only if a trial transaction fails:
//! a new handle does not repair the pages, and some requests are refused each time the database is reopened.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use redb::{
    Database, Durability, ReadOnlyTable, ReadTransaction, ReadableDatabase as _, ReadableTable,
    ReadableTableMetadata as _, TableDefinition, TableHandle as _, WriteTransaction,
};

use super::database::{self, catch_redb_panic, failed};
use super::free_pages::PageChange;
use crate::engine::{EngineRead, EngineSnapshot, EngineWrite, Export, Failed, Health, Scan, Scanned, Visit};
use crate::tables::Table;
use outpost_common::disk_space::DataClass;

pub(super) type Definition<'a> = TableDefinition<'a, &'static [u8], &'static [u8]>;

pub(super) fn definition(name: &str) -> Definition<'_> {
    TableDefinition::new(name)
}

type OpenTable = Arc<ReadOnlyTable<&'static [u8], &'static [u8]>>;

/// A snapshot. Dropping it may panic after damage.
pub(super) struct RedbSnapshot {
    tx: ReadTransaction,
    /// Opening a table takes about as long as reading a row.
    open: RefCell<Vec<(Table, OpenTable)>>,
    /// Keeps the database open, if nothing else does.
    _db: Option<Database>,
}

impl RedbSnapshot {
    pub fn begin(db: &Database) -> Result<Self, redb::Error> {
        catch_redb_panic(|| Ok(Self { tx: db.begin_read()?, open: RefCell::default(), _db: None }))
    }

    /// Keeps `db` open, whose snapshot this is.
    pub fn keeping_open(self, db: Database) -> Self {
        Self { _db: Some(db), ..self }
    }

    fn call<T>(&self, call: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>) -> Result<T, Failed> {
        catch_redb_panic(|| call(&self.tx)).map_err(|error| read_failed(&error))
    }

    fn table(&self, table: Table) -> Result<OpenTable, redb::Error> {
        let mut open = self.open.borrow_mut();
        if let Some((_, found)) = open.iter().find(|(known, _)| *known == table) {
            return Ok(found.clone());
        }
        let opened = Arc::new(self.tx.open_table(definition(table.name()))?);
        open.push((table, opened.clone()));
        Ok(opened)
    }
}

/// A closed database is already being reopened.
fn read_failed(error: &redb::Error) -> Failed {
    let found = failed(error);
    let health = if matches!(error, redb::Error::DatabaseClosed) { Health::Sound } else { found.health };
    Failed { health, ..found }
}

impl EngineRead for RedbSnapshot {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        self.call(|_| Ok(self.table(table)?.get(key)?.map(|guard| guard.value().to_vec())))
    }

    fn scan(&self, scan: &Scan<'_>, visit: Visit<'_>) -> Scanned {
        let table = self.call(|_| self.table(scan.table))?;
        walk(&*table, scan, visit).map_err(|error| read_failed(&error))
    }
}

impl EngineSnapshot for RedbSnapshot {
    fn tables(&self) -> Result<BTreeMap<String, u64>, Failed> {
        self.call(|tx| {
            let mut counts = BTreeMap::new();
            for table in tx.list_tables()? {
                let name = table.name().to_owned();
                counts.insert(name, tx.open_untyped_table(table)?.len()?);
            }
            Ok(counts)
        })
    }

    fn export(&self, table: &str, export: Export<'_>) -> Result<(), Failed> {
        self.call(|tx| {
            for pair in tx.open_table(definition(table))?.iter()? {
                let (key, value) = pair?;
                if export(key.value(), value.value()).is_break() {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// A write transaction.
pub(crate) struct RedbWrite {
    tx: WriteTransaction,
    change: Cell<PageChange>,
}

impl RedbWrite {
    pub fn begin(db: &Database) -> Result<Self, redb::Error> {
        let mut tx = db.begin_write()?;
        tx.set_durability(Durability::Immediate)?;
        tx.set_two_phase_commit(true);
        // Saves the allocator state with each commit, so that opening after a crash need not scan the file.
        tx.set_quick_repair(true);
        Ok(Self { tx, change: Cell::default() })
    }

    /// Creates a table if it is absent.
    pub fn create(&self, table: Table) -> Result<(), redb::Error> {
        catch_redb_panic(|| {
            self.tx.open_table(definition(table.name()))?;
            Ok(())
        })
    }

    pub fn commit(self) -> Result<(), redb::Error> {
        Ok(self.tx.commit()?)
    }

    pub fn abort(self) -> Result<(), redb::Error> {
        Ok(self.tx.abort()?)
    }

    /// The changes so far.
    pub(super) fn change(&self) -> PageChange {
        self.change.get()
    }

    fn count(&self, table: Table, stored: usize, removed: usize) {
        if table.data_class() == DataClass::Bulk {
            let before = self.change.get();
            let stored = before.stored.saturating_add(stored as u64);
            self.change.set(PageChange { stored, removed: before.removed.saturating_add(removed as u64) });
        }
    }

    /// Discards the transaction after damage. Its rollback may panic over the same pages. Uses `drop` rather than
    /// `abort`: a panic in `abort` unwinds into the destructor, where a second panic would abort the process.
    pub fn discard(self) {
        let _ = database::catch_panic(move || drop(self));
    }

    fn call<T>(&self, call: impl FnOnce(&WriteTransaction) -> Result<T, redb::Error>) -> Result<T, Failed> {
        catch_redb_panic(|| call(&self.tx)).map_err(|error| failed(&error))
    }
}

impl EngineRead for RedbWrite {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        self.call(|tx| {
            let table = tx.open_table(definition(table.name()))?;
            let found = table.get(key)?;
            Ok(found.map(|guard| guard.value().to_vec()))
        })
    }

    fn scan(&self, scan: &Scan<'_>, visit: Visit<'_>) -> Scanned {
        let open = catch_redb_panic(|| Ok(self.tx.open_table(definition(scan.table.name()))?));
        let table = open.map_err(|error| failed(&error))?;
        walk(&table, scan, visit).map_err(|error| failed(&error))
    }
}

impl EngineWrite for RedbWrite {
    fn put(&self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Failed> {
        let replaced = self.call(|tx| {
            let mut rows = tx.open_table(definition(table.name()))?;
            Ok(rows.insert(key, value)?.map_or(0, |old| old.value().len()))
        })?;
        self.count(table, value.len(), replaced);
        Ok(())
    }

    fn remove(&self, table: Table, key: &[u8]) -> Result<(), Failed> {
        let removed = self.call(|tx| {
            let mut rows = tx.open_table(definition(table.name()))?;
            Ok(rows.remove(key)?.map_or(0, |old| old.value().len()))
        })?;
        self.count(table, 0, removed);
        Ok(())
    }
}

/// A transaction of a new database in memory.
#[cfg(test)]
pub(crate) fn in_memory() -> RedbWrite {
    let memory = redb::backends::InMemoryBackend::new();
    RedbWrite::begin(&Database::builder().create_with_backend(memory).unwrap()).unwrap()
}

/// The outer error is redb's, the inner one the visitor's.
type Walked = Result<crate::error::Result<()>, redb::Error>;

/// A panic of the visitor is resumed after redb's part.
fn walk<T>(table: &T, scan: &Scan<'_>, visit: Visit<'_>) -> Walked
where
    T: ReadableTable<&'static [u8], &'static [u8]>,
{
    let mut panic = None;
    let walked = catch_redb_panic(|| {
        walk_table(table, scan, &mut |key, value| {
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

fn walk_table<T>(table: &T, scan: &Scan<'_>, visit: Visit<'_>) -> Walked
where
    T: ReadableTable<&'static [u8], &'static [u8]>,
{
    let end = scan.end();
    let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    if matches!(upper, Bound::Excluded(upper) if upper <= scan.prefix) {
        return Ok(Ok(()));
    }
    for pair in table.range::<&[u8]>((Bound::Included(scan.prefix), upper))?.rev() {
        let (key, value) = pair?;
        let key = key.value();
        // On damaged pages, redb may visit rows of another range. They are sound by themselves.
        if key < scan.prefix || end.as_deref().is_some_and(|end| key >= end) {
            return Err(redb::Error::Corrupted(format!("a row of table {} is out of its range", scan.table.name())));
        }
        let bytes = if scan.values { value.value() } else { &[] };
        match visit(key, bytes) {
            Ok(ControlFlow::Continue(())) => {}
            Ok(ControlFlow::Break(())) => break,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(()))
}
