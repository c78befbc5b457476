//! The transaction that a write closure sees.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;

use super::batch::{Page, Wanted, Writes, first_rows, rows_after};
use super::known_rows::{KeptRows, KnownRows};
use crate::engine::{EngineRead, EngineWrite, Failed, Scan, Scanned, Visit};
use crate::tables::Table;

/// The known rows, the writes of earlier closures, and the closure's own writes over them.
///
/// A row that must be read first is absent for now, and is noted as wanted. The closure continues, which shows the
/// other rows that it needs. Then it runs again, because its outcome does not count.
pub(super) struct View<'a> {
    known: &'a KnownRows,
    kept: &'a KeptRows,
    earlier: &'a Writes,
    own: RefCell<Writes>,
    wanted: &'a RefCell<Wanted>,
    lacks_rows: Cell<bool>,
}

impl<'a> View<'a> {
    pub fn new(known: &'a KnownRows, kept: &'a KeptRows, earlier: &'a Writes, wanted: &'a RefCell<Wanted>) -> Self {
        Self { known, kept, earlier, own: RefCell::default(), wanted, lacks_rows: Cell::new(false) }
    }

    /// True if the closure needs rows that must be read first.
    pub fn lacks_rows(&self) -> bool {
        self.lacks_rows.get()
    }

    pub fn into_writes(self) -> Writes {
        self.own.into_inner()
    }

    /// The value of a row; `None` if it must be read first.
    fn look(&self, table: Table, key: &[u8]) -> Option<Option<Vec<u8>>> {
        if let Some(written) = self.own.borrow().get(table, key).or_else(|| self.earlier.get(table, key)) {
            return Some(written.clone());
        }
        if let Some(kept) = self.kept.value(table, key) {
            return Some(Some(kept.clone()));
        }
        self.known.value(table, key).map(|value| value.map(<[u8]>::to_vec))
    }

    fn want(&self, table: Table, key: &[u8]) {
        self.lacks_rows.set(true);
        self.wanted.borrow_mut().key(table, key.to_vec());
    }

    /// The greatest row below `to`, from `from` on, in a range whose rows are known.
    fn last_below(&self, table: Table, from: &[u8], to: Option<&[u8]>) -> Option<(Vec<u8>, Vec<u8>)> {
        let own = self.own.borrow();
        let mut to = to.map(<[u8]>::to_vec);
        loop {
            let stored = self.known.last_below(table, from, to.as_deref()).map(|(key, value)| (key, Some(value)));
            let written = [&*own, self.earlier].map(|writes| writes.last_below(table, from, to.as_deref()));
            // Of the same key, the latest write counts.
            let candidates = [written[0], written[1], stored].into_iter().flatten();
            let (key, value) = candidates.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
            match value {
                Some(value) => return Some((key.to_vec(), value.to_vec())),
                // A removed row.
                None => to = Some(key.to_vec()),
            }
        }
    }
}

impl EngineRead for View<'_> {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, Failed> {
        Ok(self.look(table, key).unwrap_or_else(|| {
            self.want(table, key);
            None
        }))
    }

    fn get_all(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Failed> {
        keys.iter().map(|key| self.get(table, key)).collect()
    }

    fn scan(&self, scan: &Scan<'_>, visit: Visit<'_>) -> Scanned {
        let &Scan { table, prefix, values, .. } = scan;
        let (mut to, mut visited, mut bytes) = (scan.end(), 0, 0);
        while to.as_deref().is_none_or(|to| to > prefix) {
            let Some(from) = self.known.covered_below(table, prefix, to.as_deref(), values) else {
                let rows = match i64::try_from(visited).unwrap_or(i64::MAX) {
                    0 => first_rows(scan),
                    rows => rows_after(visited, bytes, rows),
                };
                self.lacks_rows.set(true);
                self.wanted.borrow_mut().page(Page { table, from: prefix.to_vec(), end: to, values, rows });
                return Ok(Ok(()));
            };
            while let Some((key, value)) = self.last_below(table, from, to.as_deref()) {
                (visited, bytes) = (visited + 1, bytes + key.len() + value.len());
                match visit(&key, if values { &value } else { &[] }) {
                    Ok(ControlFlow::Continue(())) => to = Some(key),
                    Ok(ControlFlow::Break(())) => return Ok(Ok(())),
                    Err(error) => return Ok(Err(error)),
                }
            }
            to = Some(from.to_vec());
        }
        Ok(Ok(()))
    }
}

impl EngineWrite for View<'_> {
    fn put(&self, table: Table, key: &[u8], value: &[u8]) -> Result<(), Failed> {
        self.own.borrow_mut().set(table, key.to_vec(), Some(value.to_vec()));
        Ok(())
    }

    fn remove(&self, table: Table, key: &[u8]) -> Result<(), Failed> {
        self.own.borrow_mut().set(table, key.to_vec(), None);
        Ok(())
    }
}
