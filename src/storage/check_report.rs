//! The report of a check, and the scan of a table that fills it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::codec::{self, Record};
use super::transaction::{ReadTx, Reader as _};
use crate::error::{Error, Result};

/// Max problems listed in a report.
const MAX_PROBLEMS: usize = 100;

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

    pub(super) fn problem(&mut self, text: String) {
        match self.problems.len() {
            ..MAX_PROBLEMS => self.problems.push(text),
            MAX_PROBLEMS => self.problems.push("further problems are not shown".into()),
            _ => {}
        }
    }
}

/// Checks one record; returns the problem, if any.
type Inspect<'a, R> = &'a mut dyn FnMut(&[u8], R) -> Result<Option<String>>;

/// Decodes every record of a table. Damaged records are reported and skipped.
pub(super) fn records<R: Record>(tx: &ReadTx, report: &mut CheckReport, each: Inspect<'_, R>) -> Result<()> {
    tx.visit(R::TABLE, &[], None, &mut |key, bytes| {
        let found = codec::decode(tx.pepper(), key, bytes).and_then(|record| each(key, record));
        match found {
            Ok(None) => {}
            Ok(Some(problem)) => report.problem(problem),
            Err(error) => report.problem(cause(&error)),
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// The cause of an error, for the operator.
pub(super) fn cause(error: &Error) -> String {
    error.cause().map_or_else(|| error.to_string(), ToString::to_string)
}
