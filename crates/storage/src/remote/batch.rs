//! The reads and writes of one step of a transaction. Pages have more and more rows, as far as their size allows.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::engine::Scan;
use crate::tables::Table;

/// Key and value. The value is empty in a page of keys.
pub type Row = (Vec<u8>, Vec<u8>);

/// A page of a table, in descending order of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub table: Table,
    /// The first key that may be included.
    pub from: Vec<u8>,
    /// The first key behind the page; `None` if there is none.
    pub end: Option<Vec<u8>>,
    /// Reads values, too.
    pub values: bool,
    /// Max rows.
    pub rows: i64,
}

impl Page {
    /// True if no page follows these rows.
    pub fn is_last(&self, rows: &[Row]) -> bool {
        i64::try_from(rows.len()).is_ok_and(|found| found < self.rows)
    }
}

/// The reads of one round trip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Keys, by table. A table may occur once.
    pub keys: Vec<(Table, Vec<Vec<u8>>)>,
    pub pages: Vec<Page>,
}

impl Wanted {
    /// Adds a key. Several keys of a table are read by one statement.
    pub fn key(&mut self, table: Table, key: Vec<u8>) {
        match self.keys.iter_mut().find(|(known, _)| *known == table) {
            Some((_, keys)) if keys.contains(&key) => {}
            Some((_, keys)) => keys.push(key),
            None => self.keys.push((table, vec![key])),
        }
    }

    /// Adds a page.
    pub fn page(&mut self, page: Page) {
        if !self.pages.contains(&page) {
            self.pages.push(page);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.pages.is_empty()
    }
}

/// The rows that were read, in the order of [`Wanted`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// For each table the value of each key; `None` if there is no such row.
    pub values: Vec<Vec<Option<Vec<u8>>>>,
    pub pages: Vec<Vec<Row>>,
}

/// Keys with their new values; `None` for rows to remove.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// The changes of a transaction: for each table and key the new value, or `None` if the row is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    tables: BTreeMap<Table, Changes>,
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

    /// Stores a row, or removes it. Replaces an earlier change of the same key.
    pub fn set(&mut self, table: Table, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        self.tables.entry(table).or_default().insert(key, value);
    }

    /// `Some(None)` if the row is removed.
    pub fn get(&self, table: Table, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.tables.get(&table)?.get(key)
    }

    /// The changes of each table, in ascending order of keys.
    pub fn tables(&self) -> impl Iterator<Item = (Table, &BTreeMap<Vec<u8>, Option<Vec<u8>>>)> {
        self.tables.iter().map(|(table, rows)| (*table, rows))
    }

    /// Adds later changes.
    pub fn extend(&mut self, later: Self) {
        self.bytes += later.bytes;
        for (table, rows) in later.tables {
            self.tables.entry(table).or_default().extend(rows);
        }
    }

    /// The greatest changed key below `to`, from `from` on.
    pub fn last_below(&self, table: Table, from: &[u8], to: Option<&[u8]>) -> Option<(&[u8], Option<&[u8]>)> {
        let (key, value) = self.tables.get(&table)?.range::<[u8], _>(between(from, to)?).next_back()?;
        Some((key, value.as_deref()))
    }
}

/// A range of keys.
type KeyRange<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// `None` if the range is empty.
pub(super) fn between<'a>(from: &'a [u8], to: Option<&'a [u8]>) -> Option<KeyRange<'a>> {
    if to.is_some_and(|to| to <= from) {
        return None;
    }
    Some((Bound::Included(from), to.map_or(Bound::Unbounded, Bound::Excluded)))
}

/// Rows of the first page of a walk without a better hint.
const FIRST_ROWS: i64 = 64;
/// Rows of the first page of values that may be large.
pub const FIRST_LARGE_ROWS: i64 = 4;
/// Max rows of a page.
const MAX_ROWS: i64 = 1024;
/// A page is not made larger than this, as far as the one before it tells.
const PAGE_BYTES: usize = 2 << 20;

/// Rows of the first page of a walk.
pub fn first_rows(scan: &Scan<'_>) -> i64 {
    if scan.values && scan.table.has_large_values() {
        return FIRST_LARGE_ROWS;
    }
    scan.rows.map_or(FIRST_ROWS, |rows| i64::try_from(rows).unwrap_or(MAX_ROWS)).clamp(1, MAX_ROWS)
}

/// Rows of the page after this one: four times as many, unless they would be too large.
pub fn next_rows(page: &[Row], rows: i64) -> i64 {
    let bytes = page.iter().map(|(key, value)| key.len() + value.len()).sum();
    rows_after(page.len(), bytes, rows)
}

/// The same after a number of rows and bytes.
pub fn rows_after(count: usize, bytes: usize, rows: i64) -> i64 {
    let average = (bytes / count.max(1)).max(1);
    let fitting = i64::try_from(PAGE_BYTES / average).unwrap_or(MAX_ROWS);
    (rows * 4).min(MAX_ROWS).min(fitting).max(1)
}
