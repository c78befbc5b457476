//! Transactions with typed reads and writes, on top of an [engine](crate::engine).
//!
//! Space is reserved by table, where records are written: each table has a class, and `WriteTx::put` refuses bulk and
//! content, so no feature can forget the check, and deletions always work. The free space is measured once per
//! transaction, and what the transaction has written is subtracted. A check at the edge of each endpoint would race
//! with other writers. Quotas do not help, because a disk is smaller than the sum of quotas.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::cluster::NodeProcess;
use crate::codec::{self, Record};
use crate::engine::{EngineSnapshot, EngineWrite, Export, Failed, Health, Scan, Visit, unavailable};
use crate::error::Result;
use crate::pepper::Pepper;
use crate::tables::Table;
use outpost_common::disk_space::{DataClass, DiskReserve, DiskStatus};

/// One stored pair.
pub type Pair<R> = (Vec<u8>, R);
type Each<'a, R> = &'a mut dyn FnMut(&[u8], R) -> Result<ControlFlow<()>>;

/// Reading in a read or write transaction.
pub trait Reader {
    fn pepper(&self) -> &Pepper;

    /// The stored bytes under `key`.
    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// The stored bytes under several keys, in their order.
    fn raw_all(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>>;

    /// Walks over keys in descending order.
    fn scan(&self, scan: &Scan<'_>, visit: Visit<'_>) -> Result<()>;

    /// Visits the keys that start with `prefix` in descending order, starting below `before` (a whole key) if given,
    /// until `visit` breaks.
    fn visit(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, visit: Visit<'_>) -> Result<()> {
        self.scan(&Scan { table, prefix, before, values: true, rows: None }, visit)
    }

    /// Up to `limit` keys that start with `prefix` and are below `before`, in descending order. Reads no values.
    fn keys(&self, table: Table, prefix: &[u8], before: Option<&[u8]>, limit: Option<usize>) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        self.scan(&Scan { table, prefix, before, values: false, rows: limit }, &mut |key, _| {
            found.push(key.to_vec());
            let is_full = limit.is_some_and(|limit| found.len() >= limit);
            Ok(if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(found)
    }

    fn get<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        self.raw(R::TABLE, key)?.map(|bytes| codec::decode(self.pepper(), key, &bytes)).transpose()
    }

    /// The records of several keys, in their order.
    fn get_all<R: Record>(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<R>>> {
        let decode = |(key, bytes): (&Vec<u8>, Option<Vec<u8>>)| {
            bytes.map(|bytes| codec::decode(self.pepper(), key, &bytes)).transpose()
        };
        keys.iter().zip(self.raw_all(R::TABLE, keys)?).map(decode).collect()
    }

    /// Up to `limit` records in descending key order.
    fn newest<R: Record>(&self, prefix: &[u8], before: Option<&[u8]>, limit: usize) -> Result<Vec<Pair<R>>> {
        let mut found = Vec::new();
        let scan = Scan { table: R::TABLE, prefix, before, values: true, rows: Some(limit) };
        self.scan(&scan, &mut |key, bytes| {
            found.push((key.to_vec(), codec::decode(self.pepper(), key, bytes)?));
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
    engine: Box<dyn EngineSnapshot>,
    pepper: Arc<Pepper>,
    health: Cell<Health>,
}

impl ReadTx {
    pub(super) fn new(engine: Box<dyn EngineSnapshot>, pepper: Arc<Pepper>) -> Self {
        Self { engine, pepper, health: Cell::default() }
    }

    /// The names of all tables, known to this program or not, with the number of their rows.
    pub(super) fn tables(&self) -> Result<BTreeMap<String, u64>, Failed> {
        self.engine.tables().map_err(|failed| self.note(failed))
    }

    /// Visits all rows of a table in ascending order.
    pub(super) fn export(&self, table: &str, export: Export<'_>) -> Result<(), Failed> {
        self.engine.export(table, export).map_err(|failed| self.note(failed))
    }

    pub(super) fn health(&self) -> Health {
        self.health.get()
    }

    /// Closes the snapshot, which may panic after damage.
    pub(super) fn close(self) {
        let _ = catch_unwind(AssertUnwindSafe(move || drop(self)));
    }

    fn note(&self, failed: Failed) -> Failed {
        self.health.set(self.health.get().max(failed.health));
        failed
    }
}

impl Reader for ReadTx {
    fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.engine.get(table, key).map_err(|failed| self.note(failed))?)
    }

    fn raw_all(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        Ok(self.engine.get_all(table, keys).map_err(|failed| self.note(failed))?)
    }

    fn scan(&self, scan: &Scan<'_>, visit: Visit<'_>) -> Result<()> {
        self.engine.scan(scan, visit).map_err(|failed| self.note(failed))?
    }
}

/// Table and key of a written record whose changes are announced.
pub(super) type Change = (Table, Vec<u8>);

/// Bytes that a transaction may write before only the reserve of the disk is left. Unlimited without a reserve.
#[derive(Default)]
struct Room<'a> {
    reserve: Option<&'a DiskReserve>,
    /// Bytes of free pages in the database.
    reusable: u64,
    /// Measured once, if content is written; `None` if the file system does not report it.
    status: OnceCell<Option<DiskStatus>>,
    /// Bytes of the transaction so far, which the free space does not show yet.
    taken: Cell<u64>,
}

impl Room<'_> {
    fn take(&self, class: DataClass, bytes: u64) -> Result<()> {
        let taken = self.taken.get().saturating_add(bytes);
        if let Some(reserve) = self.reserve.filter(|_| class != DataClass::Essential)
            && let Some(status) = self.status.get_or_init(|| reserve.status().ok())
        {
            status.require_reusing(class, taken, self.reusable)?;
        }
        self.taken.set(taken);
        Ok(())
    }
}

/// A write transaction, shared by the closures of one group.
///
/// It counts writes, so that the writer knows whether a failed closure has written. It also notes disk errors and
/// damage, after which it refuses everything and must not be committed.
pub struct WriteTx<'a> {
    engine: &'a dyn EngineWrite,
    pepper: Arc<Pepper>,
    process: Option<NodeProcess>,
    room: Room<'a>,
    writes: Cell<u64>,
    health: Cell<Health>,
    changes: RefCell<Vec<Change>>,
}

impl<'a> WriteTx<'a> {
    pub(super) fn new(engine: &'a dyn EngineWrite, pepper: Arc<Pepper>) -> Self {
        let (writes, health, changes) = (Cell::new(0), Cell::default(), RefCell::default());
        Self { engine, pepper, process: None, room: Room::default(), writes, health, changes }
    }

    /// The transaction as one of a process that shares the database with others.
    pub(super) fn by(self, process: Option<NodeProcess>) -> Self {
        Self { process, ..self }
    }

    /// The transaction, with this reserve of the disk, which content leaves free. `reusable`: bytes that the database can take
    /// without more of the disk.
    pub(super) fn within(self, reserve: &'a DiskReserve, reusable: u64) -> Self {
        Self { room: Room { reserve: Some(reserve), reusable, ..self.room }, ..self }
    }

    /// The process that writes, if others use the same database.
    pub fn process(&self) -> Option<NodeProcess> {
        self.process
    }

    /// Stores `record` under `key`, replacing what is there.
    pub fn put<R: Record>(&self, key: &[u8], record: &R) -> Result<()> {
        let bytes = codec::encode(&self.pepper, key, record)?;
        self.room.take(R::TABLE.data_class(), (key.len() + bytes.len()) as u64)?;
        self.put_raw(R::TABLE, key, &bytes)?;
        self.note_change::<R>(key);
        Ok(())
    }

    /// Removes the record under `key`, if there is one.
    pub fn remove<R: Record>(&self, key: &[u8]) -> Result<()> {
        let removed = self.remove_raw(R::TABLE, key);
        self.note_change::<R>(key);
        removed
    }

    fn note_change<R: Record>(&self, key: &[u8]) {
        if R::WATCHED {
            self.changes.borrow_mut().push((R::TABLE, key.to_vec()));
        }
    }

    pub(super) fn put_raw(&self, table: Table, key: &[u8], bytes: &[u8]) -> Result<()> {
        self.writes.set(self.writes.get() + 1);
        self.call(|engine| engine.put(table, key, bytes))
    }

    pub(super) fn remove_raw(&self, table: Table, key: &[u8]) -> Result<()> {
        self.writes.set(self.writes.get() + 1);
        self.call(|engine| engine.remove(table, key))
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

    /// After a failure, the engine's state may be inconsistent, so it is not called any more.
    fn call<T>(&self, call: impl FnOnce(&dyn EngineWrite) -> Result<T, Failed>) -> Result<T> {
        if self.health.get() != Health::Sound {
            return Err(unavailable("an earlier call in this transaction failed"));
        }
        call(self.engine).map_err(|failed| {
            self.health.set(self.health.get().max(failed.health));
            failed.into()
        })
    }
}

impl Reader for WriteTx<'_> {
    fn pepper(&self) -> &Pepper {
        &self.pepper
    }

    fn raw(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.call(|engine| engine.get(table, key))
    }

    fn raw_all(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>> {
        self.call(|engine| engine.get_all(table, keys))
    }

    fn scan(&self, scan: &Scan<'_>, visit: Visit<'_>) -> Result<()> {
        self.call(|engine| engine.scan(scan, visit))?
    }
}
