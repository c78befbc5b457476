//! Generated text as server-sent events, or as lines of JSON: keep-alives while it is awaited, one event for an error, and
//! usage that is durable before the stream ends.
//!
//! The response body owns the running call: when the client disconnects, actix drops the body, which drops the receivers
//! and stops the generation.

use actix_web::HttpResponse;
use futures_util::{Stream, StreamExt, stream};

use crate::calls::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::error::{Error, Result};
use crate::http::error::in_stream;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::usage::Outcome;

/// A running turn and how its events become those of an API.
pub(super) trait EventSource: 'static {
    type Call: RunningText;

    fn turn(&mut self) -> &mut Turn<Self::Call>;

    /// What the next delta adds; `None` when all choices have ended. Cancel-safe.
    async fn next(&mut self) -> Option<Result<TurnEvent>> {
        self.turn().next().await
    }

    /// Records the usage durably.
    async fn close(&mut self, outcome: Outcome) -> Result<()> {
        self.turn().call.close(outcome).await
    }

    /// What the client is sent; `None` if nothing is added that it sees.
    fn event(&mut self, event: &TurnEvent) -> Option<sse::Event>;

    /// The events before the first delta.
    fn first_event(&self) -> Option<sse::Event> {
        None
    }

    /// What is sent while nothing else is.
    fn keep_alive(&self) -> sse::Event {
        sse::keep_alive()
    }

    /// The last events of a complete stream.
    fn last_event(&mut self) -> sse::Event;

    /// The last event of a stream that fails. `recorded`: whether its usage was recorded.
    fn error_event(&self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> sse::Event {
        in_stream(error, request_id, recorded).unwrap_or_else(sse::done)
    }
}

/// The response with the events of `source`.
pub(super) fn respond(source: impl EventSource, request_id: Option<RequestId>) -> HttpResponse {
    sse::response(events(source, request_id))
}

/// The events of `source`.
pub(super) fn events(
    source: impl EventSource,
    request_id: Option<RequestId>,
) -> impl Stream<Item = sse::Event> + 'static {
    let first = stream::iter(source.first_event());
    let state = Events { source, request_id, finished: false };
    let others = stream::unfold(state, |mut state| async move {
        if state.finished {
            return None;
        }
        let event = state.next().await;
        Some((event, state))
    });
    first.chain(others)
}

struct Events<S> {
    source: S,
    request_id: Option<RequestId>,
    finished: bool,
}

impl<S: EventSource> Events<S> {
    async fn next(&mut self) -> sse::Event {
        let keep_alive = tokio::time::Instant::now() + sse::KEEP_ALIVE;
        loop {
            match tokio::time::timeout_at(keep_alive, self.source.next()).await {
                Err(_) => return self.source.keep_alive(),
                Ok(Some(Ok(event))) => {
                    if let Some(event) = self.source.event(&event) {
                        return event;
                    }
                }
                Ok(Some(Err(error))) => return self.fail(error).await,
                Ok(None) => return self.end().await,
            }
        }
    }

    /// An error after the stream began: one event.
    async fn fail(&mut self, error: Error) -> sse::Event {
        self.finished = true;
        let recorded = self.source.close(Outcome::of_status(error.code().status())).await;
        self.source.error_event(&error, self.request_id, recorded)
    }

    /// The last events. Usage is durable before they are sent.
    async fn end(&mut self) -> sse::Event {
        if let Err(error) = self.source.close(Outcome::Succeeded).await {
            return self.fail(error).await;
        }
        self.finished = true;
        self.source.last_event()
    }
}
