//! The events of a response in the background, from its beginning or from any number on, while it is generated or later.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Data;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::live::LiveResponse;
use super::output_items::OutputItems;
use super::response::ItemEncoder;
use super::stream::EventEncoder;
use crate::error::{Code, Error, Result};
use crate::http::error::responses_in_stream;
use crate::http::{Api, sse};
use crate::service::access::Access;
use crate::service::responses::StoredResponse;

/// The events with a number above `after`. `stored`: the response as it is stored.
pub fn respond(
    api: Data<Api>,
    access: Access,
    stored: StoredResponse,
    live: Arc<LiveResponse>,
    after: Option<u64>,
) -> HttpResponse {
    let follower = Follower {
        api,
        access,
        stored,
        changes: live.changes(),
        live,
        output: OutputItems::default(),
        known: 0,
        encoder: None,
        events: EventEncoder::new(0, after),
        phase: Phase::Queued,
    };
    sse::response(stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((event, follower))
    }))
}

struct Follower {
    api: Data<Api>,
    access: Access,
    stored: StoredResponse,
    live: Arc<LiveResponse>,
    changes: watch::Receiver<()>,
    /// The output as far as its events are sent.
    output: OutputItems,
    /// The number of steps whose events are sent.
    known: usize,
    encoder: Option<ItemEncoder>,
    events: EventEncoder,
    phase: Phase,
}

/// What is sent next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Queued,
    Output,
    Ended,
}

impl Follower {
    async fn next(&mut self) -> Option<sse::Event> {
        match self.phase {
            Phase::Queued => {
                self.phase = Phase::Output;
                let queued = at_first(&self.stored.response, "queued");
                self.events.add_response("response.created", &queued);
                self.events.add_response("response.queued", &queued);
            }
            Phase::Output => {}
            Phase::Ended => return None,
        }
        let keep_alive = tokio::time::Instant::now() + sse::KEEP_ALIVE;
        loop {
            self.changes.mark_unchanged();
            let is_closed = self.add_new_steps();
            if let Some(event) = self.events.take() {
                return Some(event);
            }
            if is_closed {
                self.phase = Phase::Ended;
                return Some(self.end().await.unwrap_or_else(|error| self.fail(&error)));
            }
            if tokio::time::timeout_at(keep_alive, self.changes.changed()).await.is_err() {
                return Some(sse::keep_alive());
            }
        }
    }

    /// Adds the events of new steps. Returns whether there will be no more.
    fn add_new_steps(&mut self) -> bool {
        let news = self.live.steps_after(self.known);
        if let (Some(encoder), None) = (news.encoder, self.encoder) {
            self.encoder = Some(encoder);
            self.events.add_response("response.in_progress", &at_first(&self.stored.response, "in_progress"));
        }
        self.known += news.steps.len();
        if let Some(encoder) = self.encoder {
            for step in &news.steps {
                self.output.apply(step);
                self.events.add_step(step, (&self.output, encoder));
            }
        }
        news.is_closed
    }

    /// The last events, after the response has ended.
    async fn end(&mut self) -> Result<sse::Event> {
        let stored = self.api.services.responses.get(&self.access, self.stored.id).await?;
        let response: Value = serde_json::from_str(&stored.response).map_err(Error::internal)?;
        let status = response.get("status").and_then(Value::as_str).unwrap_or_default();
        match status {
            "queued" => {
                let text = "The generation was interrupted and will begin again. Retrieve the response later.";
                Err(Error::new(Code::ShuttingDown, text))
            }
            "failed" => {
                let text = |name: &str| response.pointer(name).and_then(Value::as_str).unwrap_or_default();
                let (code, message) = (text("/error/code"), text("/error/message"));
                Ok(self.events.failed(code, message, None, &response))
            }
            _ => {
                // A response that was cancelled ends in the middle of an item.
                if let Some(encoder) = self.encoder.filter(|_| status != "cancelled") {
                    self.events.end_item((&self.output, encoder), status == "incomplete");
                }
                Ok(self.events.end(status, &response))
            }
        }
    }

    fn fail(&mut self, error: &Error) -> sse::Event {
        let (code, message) = responses_in_stream(error, None, Ok(()));
        let response = at_first(&self.stored.response, "failed");
        self.events.failed(code, &message, error.param_name(), &response)
    }
}

/// A stored response as it was before its output.
fn at_first(response: &str, status: &str) -> Value {
    let Ok(Value::Object(mut fields)) = serde_json::from_str(response) else { return Value::Object(Map::new()) };
    fields.insert("status".to_owned(), json!(status));
    fields.insert("output".to_owned(), json!([]));
    for name in ["completed_at", "error", "incomplete_details", "usage"] {
        fields.insert(name.to_owned(), Value::Null);
    }
    Value::Object(fields)
}
