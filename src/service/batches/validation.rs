//! Validation of a batch's input. Blocking.

use std::collections::HashSet;

use ring::digest::{SHA256, digest};

use super::input::{InputLine, InputLines, MAX_LINE_BYTES};
use super::request_line::{LineProblem, RequestLine};
use crate::error::{Code, Result};
use crate::storage::batches::{BatchEndpoint, BatchErrorRecord as BatchError};

/// Max requests of a batch, as in OpenAI's API.
pub const MAX_REQUESTS: u32 = 50_000;
/// Errors that are reported; then the validation ends.
const MAX_ERRORS: usize = 100;

/// The number of requests, or what is wrong with the input.
pub(super) type Validated = std::result::Result<u32, Vec<BatchError>>;

/// Reads the whole input. The outer error: it cannot be read now.
pub(super) fn validate(mut lines: InputLines, endpoint: BatchEndpoint) -> Result<Validated> {
    let mut validation = Validation { endpoint, ids: HashSet::new(), requests: 0, errors: Vec::new() };
    loop {
        match lines.next() {
            Ok(Some(line)) => validation.line(&line),
            Ok(None) => break,
            Err(error) if error.code() == Code::NotFound => return Ok(Err(vec![input_deleted()])),
            Err(error) => return Err(error),
        }
        if validation.errors.len() >= MAX_ERRORS || validation.requests > MAX_REQUESTS {
            break;
        }
    }
    Ok(validation.finish())
}

/// The error of a batch whose input was deleted before it ended.
pub(super) fn input_deleted() -> BatchError {
    let message = "The input file was deleted before the batch ended. Keep it until then.".to_owned();
    BatchError { code: "input_file_deleted".to_owned(), message, param: Some("input_file_id".to_owned()), line: None }
}

struct Validation {
    endpoint: BatchEndpoint,
    /// Beginnings of the digests of all `custom_id`s.
    ids: HashSet<[u8; 16]>,
    requests: u32,
    errors: Vec<BatchError>,
}

impl Validation {
    fn line(&mut self, InputLine { number, text }: &InputLine) {
        self.requests += 1;
        if let Err(LineProblem { code, message, param }) = self.check(text.as_deref()) {
            let param = param.map(str::to_owned);
            self.errors.push(BatchError { code: code.to_owned(), message, param, line: Some(*number) });
        }
    }

    fn check(&mut self, text: Option<&[u8]>) -> std::result::Result<(), LineProblem> {
        let Some(text) = text else {
            let message = format!("The line is longer than {MAX_LINE_BYTES} bytes. Send less in one request.");
            return Err(LineProblem { code: "line_too_long", message, param: None });
        };
        let id = RequestLine::parse(text, self.endpoint)?.custom_id();
        let mut start = [0; 16];
        start.copy_from_slice(digest(&SHA256, id.as_bytes()).as_ref().get(..16).unwrap_or(&[0; 16]));
        if self.ids.insert(start) {
            return Ok(());
        }
        let message = "An earlier line has the same 'custom_id'. Give each line its own.".to_owned();
        Err(LineProblem { code: "duplicate_custom_id", message, param: Some("custom_id") })
    }

    fn finish(mut self) -> Validated {
        let whole =
            |code: &str, message: String| BatchError { code: code.to_owned(), message, param: None, line: None };
        if self.requests == 0 {
            self.errors.push(whole("empty_file", "The input has no requests. Put one on each line.".to_owned()));
        }
        if self.requests > MAX_REQUESTS {
            let message = format!("The input has more than {MAX_REQUESTS} requests. Split it into several batches.");
            self.errors.push(whole("too_many_requests", message));
        }
        if self.errors.is_empty() { Ok(self.requests) } else { Err(self.errors) }
    }
}
