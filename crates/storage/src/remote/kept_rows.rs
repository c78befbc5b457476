//! Rows that this process has written and no other process writes.
//!
//! They need not be read again, so a transaction that only adds to them does not conflict with what other nodes write next to
//! them.

use std::collections::HashMap;

use super::batch::Writes;
use crate::cluster::NodeProcess;
use crate::tables::Table;
use crate::usage;

/// Max rows. If there are more, all are forgotten.
const MAX_ROWS: usize = 16_384;

/// The last committed values of rows that belong to this process.
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
        if self.0.values().map(HashMap::len).sum::<usize>() > MAX_ROWS {
            self.clear();
        }
    }

    /// The outcome of a commit is unknown.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
