//! The rows that need not be read: those that were read in this transaction, and those that only this process writes.

use std::collections::{BTreeMap, HashMap};

use super::batch::{Fetched, Page, Row, Wanted, Writes, between};
use crate::cluster::NodeProcess;
use crate::records::usage;
use crate::tables::Table;

/// The known state of a row of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Absent,
    /// It exists, but its value was not read.
    Exists,
    Value(Vec<u8>),
}

/// A range of keys all of whose rows are known.
struct Covered {
    from: Vec<u8>,
    /// Exclusive; `None`: to the end of the table.
    to: Option<Vec<u8>>,
    values: bool,
}

#[derive(Default)]
struct KnownTable {
    rows: BTreeMap<Vec<u8>, Known>,
    covered: Vec<Covered>,
}

/// The rows that were read in a transaction.
#[derive(Default)]
pub(super) struct KnownRows {
    tables: BTreeMap<Table, KnownTable>,
    bytes: usize,
}

impl KnownRows {
    /// The size of all keys and values that were read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn add(&mut self, wanted: Wanted, fetched: Fetched) {
        for ((table, keys), values) in wanted.keys.into_iter().zip(fetched.values) {
            let rows = &mut self.tables.entry(table).or_default().rows;
            for (key, value) in keys.into_iter().zip(values) {
                self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
                rows.insert(key, value.map_or(Known::Absent, Known::Value));
            }
        }
        wanted.pages.into_iter().zip(fetched.pages).for_each(|(page, rows)| self.add_page(page, rows));
    }

    fn add_page(&mut self, page: Page, rows: Vec<Row>) {
        let table = self.tables.entry(page.table).or_default();
        let last = rows.last().filter(|_| !page.is_last(&rows));
        let from = last.map_or(page.from, |(key, _)| key.clone());
        table.covered.push(Covered { from, to: page.end, values: page.values });
        for (key, value) in rows {
            self.bytes += key.len() + value.len();
            if page.values {
                table.rows.insert(key, Known::Value(value));
            } else {
                table.rows.entry(key).or_insert(Known::Exists);
            }
        }
    }

    /// The value of a row; `None` if it must be read first.
    pub fn value(&self, table: Table, key: &[u8]) -> Option<Option<&[u8]>> {
        let table = self.tables.get(&table)?;
        match table.rows.get(key) {
            Some(Known::Value(value)) => Some(Some(value)),
            Some(Known::Absent) => Some(None),
            Some(Known::Exists) => None,
            None => table.covered.iter().any(|range| range.contains(key)).then_some(None),
        }
    }

    /// Down to which key all rows below `to` are known, from `from` on; `None` if those right below `to` are not.
    pub fn covered_below<'a>(
        &'a self,
        table: Table,
        from: &'a [u8],
        to: Option<&[u8]>,
        values: bool,
    ) -> Option<&'a [u8]> {
        let covered = &self.tables.get(&table)?.covered;
        let reaches = |range: &&Covered| {
            (range.values || !values) && range.reaches(to) && to.is_none_or(|to| range.from.as_slice() < to)
        };
        let lowest = covered.iter().filter(reaches).map(|range| range.from.as_slice()).min()?;
        Some(lowest.max(from))
    }

    /// The greatest existing row below `to`, from `from` on, in a range that is covered.
    pub fn last_below(&self, table: Table, from: &[u8], to: Option<&[u8]>) -> Option<(&[u8], &[u8])> {
        let rows = self.tables.get(&table)?.rows.range::<[u8], _>(between(from, to)?);
        rows.rev().find_map(|(key, known)| match known {
            Known::Absent => None,
            Known::Exists => Some((key.as_slice(), &[][..])),
            Known::Value(value) => Some((key.as_slice(), value.as_slice())),
        })
    }
}

impl Covered {
    fn contains(&self, key: &[u8]) -> bool {
        self.from.as_slice() <= key && self.to.as_deref().is_none_or(|to| key < to)
    }

    /// True if the range ends at `to` or after it.
    fn reaches(&self, to: Option<&[u8]>) -> bool {
        match (&self.to, to) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(to)) => own.as_slice() >= to,
        }
    }
}

/// Max kept rows. If there are more, all are forgotten.
const MAX_KEPT_ROWS: usize = 16_384;

/// The last committed values of rows that this process has written and no other process writes.
///
/// They need not be read again, so a transaction that only adds to them does not conflict with what other nodes write next
/// to them.
#[derive(Default)]
pub(super) struct KeptRows(HashMap<Table, HashMap<Vec<u8>, Vec<u8>>>);

impl KeptRows {
    pub fn value(&self, table: Table, key: &[u8]) -> Option<&Vec<u8>> {
        self.0.get(&table)?.get(key)
    }

    /// Keeps what this process has committed of its own rows.
    pub fn keep(&mut self, writes: &Writes, process: Option<NodeProcess>) {
        let Some(process) = process else { return };
        for (table, rows) in writes.tables() {
            for (key, value) in rows.iter().filter(|(key, _)| usage::is_sum_of(process, table, key)) {
                let kept = self.0.entry(table).or_default();
                match value {
                    Some(value) => drop(kept.insert(key.clone(), value.clone())),
                    None => drop(kept.remove(key)),
                }
            }
        }
        if self.0.values().map(HashMap::len).sum::<usize>() > MAX_KEPT_ROWS {
            self.clear();
        }
    }

    /// The outcome of a commit is unknown.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
