//! Verification of stored responses.

use super::check_report::{CheckReport, records};
use super::response_steps::{self, ResponseGenerationRecord, ResponseStepsRecord};
use super::responses::{OpenResponseRecord, ResponseContentRecord, ResponseRecord};
use super::tables;
use super::transaction::{ReadTx, Reader};
use crate::error::Result;

/// Checks that a response has its content, and that what is stored of responses belongs to one.
pub(super) fn check(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |id, record: ResponseRecord| {
        let content: Option<ResponseContentRecord> = tx.get(id)?;
        let request = tx.get(id)?.map_or(0, |open: OpenResponseRecord| open.request.len() as u64);
        let steps = tx.get(id)?.map_or(0, |steps: ResponseStepsRecord| steps.json.len() as u64);
        let fits = content.is_some_and(|content| content.bytes() + request + steps == record.bytes);
        let project = record.project;
        Ok((!fits).then(|| format!("a response of {project} has no content or another size")))
    })?;
    let has_none = |id: &[u8], what: &str| {
        let found = tx.raw(tables::RESPONSES, id)?;
        Ok(found.is_none().then(|| format!("{what} belongs to no response")))
    };
    records(tx, report, &mut |id, _: ResponseContentRecord| has_none(id, "a content"))?;
    records(tx, report, &mut |id, _: OpenResponseRecord| has_none(id, "a request"))?;
    generations(tx, report)?;
    records(tx, report, &mut |row_key, _: ResponseStepsRecord| {
        let Some(part) = response_steps::part_of(row_key) else { return has_none(row_key, "a list of steps") };
        let generation: Option<ResponseGenerationRecord> = tx.get(row_key.get(..16).unwrap_or_default())?;
        let fits = generation.is_some_and(|generation| part < generation.parts);
        Ok((!fits).then(|| "a part of steps belongs to no generation".into()))
    })
}

/// Checks that a generation is one of an open response and has its last part.
fn generations(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |id, generation: ResponseGenerationRecord| {
        let is_open = tx.raw(tables::OPEN_RESPONSES, id)?.is_some();
        let last = generation.parts.checked_sub(1).map(|last| [id, &last.to_be_bytes()].concat());
        let is_whole = match last {
            Some(last) => tx.raw(tables::RESPONSE_STEPS, &last)?.is_some(),
            None => true,
        };
        Ok((!is_open || !is_whole).then(|| "a generation is not one of an open response, or has lost steps".into()))
    })
}
