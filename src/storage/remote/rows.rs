//! Rows that were read in a transaction, rows to be read, and rows to be written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::storage::tables::Table;

/// How many rows the first page of a walk has, unless the caller expects another number.
const FIRST_PAGE: usize = 64;
/// Maximum rows of a page.
const MAX_PAGE: usize = 1024;
/// Maximum rows of a page with values of up to half a mebibyte each.
const MAX_PAGE_OF_CHUNKS: usize = 8;

/// How many rows a walk should read next, after it has visited some: pages grow.
///
/// `expected`: how many rows the walk will probably visit, if known.
pub(in crate::storage) fn page_rows(table: Table, values: bool, expected: Option<usize>, visited: usize) -> usize {
    let most = if values && table.has_large_values() { MAX_PAGE_OF_CHUNKS } else { MAX_PAGE };
    let wanted = match expected.and_then(|expected| expected.checked_sub(visited)) {
        Some(left @ 1..) => left,
        _ => (visited * 4).max(FIRST_PAGE),
    };
    wanted.min(most)
}

/// The rows of a table from `from` on and below `to`, in descending order, at most `rows` of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::storage) struct Page {
    pub table: Table,
    pub from: Vec<u8>,
    /// `None`: to the end of the table.
    pub to: Option<Vec<u8>>,
    pub rows: usize,
    /// Otherwise only keys are read, and values are empty.
    pub values: bool,
}

/// What must be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::storage) struct Wanted {
    pub keys: BTreeMap<Table, BTreeSet<Vec<u8>>>,
    pub pages: BTreeSet<Page>,
}

impl Wanted {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.pages.is_empty()
    }
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub(in crate::storage) struct Fetched {
    /// The rows among those that were wanted by key. All others are absent.
    pub found: Vec<(Table, Vec<u8>, Vec<u8>)>,
    /// The rows of each page, in the order of [`Wanted::pages`].
    pub pages: Vec<Vec<(Vec<u8>, Vec<u8>)>>,
}

/// Rows to be written, by table and key. `None` removes a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::storage) struct Writes {
    tables: BTreeMap<Table, BTreeMap<Vec<u8>, Option<Vec<u8>>>>,
    bytes: usize,
}

impl Writes {
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The size of all keys and values, counting rows that were written twice twice.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn set(&mut self, table: Table, key: &[u8], value: Option<Vec<u8>>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        self.tables.entry(table).or_default().insert(key.to_vec(), value);
    }

    /// `Some(None)` if the row is removed.
    pub fn get(&self, table: Table, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.tables.get(&table)?.get(key)
    }

    /// The writes to each table.
    pub fn tables(&self) -> impl Iterator<Item = (Table, &BTreeMap<Vec<u8>, Option<Vec<u8>>>)> {
        self.tables.iter().map(|(table, rows)| (*table, rows))
    }

    /// Adds later writes.
    pub fn extend(&mut self, later: Self) {
        self.bytes += later.bytes;
        for (table, rows) in later.tables {
            self.tables.entry(table).or_default().extend(rows);
        }
    }

    /// The greatest written key below `to`, from `from` on.
    pub fn last_below(&self, table: Table, from: &[u8], to: Option<&[u8]>) -> Option<(&[u8], Option<&[u8]>)> {
        let (key, value) = self.tables.get(&table)?.range::<[u8], _>(between(from, to)?).next_back()?;
        Some((key, value.as_deref()))
    }
}

/// What is known of a row of the database.
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
        for (table, keys) in wanted.keys {
            let rows = &mut self.tables.entry(table).or_default().rows;
            keys.into_iter().for_each(|key| drop(rows.insert(key, Known::Absent)));
        }
        for (table, key, value) in fetched.found {
            self.bytes += key.len() + value.len();
            self.tables.entry(table).or_default().rows.insert(key, Known::Value(value));
        }
        wanted.pages.into_iter().zip(fetched.pages).for_each(|(page, rows)| self.add_page(page, rows));
    }

    fn add_page(&mut self, page: Page, rows: Vec<(Vec<u8>, Vec<u8>)>) {
        let table = self.tables.entry(page.table).or_default();
        // A page that is not full reaches the end of its range.
        let last = rows.last().filter(|_| rows.len() >= page.rows);
        let from = last.map_or(page.from, |(key, _)| key.clone());
        table.covered.push(Covered { from, to: page.to, values: page.values });
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
    pub fn covered_below<'a>(&'a self, table: Table, from: &'a [u8], to: Option<&[u8]>, values: bool) -> Option<&'a [u8]> {
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

    /// Whether the range ends at `to` or behind it.
    fn reaches(&self, to: Option<&[u8]>) -> bool {
        match (&self.to, to) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(to)) => own.as_slice() >= to,
        }
    }
}

/// `None` if the range is empty.
fn between<'a>(from: &'a [u8], to: Option<&'a [u8]>) -> Option<(Bound<&'a [u8]>, Bound<&'a [u8]>)> {
    if to.is_some_and(|to| to <= from) {
        return None;
    }
    Some((Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded)))
}
