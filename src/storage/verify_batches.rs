//! Verification of batches and their results.

use std::ops::ControlFlow;

use super::batches::{BatchRecord, BatchResultRecord, OpenBatchRow};
use super::check_report::{CheckReport, records};
use super::tables;
use super::transaction::{ReadTx, Reader};
use crate::error::Result;

/// Checks that the counts of a batch that has not ended match its results, and that results and the index of open batches
/// belong to a batch.
pub(super) fn check(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |id, batch: BatchRecord| {
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
        let is_open = tx.raw(tables::OPEN_BATCHES, id)?.is_some();
        let project = batch.project;
        Ok((!fits || !is_open)
            .then(|| format!("a batch of {project} has {completed} and {failed} results, or is not listed as open")))
    })?;
    records(tx, report, &mut |row_key, _: BatchResultRecord| {
        let open = tx.raw(tables::OPEN_BATCHES, row_key.get(..16).unwrap_or_default())?;
        Ok(open.is_none().then(|| "a result belongs to no open batch".into()))
    })?;
    records(tx, report, &mut |id, _: OpenBatchRow| {
        Ok(tx.raw(tables::BATCHES, id)?.is_none().then(|| "an open batch does not exist".into()))
    })
}
