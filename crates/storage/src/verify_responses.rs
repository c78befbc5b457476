//! Verification of stored responses.

use super::check_report::{CheckReport, Related, owner, records_with};
use super::response_steps::{self, ResponseGenerationRecord, ResponseStepsRecord};
use super::responses::{OpenResponseRecord, ResponseContentRecord, ResponseRecord};
use super::tables;
use super::transaction::ReadTx;
use crate::error::Result;

/// Checks that a response has its content, and that what is stored of responses belongs to one.
pub(super) fn check(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let related = [tables::RESPONSE_CONTENTS, tables::OPEN_RESPONSES, tables::RESPONSE_STEPS];
    let id = |id: &[u8], _: &ResponseRecord| Ok([(); 3].map(|()| id.to_vec()));
    records_with(tx, report, related, id, |_, record, [content, open, steps]| {
        let content: Option<ResponseContentRecord> = content.record(tx)?;
        let request = open.record(tx)?.map_or(0, |open: OpenResponseRecord| open.request.len() as u64);
        let steps = steps.record(tx)?.map_or(0, |steps: ResponseStepsRecord| steps.json.len() as u64);
        let fits = content.is_some_and(|content| content.bytes() + request + steps == record.bytes);
        let project = record.project;
        Ok((!fits).then(|| format!("a response of {project} has no content or another size")))
    })?;
    let has_none =
        |response: Related, what: &str| Ok((!response.exists()?).then(|| format!("{what} belongs to no response")));
    let response = |id: &[u8], _: &ResponseContentRecord| Ok([id.to_vec()]);
    records_with(tx, report, [tables::RESPONSES], response, |_, _, [response]| has_none(response, "a content"))?;
    let response = |id: &[u8], _: &OpenResponseRecord| Ok([id.to_vec()]);
    records_with(tx, report, [tables::RESPONSES], response, |_, _, [response]| has_none(response, "a request"))?;
    generations(tx, report)?;
    let related = [tables::RESPONSES, tables::RESPONSE_GENERATIONS];
    let keys = |row_key: &[u8], _: &ResponseStepsRecord| Ok([row_key.to_vec(), owner(row_key)]);
    records_with(tx, report, related, keys, |row_key, _, [response, generation]| {
        let Some(part) = response_steps::part_of(row_key) else { return has_none(response, "a list of steps") };
        let generation: Option<ResponseGenerationRecord> = generation.record(tx)?;
        let fits = generation.is_some_and(|generation| part < generation.parts);
        Ok((!fits).then(|| "a part of steps belongs to no generation".into()))
    })
}

/// Checks that a generation is one of an open response and has its last part.
fn generations(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let keys = |id: &[u8], generation: &ResponseGenerationRecord| {
        let last = generation.parts.saturating_sub(1);
        Ok([id.to_vec(), [id, &last.to_be_bytes()].concat()])
    };
    let related = [tables::OPEN_RESPONSES, tables::RESPONSE_STEPS];
    records_with(tx, report, related, keys, |_, generation, [open, last]| {
        let (is_open, is_whole) = (open.exists()?, generation.parts == 0 || last.exists()?);
        Ok((!is_open || !is_whole).then(|| "a generation is not one of an open response, or has lost steps".into()))
    })
}
