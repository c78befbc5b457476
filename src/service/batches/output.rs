//! The results of a batch, and the files that they become.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::value::RawValue;

use super::Batch;
use super::input::InputLines;
use super::request_line::RequestLine;
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::ids::{BatchResultId, RequestId};
use crate::json_lines;
use crate::service::files::contents::{ContentWriter, Contents, WrittenContent};
use crate::storage::Store;
use crate::storage::batches::{self, BatchResultRecord, BatchState};

/// Max bytes of a result. A larger one becomes an error.
const MAX_RESULT_BYTES: usize = 15 << 20;

/// The response to one request.
#[derive(Clone, Debug)]
pub struct BatchResult {
    pub status: u16,
    pub request_id: RequestId,
    /// The JSON of its body.
    pub body: String,
}

/// A line of the output or error file.
#[derive(Serialize)]
struct ResultLine<'a> {
    id: BatchResultId,
    custom_id: &'a str,
    response: Option<ResponseFields<'a>>,
    error: Option<ErrorFields<'a>>,
}

#[derive(Serialize)]
struct ResponseFields<'a> {
    status_code: u16,
    request_id: RequestId,
    body: &'a RawValue,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    code: &'a str,
    message: &'a str,
}

/// The record of a response.
pub(super) fn responded(clock_rng: &dyn ClockRng, custom_id: &str, result: &BatchResult) -> Result<BatchResultRecord> {
    if result.body.len() > MAX_RESULT_BYTES {
        let message = format!(
            "The response has {} bytes; a batch keeps at most {MAX_RESULT_BYTES}. Ask for less in one request.",
            result.body.len()
        );
        return failed(clock_rng, custom_id, "response_too_large", &message);
    }
    let body = serde_json::from_str(&result.body).map_err(Error::internal)?;
    let response = ResponseFields { status_code: result.status, request_id: result.request_id, body };
    let id = BatchResultId::generate(clock_rng);
    let json = to_json(&ResultLine { id, custom_id, response: Some(response), error: None })?;
    Ok(BatchResultRecord { succeeded: result.status < 400, json })
}

/// The record of a request without a response.
fn failed(clock_rng: &dyn ClockRng, custom_id: &str, code: &str, message: &str) -> Result<BatchResultRecord> {
    let error = Some(ErrorFields { code, message });
    let id = BatchResultId::generate(clock_rng);
    Ok(BatchResultRecord { succeeded: false, json: to_json(&ResultLine { id, custom_id, response: None, error })? })
}

fn to_json(line: &ResultLine<'_>) -> Result<String> {
    json_lines::to_string(line).map_err(Error::internal)
}

/// Code and message for requests that were not run.
fn not_run(ends_as: BatchState) -> (&'static str, &'static str) {
    match ends_as {
        BatchState::Cancelled => ("batch_cancelled", "The batch was cancelled before this request was completed."),
        BatchState::Expired => ("batch_expired", "The completion window expired before this request was completed."),
        _ => ("batch_failed", "The batch failed before this request was completed."),
    }
}

/// A file of a batch that ends: its content and digest.
pub(super) type WrittenFile = Option<(WrittenContent, [u8; 32])>;

/// The files of a batch that ends.
pub(super) struct OutputFiles {
    pub output: WrittenFile,
    pub errors: WrittenFile,
}

/// Writes the files of a batch from its results, in the order of the input. Blocking.
///
/// `lines`: the input, with errors for requests that were not run; `None` if it does not exist or was not validated.
pub(super) fn write(
    store: &Store,
    contents: &Contents,
    clock_rng: &dyn ClockRng,
    batch: &Batch,
    lines: Option<InputLines>,
) -> Result<OutputFiles> {
    let mut writer = Writer { output: contents.writer(), errors: contents.writer() };
    let mut left: BTreeSet<u32> =
        store.read_blocking(|tx| batches::lines_with_results(tx, batch.id))?.into_iter().collect();
    let (code, message) = not_run(batch.record.ends_as.unwrap_or(BatchState::Failed));
    let mut lines = lines;
    while let Some(line) = next_line(&mut lines)? {
        let number = line.number;
        if left.remove(&number) {
            writer.stored(store, batch, number)?;
            continue;
        }
        let text = line.text.unwrap_or_default();
        if let Ok(request) = RequestLine::parse(&text, batch.record.endpoint) {
            writer.write(&failed(clock_rng, &request.custom_id(), code, message)?)?;
        }
    }
    // Those whose input was deleted.
    left.into_iter().try_for_each(|number| writer.stored(store, batch, number))?;
    Ok(OutputFiles { output: writer.output.finish()?, errors: writer.errors.finish()? })
}

/// The next line; `None` also if the file was deleted.
fn next_line(lines: &mut Option<InputLines>) -> Result<Option<super::input::InputLine>> {
    let Some(input) = lines else { return Ok(None) };
    match input.next() {
        Err(error) if error.code() == Code::NotFound => Ok(None),
        read => read,
    }
}

struct Writer {
    output: ContentWriter,
    errors: ContentWriter,
}

impl Writer {
    /// Writes the stored result of a line.
    fn stored(&mut self, store: &Store, batch: &Batch, line: u32) -> Result<()> {
        let result = store.read_blocking(|tx| batches::result(tx, batch.id, line))?;
        result.map_or(Ok(()), |result| self.write(&result))
    }

    fn write(&mut self, result: &BatchResultRecord) -> Result<()> {
        let to = if result.succeeded { &mut self.output } else { &mut self.errors };
        to.write(result.json.as_bytes())?;
        to.write(b"\n")
    }
}
