//! The events of a streamed response.

use std::collections::VecDeque;
use std::time::Duration;

use super::failure::Failure;
use super::metrics::Reason;
use super::response::Response;
use super::sse::{SseError, SseParser};

/// The media type of server-sent events.
pub const MEDIA_TYPE: &str = "text/event-stream";

/// The data of each event of a response. Dropping it before its end cancels the request.
pub struct EventStream {
    response: Response,
    parser: SseParser,
    events: VecDeque<String>,
    has_ended: bool,
}

impl EventStream {
    pub(super) fn new(response: Response) -> Self {
        Self { response, parser: SseParser::default(), events: VecDeque::new(), has_ended: false }
    }

    /// The data of the next event; `None` at the end. Comments do not count as events. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<String>, Failure> {
        let limit = self.response.timeouts().event;
        let next = tokio::time::timeout(limit, self.next_within(None)).await;
        next.unwrap_or_else(|_| {
            Err(self.response.fail(Reason::Timeout, "it sends no further event within timeouts.event"))
        })
    }

    /// `limit`: the timeout between two reads, if it is not the usual one.
    async fn next_within(&mut self, limit: Option<Duration>) -> Result<Option<String>, Failure> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.has_ended {
                return Ok(None);
            }
            let bytes = match limit {
                Some(limit) => self.response.next_within(limit).await?,
                None => self.response.next().await?,
            };
            let parsed = match bytes {
                Some(bytes) => self.parser.push(&bytes, &mut self.events),
                None => {
                    self.has_ended = true;
                    self.parser.finish().map(|event| self.events.extend(event))
                }
            };
            parsed.map_err(|error: SseError| self.response.malformed(&error.to_string()))?;
        }
    }

    /// Waits for the first event, which [`Self::next`] then returns. Comments do not count. `limit`: for all reads together.
    pub(super) async fn begin(&mut self, limit: Duration) -> Result<(), Failure> {
        let first = tokio::time::timeout(limit, self.next_within(Some(limit))).await;
        let Ok(first) = first else {
            return Err(self.response.fail(Reason::Timeout, "it sends no event within timeouts.first_byte"));
        };
        match first? {
            Some(first) => {
                self.events.push_front(first);
                Ok(())
            }
            None => Err(self.response.malformed("its event stream is empty")),
        }
    }

    /// The first event, once [`Self::begin`] has seen it.
    pub(super) fn first(&self) -> Option<&str> {
        self.events.front().map(String::as_str)
    }

    /// An event makes no sense. The cause goes into the log.
    pub fn malformed(&mut self, cause: &str) -> Failure {
        self.response.malformed(cause)
    }

    /// The events are more than the request allows.
    pub fn too_large(&mut self) -> Failure {
        self.response.too_large()
    }

    /// Notes that the target tells token counts that cannot be true.
    pub fn doubt_usage(&self) {
        self.response.doubt_usage();
    }

    pub(super) fn response(&mut self) -> &mut Response {
        &mut self.response
    }
}
