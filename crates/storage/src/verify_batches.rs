//! Verification of batches and their results.

use std::ops::ControlFlow;

use super::batches::{BatchRecord, BatchResultRecord, OpenBatchRow};
use super::check_report::{CheckReport, owner, records_with};
use super::tables;
use super::transaction::{ReadTx, Reader};
use crate::error::Result;

/// Checks that the counts of a batch that has not ended match its results, and that results and the index of open batches
/// belong to a batch.
pub(super) fn check(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let entry = |id: &[u8], _: &BatchRecord| Ok([id.to_vec()]);
    records_with(tx, report, [tables::OPEN_BATCHES], entry, |id, batch, [open]| {
        if batch.times.ended.is_some() {
            return Ok(None);
        }
        let (mut completed, mut failed, mut bytes) = (0, 0, 0);
        tx.each(id, None, &mut |_, result: BatchResultRecord| {
            *(if result.succeeded { &mut completed } else { &mut failed }) += 1;
            bytes += result.json.len() as u64;
            Ok(ControlFlow::Continue(()))
        })?;
        let fits = (completed, failed, bytes) == (batch.completed, batch.failed, batch.result_bytes);
        let is_open = open.exists()?;
        let project = batch.project;
        Ok((!fits || !is_open)
            .then(|| format!("a batch of {project} has {completed} and {failed} results, or is not listed as open")))
    })?;
    let batch = |row_key: &[u8], _: &BatchResultRecord| Ok([owner(row_key)]);
    records_with(tx, report, [tables::OPEN_BATCHES], batch, |_, _, [open]| {
        Ok((!open.exists()?).then(|| "a result belongs to no open batch".into()))
    })?;
    let batch = |id: &[u8], _: &OpenBatchRow| Ok([id.to_vec()]);
    records_with(tx, report, [tables::BATCHES], batch, |_, _, [batch]| {
        Ok((!batch.exists()?).then(|| "an open batch does not exist".into()))
    })
}
