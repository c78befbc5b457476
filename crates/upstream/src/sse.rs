//! Parses server-sent events (WHATWG HTML, section 9.2). Only their data matters here: names and IDs are skipped.

use std::collections::VecDeque;

/// Max bytes of a line. The longest ones are tool calls and log-probabilities.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Max bytes of the data of one event, which may have several lines.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Why a stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("a line of the event stream has more than {MAX_LINE_BYTES} bytes")]
    LongLine,
    #[error("an event of the stream has more than {MAX_EVENT_BYTES} bytes")]
    LongEvent,
    #[error("the event stream is not UTF-8")]
    NotUtf8,
}

/// Turns the bytes of a stream into the data of its events.
#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    /// The data of the current event; `None` before its first data line.
    data: Option<Vec<u8>>,
    /// Set if the last byte was a carriage return. A line feed after it does not end another line.
    after_return: bool,
    has_begun: bool,
}

impl SseParser {
    /// Reads the next bytes, and adds the data of each complete event to `events`.
    pub fn push(&mut self, bytes: &[u8], events: &mut VecDeque<String>) -> Result<(), SseError> {
        let mut rest = bytes;
        if self.after_return && !rest.is_empty() {
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
            self.after_return = false;
        }
        while let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (head, tail) = rest.split_at(end);
            self.extend_line(head)?;
            events.extend(self.end_line()?);
            rest = match tail {
                [b'\r', b'\n', more @ ..] | [_, more @ ..] => more,
                [] => &[],
            };
            self.after_return = tail == b"\r";
        }
        self.extend_line(rest)
    }

    /// The data of an event that the end of the stream cuts off before its empty line. Some servers leave that out after
    /// the last event.
    pub fn finish(&mut self) -> Result<Option<String>, SseError> {
        let event = self.end_line()?;
        event.map_or_else(|| self.dispatch(), |event| Ok(Some(event)))
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + bytes.len() > MAX_LINE_BYTES {
            return Err(SseError::LongLine);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    /// Reads a complete line. An empty one ends the event.
    fn end_line(&mut self) -> Result<Option<String>, SseError> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if !std::mem::replace(&mut self.has_begun, true) {
            line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        }
        if line.is_empty() {
            return self.dispatch();
        }
        let Some(value) = line.strip_prefix(b"data") else { return Ok(None) };
        let value = match value {
            [] => value,
            [b':', b' ', value @ ..] | [b':', value @ ..] => value,
            // A field with a longer name.
            _ => return Ok(None),
        };
        let data = match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data
            }
            none => none.insert(Vec::new()),
        };
        if data.len() + value.len() > MAX_EVENT_BYTES {
            return Err(SseError::LongEvent);
        }
        data.extend_from_slice(value);
        Ok(None)
    }

    fn dispatch(&mut self) -> Result<Option<String>, SseError> {
        let data = self.data.take().map(String::from_utf8).transpose();
        data.map_err(|_| SseError::NotUtf8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a stream whose bytes arrive in pieces of this size.
    fn parse(stream: &str, piece: usize) -> Result<Vec<String>, SseError> {
        let (mut parser, mut events) = (SseParser::default(), VecDeque::new());
        for bytes in stream.as_bytes().chunks(piece) {
            parser.push(bytes, &mut events)?;
        }
        events.extend(parser.finish()?);
        Ok(events.into())
    }

    #[test]
    fn events_are_the_same_however_their_bytes_arrive() {
        let stream = "\u{feff}: a comment\n\ndata: {\"é\":1}\n\nevent: x\rdata:two\r\rid: 7\r\ndata: a\r\ndata\r\ndata:  b\r\n\r\n\
                      retry: 5\ndatum: no\n\n\ndata: [DONE]";
        let expected = ["{\"é\":1}", "two", "a\n\n b", "[DONE]"];
        for piece in 1..=stream.len() {
            assert_eq!(parse(stream, piece).unwrap(), expected, "{piece}");
        }
    }

    #[test]
    fn sizes_are_bounded() {
        let line = format!("data: {}\n", "x".repeat(MAX_LINE_BYTES));
        assert_eq!(parse(&line, 4096), Err(SseError::LongLine));
        let comment = format!(":{}", "x".repeat(MAX_LINE_BYTES));
        assert_eq!(parse(&comment, 4096), Err(SseError::LongLine));
        let part = format!("data: {}\n", "x".repeat(MAX_LINE_BYTES - 6));
        assert_eq!(parse(&part.repeat(3), 4096).unwrap().len(), 1);
        assert_eq!(parse(&part.repeat(5), 4096), Err(SseError::LongEvent));
    }

    #[test]
    fn data_must_be_text() {
        let (mut parser, mut events) = (SseParser::default(), VecDeque::new());
        assert_eq!(parser.push(b"data: \xff\n\n", &mut events), Err(SseError::NotUtf8));
    }
}
