//! Verification of stored chat completions.

use super::chat_completions::{ChatCompletionContentRecord, ChatCompletionRecord};
use super::check_report::{CheckReport, records_with};
use super::tables;
use super::transaction::ReadTx;
use crate::error::Result;

/// Checks that a completion has its content, and that a content belongs to a completion.
pub(super) fn check(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
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
