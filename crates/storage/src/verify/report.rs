//! The report of a check, and the scans of tables that fill it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::codec::{self, Record};
use crate::error::{Error, Result};
use crate::tables::Table;
use crate::transaction::{ReadTx, Reader as _};

/// Max problems listed in a report.
const MAX_PROBLEMS: usize = 100;
/// Records whose related rows are read together, and how many if these rows may be large.
const PAGE_ROWS: usize = 256;
const PAGE_ROWS_OF_LARGE: usize = 8;
/// Approximate max bytes of a page.
const PAGE_BYTES: usize = 2 << 20;

/// The report of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Records by table.
    pub records: BTreeMap<String, u64>,
    /// Size of the database file.
    pub bytes: u64,
    /// Problems, one sentence each; empty if none.
    pub problems: Vec<String>,
    /// redb had to rebuild its own bookkeeping (offline check only).
    pub repaired: bool,
}

impl CheckReport {
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    pub(crate) fn problem(&mut self, text: String) {
        match self.problems.len() {
            ..MAX_PROBLEMS => self.problems.push(text),
            MAX_PROBLEMS => self.problems.push("further problems are not shown".into()),
            _ => {}
        }
    }

    /// Adds what the check of a record has found.
    fn note(&mut self, found: Result<Option<String>>) {
        match found {
            Ok(None) => {}
            Ok(Some(problem)) => self.problem(problem),
            Err(error) => self.problem(cause(&error)),
        }
    }
}

/// Checks one record; returns the problem, if any.
type Inspect<'a, R> = &'a mut dyn FnMut(&[u8], R) -> Result<Option<String>>;

/// Decodes every record of a table. Damaged records are reported and skipped.
pub(crate) fn records<R: Record>(tx: &ReadTx, report: &mut CheckReport, each: Inspect<'_, R>) -> Result<()> {
    tx.visit(R::TABLE, &[], None, &mut |key, bytes| {
        report.note(codec::decode(tx.pepper(), key, bytes).and_then(|record| each(key, record)));
        Ok(ControlFlow::Continue(()))
    })
}

/// A row that belongs to a record that is checked.
pub(crate) struct Related {
    key: Vec<u8>,
    bytes: Result<Option<Vec<u8>>>,
}

impl Related {
    pub fn exists(self) -> Result<bool> {
        Ok(self.bytes?.is_some())
    }

    pub fn record<R: Record>(self, tx: &ReadTx) -> Result<Option<R>> {
        self.bytes?.map(|bytes| codec::decode(tx.pepper(), &self.key, &bytes)).transpose()
    }
}

/// A record, and the keys of the rows that belong to it.
type Row<R, const N: usize> = (Vec<u8>, R, [Vec<u8>; N]);

/// As [`records`], with a row of each of `tables`, whose `keys` a record tells. These rows are read for many records at once.
pub(crate) fn records_with<R: Record, const N: usize>(
    tx: &ReadTx,
    report: &mut CheckReport,
    tables: [Table; N],
    keys: impl Fn(&[u8], &R) -> Result<[Vec<u8>; N]>,
    mut each: impl FnMut(&[u8], R, [Related; N]) -> Result<Option<String>>,
) -> Result<()> {
    let are_large = tables.iter().any(|table| table.has_large_values());
    let page_rows = if are_large { PAGE_ROWS_OF_LARGE } else { PAGE_ROWS };
    let (mut page, mut page_bytes) = (Vec::new(), 0);
    let mut check = |report: &mut CheckReport, page: Vec<Row<R, N>>| {
        let mut columns = std::array::from_fn::<_, N, _>(|at| {
            let keys: Vec<Vec<u8>> = page.iter().map(|(_, _, keys)| keys[at].clone()).collect();
            find(tx, tables[at], &keys).into_iter()
        });
        for (key, record, mut keys) in page {
            let related = std::array::from_fn(|at| Related {
                key: std::mem::take(&mut keys[at]),
                bytes: columns[at].next().unwrap_or(Ok(None)),
            });
            report.note(each(&key, record, related));
        }
    };
    tx.visit(R::TABLE, &[], None, &mut |key, bytes| {
        let decoded = codec::decode(tx.pepper(), key, bytes);
        match decoded.and_then(|record| Ok((key.to_vec(), keys(key, &record)?, record))) {
            Ok((key, keys, record)) => page.push((key, record, keys)),
            Err(error) => report.note(Err(error)),
        }
        page_bytes += bytes.len();
        if page.len() >= page_rows || page_bytes >= PAGE_BYTES {
            page_bytes = 0;
            check(report, std::mem::take(&mut page));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    check(report, page);
    Ok(())
}

/// The rows of several keys. One by one if one of them cannot be read, because others may be sound.
fn find(tx: &ReadTx, table: Table, keys: &[Vec<u8>]) -> Vec<Result<Option<Vec<u8>>>> {
    match tx.raw_all(table, keys) {
        Ok(found) => found.into_iter().map(Ok).collect(),
        Err(_) => keys.iter().map(|key| tx.raw(table, key)).collect(),
    }
}

/// The id of the record to which a row belongs; the row's key begins with it.
pub(crate) fn owner(row_key: &[u8]) -> Vec<u8> {
    row_key.get(..16).unwrap_or_default().to_vec()
}

/// The cause of an error, for the operator.
pub(crate) fn cause(error: &Error) -> String {
    error.cause().map_or_else(|| error.to_string(), ToString::to_string)
}
