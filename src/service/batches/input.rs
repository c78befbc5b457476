//! Reads the input of a batch line by line. At most a line and a chunk are in memory.

use std::collections::HashSet;
use std::sync::Arc;

use super::request_line::RequestLine;
use crate::error::{Error, Result};
use crate::ids::FileId;
use crate::service::training_data::trim_line;
use crate::storage::Store;
use crate::storage::batches::BatchEndpoint;
use crate::storage::content_chunks::{self, CHUNK_BYTES};

/// Max bytes of a line, as of the body of a request.
pub(super) const MAX_LINE_BYTES: usize = 8 << 20;

/// The lines of a file that are not blank. Blocking.
pub(super) struct InputLines {
    store: Store,
    file: FileId,
    next_chunk: u32,
    chunks: u32,
    /// Content that is read; the next line begins at `start`.
    buffer: Vec<u8>,
    start: usize,
    /// Lines that are read, with blank ones.
    count: u32,
}

/// A line with its number, counted from 1.
pub(super) struct InputLine {
    pub number: u32,
    /// `None`: it is too long.
    pub text: Option<Vec<u8>>,
}

impl InputLines {
    pub fn new(store: Store, file: FileId, chunks: u32) -> Self {
        Self { store, file, next_chunk: 0, chunks, buffer: Vec::new(), start: 0, count: 0 }
    }

    /// The next line; `None` after the last, and after one that is too long. 404 if the file was deleted.
    pub fn next(&mut self) -> Result<Option<InputLine>> {
        while let Some(line) = self.next_with_blanks()? {
            if line.text.as_ref().is_none_or(|text| !text.is_empty()) {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }

    fn next_with_blanks(&mut self) -> Result<Option<InputLine>> {
        let mut searched = self.start;
        let end = loop {
            let found = self.buffer.get(searched..).and_then(|rest| rest.iter().position(|byte| *byte == b'\n'));
            if let Some(at) = found {
                break searched + at;
            }
            searched = self.buffer.len();
            if searched.saturating_sub(self.start) > MAX_LINE_BYTES || !self.read_chunk(&mut searched)? {
                break self.buffer.len();
            }
        };
        if self.start >= self.buffer.len() {
            return Ok(None);
        }
        self.count = self.count.saturating_add(1);
        let line = self.buffer.get(self.start..end).unwrap_or_default();
        let text = (line.len() <= MAX_LINE_BYTES).then(|| trim_line(line).to_vec());
        self.start = end + 1;
        if text.is_none() {
            self.next_chunk = self.chunks;
            self.buffer.clear();
        }
        Ok(Some(InputLine { number: self.count, text }))
    }

    /// Appends the next chunk to the rest of the buffer. `false`: there is none.
    fn read_chunk(&mut self, searched: &mut usize) -> Result<bool> {
        if self.next_chunk == self.chunks {
            return Ok(false);
        }
        let (file, index) = (self.file, self.next_chunk);
        let chunk = self.store.read_blocking(|tx| content_chunks::get(tx, file, index))?;
        let chunk = chunk.ok_or_else(|| Error::not_found("file", file))?;
        self.next_chunk += 1;
        let read = self.start.min(self.buffer.len());
        self.buffer.drain(..read);
        *searched -= read;
        self.start = 0;
        self.buffer.extend_from_slice(&chunk);
        // A long line must not keep its memory.
        self.buffer.shrink_to(2 * CHUNK_BYTES);
        Ok(true)
    }
}

/// A request that has no result yet.
#[derive(Clone, Debug)]
pub struct PendingRequest {
    /// Its line, counted from 1.
    pub line: u32,
    pub custom_id: String,
    /// The JSON of its body.
    pub body: Arc<str>,
}

/// The requests of a batch that have no result yet.
pub struct BatchInput {
    lines: InputLines,
    endpoint: BatchEndpoint,
    /// The lines that had a result when this was opened.
    done: HashSet<u32>,
}

impl BatchInput {
    pub(super) fn new(lines: InputLines, endpoint: BatchEndpoint, done: HashSet<u32>) -> Self {
        Self { lines, endpoint, done }
    }

    /// The next request; `None` after the last. 404 if the file was deleted.
    pub async fn next(mut self) -> Result<(Self, Option<PendingRequest>)> {
        let read = move || {
            let next = self.next_blocking()?;
            Ok((self, next))
        };
        tokio::task::spawn_blocking(read).await.unwrap_or_else(|panic| Err(Error::internal(panic)))
    }

    fn next_blocking(&mut self) -> Result<Option<PendingRequest>> {
        while let Some(line) = self.lines.next()? {
            if self.done.contains(&line.number) {
                continue;
            }
            let text = line.text.unwrap_or_default();
            // The input was valid, and files do not change.
            let request =
                RequestLine::parse(&text, self.endpoint).map_err(|problem| Error::internal(problem.message))?;
            let (custom_id, body) = (request.custom_id(), Arc::from(request.body.get()));
            return Ok(Some(PendingRequest { line: line.number, custom_id, body }));
        }
        Ok(None)
    }
}
