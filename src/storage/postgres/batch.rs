//! What one step of a transaction reads or writes.

use std::collections::BTreeMap;

use crate::storage::tables::Table;

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
    /// Whether values are read too.
    pub values: bool,
    /// Max rows.
    pub rows: i64,
}

/// What to read in one round trip.
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
            Some((_, keys)) => keys.push(key),
            None => self.keys.push((table, vec![key])),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.pages.is_empty()
    }
}

/// What was read, in the order of [`Wanted`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// For each table the value of each key; `None` if there is no such row.
    pub values: Vec<Vec<Option<Vec<u8>>>>,
    pub pages: Vec<Vec<Row>>,
}

/// Keys with their new values; `None` for rows to remove.
type Changes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Keys and values of the rows to store in one table.
pub(super) struct Puts<'a> {
    pub table: Table,
    pub keys: Vec<&'a [u8]>,
    pub values: Vec<&'a [u8]>,
}

/// The changes of a transaction: for each table and key the new value, or `None` if the row is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    tables: Vec<(Table, Changes)>,
}

impl Writes {
    /// Stores a row, or removes it. Replaces an earlier change of the same key.
    pub fn set(&mut self, table: Table, key: Vec<u8>, value: Option<Vec<u8>>) {
        match self.tables.iter_mut().find(|(known, _)| *known == table) {
            Some((_, rows)) => {
                rows.insert(key, value);
            }
            None => self.tables.push((table, BTreeMap::from([(key, value)]))),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The rows to store, by table, in ascending order of keys.
    pub(super) fn puts(&self) -> Vec<Puts<'_>> {
        let puts = self.tables.iter().map(|(table, rows)| {
            let rows = rows.iter().filter_map(|(key, value)| Some((key.as_slice(), value.as_deref()?)));
            let (keys, values) = rows.unzip();
            Puts { table: *table, keys, values }
        });
        puts.filter(|puts| !puts.keys.is_empty()).collect()
    }

    /// Keys of the rows to remove, by table, in ascending order.
    pub(super) fn removes(&self) -> Vec<(Table, Vec<&[u8]>)> {
        let removes = self.tables.iter().map(|(table, rows)| {
            let removed = rows.iter().filter(|(_, value)| value.is_none());
            (*table, removed.map(|(key, _)| key.as_slice()).collect::<Vec<_>>())
        });
        removes.filter(|(_, keys)| !keys.is_empty()).collect()
    }
}
