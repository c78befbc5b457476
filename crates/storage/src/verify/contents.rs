//! Verification of resources whose content is in other tables: responses, chat completions and batches.

use std::ops::ControlFlow;

use super::report::{CheckReport, Related, owner, records_with};
use crate::error::Result;
use crate::records::batches::{BatchRecord, BatchResultRecord, OpenBatchRow};
use crate::records::chat_completions::{ChatCompletionContentRecord, ChatCompletionRecord};
use crate::records::response_steps::{self, ResponseGenerationRecord, ResponseStepsRecord};
use crate::records::responses::{OpenResponseRecord, ResponseContentRecord, ResponseRecord};
use crate::tables;
use crate::transaction::{ReadTx, Reader};

/// Checks that a response has its content, and that what is stored of responses belongs to one.
pub(super) fn responses(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
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

/// Checks that a completion has its content, and that a content belongs to a completion.
pub(super) fn chat_completions(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    let id = |id: &[u8], _: &ChatCompletionRecord| Ok([id.to_vec()]);
    records_with(tx, report, [tables::CHAT_COMPLETION_CONTENTS], id, |_, record, [content]| {
        let content: Option<ChatCompletionContentRecord> = content.record(tx)?;
        let metadata = record.metadata.as_ref().map_or(0, |text| text.len() as u64);
        let fits = content.is_some_and(|content| content.bytes() + metadata == record.bytes);
        let project = record.project;
        Ok((!fits).then(|| format!("a chat completion of {project} has no content or another size")))
    })?;
    let id = |id: &[u8], _: &ChatCompletionContentRecord| Ok([id.to_vec()]);
    records_with(tx, report, [tables::CHAT_COMPLETIONS], id, |_, _, [completion]| {
        Ok((!completion.exists()?).then(|| "a content belongs to no chat completion".into()))
    })
}

/// Checks that the counts of a batch that has not ended match its results, and that results and the index of open batches
/// belong to a batch.
pub(super) fn batches(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
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
