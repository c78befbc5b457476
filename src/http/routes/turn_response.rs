//! The response to a turn: whole, or as the events of a stream. An API for text is a request that becomes a call, and a
//! [`TurnEncoder`]; all else is here: keep-alives while text is awaited, one event for an error, output that is stored and
//! usage that is durable before the stream ends, and headers.
//!
//! The response body owns the running call: when the client disconnects, actix drops the body, which drops the receivers
//! and stops the generation.

use actix_web::HttpResponse;
use actix_web::http::header::HeaderValue;
use futures_util::{Stream, StreamExt, stream};

use super::truncation::TRUNCATED_MESSAGES;
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::error::{Error, Result};
use crate::http::authentication::Caller;
use crate::http::error::in_stream;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::usage::Outcome;

/// A running turn in the format of an API.
pub(super) trait TurnEncoder: Sized + 'static {
    type Call: RunningText;

    fn turn(&mut self) -> &mut Turn<Self::Call>;

    /// An error of the turn, with the names that this API has for the fields.
    fn with_field_names(error: Error) -> Error {
        error
    }

    /// Stores the complete turn, if the request asks for it.
    async fn store(&self) -> Result<()> {
        Ok(())
    }

    /// The response with the complete turn.
    fn whole(self, caller: &Caller) -> ApiResult;

    /// What a stream's client is sent; `None` if nothing is added that it sees.
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
    fn error_event(&mut self, error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> sse::Event {
        in_stream(error, request_id, recorded).unwrap_or_else(sse::done)
    }

    /// The response that streams `events`.
    fn streamed(events: impl Stream<Item = sse::Event> + 'static) -> HttpResponse {
        sse::response(events)
    }
}

/// How a client wants its response.
pub(super) struct Delivery<'a> {
    pub caller: &'a Caller,
    /// Errors in a stream name it; `None`: no client waits.
    pub request_id: Option<RequestId>,
    pub is_streamed: bool,
    /// The fields, options and tools of the request that are left out.
    pub ignored: Vec<String>,
}

impl Delivery<'_> {
    /// Responds with the turn of `encoder`, as far as it has been generated if it is streamed.
    pub async fn send<E: TurnEncoder>(self, mut encoder: E) -> ApiResult {
        let call = &encoder.turn().call;
        let (truncated, unenforced) = (call.truncated(), call.unenforced().to_vec());
        let response = if self.is_streamed {
            self.caller.recorder.defer();
            stream(encoder, self.request_id)
        } else {
            encoder.turn().generate(drop).await.map_err(E::with_field_names)?;
            encoder.store().await?;
            encoder.whole(self.caller)?
        };
        let mut response = with_lists(response, &self.ignored, &unenforced);
        if let Some(count) = truncated {
            response.headers_mut().insert(TRUNCATED_MESSAGES, HeaderValue::from(count));
        }
        Ok(response)
    }
}

/// The response with the events of `encoder`.
fn stream<E: TurnEncoder>(encoder: E, request_id: Option<RequestId>) -> HttpResponse {
    let first = stream::iter(encoder.first_event());
    let state = Events { encoder, request_id, finished: false };
    let others = stream::unfold(state, |mut state| async move {
        if state.finished {
            return None;
        }
        let event = state.next().await;
        Some((event, state))
    });
    E::streamed(first.chain(others))
}

struct Events<E> {
    encoder: E,
    request_id: Option<RequestId>,
    finished: bool,
}

impl<E: TurnEncoder> Events<E> {
    async fn next(&mut self) -> sse::Event {
        let keep_alive = tokio::time::Instant::now() + sse::KEEP_ALIVE;
        loop {
            match tokio::time::timeout_at(keep_alive, self.encoder.turn().next()).await {
                Err(_) => return self.encoder.keep_alive(),
                Ok(Some(Ok(event))) => {
                    if let Some(event) = self.encoder.event(&event) {
                        return event;
                    }
                }
                Ok(Some(Err(error))) => return self.fail(E::with_field_names(error)).await,
                Ok(None) => return self.end().await,
            }
        }
    }

    /// An error after the stream began: one event.
    async fn fail(&mut self, error: Error) -> sse::Event {
        self.finished = true;
        let outcome = Outcome::of_status(error.code().status());
        let recorded = self.encoder.turn().call.close(outcome).await;
        self.encoder.error_event(&error, self.request_id, recorded)
    }

    /// The last events. The output is stored and its usage durable before they are sent.
    async fn end(&mut self) -> sse::Event {
        match self.complete().await {
            Ok(()) => {
                self.finished = true;
                self.encoder.last_event()
            }
            Err(error) => self.fail(error).await,
        }
    }

    async fn complete(&mut self) -> Result<()> {
        self.encoder.turn().require_end()?;
        self.encoder.store().await?;
        self.encoder.turn().call.close(Outcome::Succeeded).await
    }
}
