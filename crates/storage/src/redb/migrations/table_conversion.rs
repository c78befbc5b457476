//! Converts the records of a table to another layout.

use std::ops::ControlFlow;

use crate::codec::Record;
use crate::error::Result;
use crate::transaction::{Reader as _, WriteTx};

/// Rewrites every record of a table.
pub(super) fn convert<Old: Record, New: Record + From<Old>>(tx: &WriteTx) -> Result<()> {
    let mut records: Vec<(Vec<u8>, New)> = Vec::new();
    tx.each(&[], None, &mut |key, old: Old| {
        records.push((key.to_vec(), old.into()));
        Ok(ControlFlow::Continue(()))
    })?;
    records.iter().try_for_each(|(key, record)| tx.put(key, record))
}
