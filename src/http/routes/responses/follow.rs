//! The events of a response in the background, from its beginning or from any number on, while it is generated or later.

use std::sync::Arc;

use actix_web::HttpResponse;
use actix_web::web::Data;
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::response::Failure;
use super::stream::EventEncoder;
use crate::calls::responses::item_format::ItemFormat;
use crate::calls::responses::live::{LiveEnd, LiveResponse, generation_of};
use crate::calls::responses::shared_steps;
use crate::calls::turn::output::OutputItems;
use crate::error::{Code, Error, Result};
use crate::http::response_budget::Room;
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
        begun: None,
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
    /// The generation whose events are sent.
    begun: Option<Begun>,
    events: EventEncoder,
    phase: Phase,
}

/// A generation that has begun.
#[derive(Clone, Copy)]
struct Begun {
    /// Its number, if nodes share the store.
    number: Option<u64>,
    format: ItemFormat,
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
        let keep_alive = Instant::now() + sse::KEEP_ALIVE;
        loop {
            self.changes.mark_unchanged();
            let update = shared_steps::update(&self.api.services.responses, self.stored.id, &self.live);
            let Ok(next_update) = timeout_at(keep_alive, update).await else { return Some(sse::keep_alive()) };
            let end = self.add_new_steps();
            if let Some(event) = self.events.take() {
                return Some(event);
            }
            if let Some(end) = end {
                self.phase = Phase::Ended;
                return Some(self.end(end).await.unwrap_or_else(|error| self.fail(&error)));
            }
            let wait = next_update.map_or(keep_alive, |update| update.min(keep_alive));
            let is_changed = timeout_at(wait, self.changes.changed()).await.is_ok();
            if !is_changed && Instant::now() >= keep_alive {
                return Some(sse::keep_alive());
            }
        }
    }

    /// Adds the events of new steps. Returns why there will be no more.
    fn add_new_steps(&mut self) -> Option<LiveEnd> {
        let news = self.live.steps_after(self.known);
        if let (Some(format), None) = (news.format, self.begun) {
            self.begun = Some(Begun { number: news.generation, format });
            self.events.add_response("response.in_progress", &at_first(&self.stored.response, "in_progress"));
        }
        let Some(Begun { number, format }) = self.begun else { return news.end };
        if news.generation != number {
            // Events of two generations must not be mixed.
            return Some(LiveEnd::Interrupted);
        }
        self.known += news.steps.len();
        for step in &news.steps {
            self.output.apply(step);
            self.events.add_step(step, (&self.output, format));
        }
        news.end
    }

    /// The last events, after the response has ended.
    async fn end(&mut self, end: LiveEnd) -> Result<sse::Event> {
        if end == LiveEnd::Interrupted {
            return Err(interrupted());
        }
        let read = |limit| self.api.services.responses.get(&self.access, self.stored.id, limit);
        let stored = Room::unlimited().read(1, read).await?;
        if end == LiveEnd::Closed && self.was_generated_again().await? {
            return Err(interrupted());
        }
        let response: Value = serde_json::from_str(&stored.response).map_err(Error::internal)?;
        let status = response.get("status").and_then(Value::as_str).unwrap_or_default();
        match status {
            "queued" => Err(interrupted()),
            "failed" => {
                let text = |name: &str| response.pointer(name).and_then(Value::as_str).unwrap_or_default();
                let (code, message) = (text("/error/code"), text("/error/message"));
                Ok(self.events.failed(code, message, None, &response))
            }
            _ => {
                // A response that was cancelled ends in the middle of an item.
                let is_whole = status != "cancelled" && end != LiveEnd::LacksSteps;
                if let Some(Begun { format, .. }) = self.begun.filter(|_| is_whole) {
                    self.events.end_item((&self.output, format), status == "incomplete");
                }
                Ok(self.events.end(status, &response))
            }
        }
    }

    /// Whether another node has generated what is stored: this one was too slow, and had to give the response up.
    async fn was_generated_again(&self) -> Result<bool> {
        let Some(number) = self.begun.and_then(|begun| begun.number).filter(|_| self.live.is_generated_here()) else {
            return Ok(false);
        };
        let steps = self.api.services.responses.steps(&self.access, self.stored.id).await?;
        Ok(steps.and_then(|json| generation_of(&json)).is_some_and(|stored| stored != number))
    }

    fn fail(&mut self, error: &Error) -> sse::Event {
        let failure = Failure::of(error, None, Ok(()));
        let response = at_first(&self.stored.response, "failed");
        self.events.failed(&failure.code, &failure.message, error.param_name(), &response)
    }
}

/// The error of a stream whose server stops, or whose response begins again.
fn interrupted() -> Error {
    let text = "The stream was interrupted because a server has stopped. The response is not lost. Retrieve it later, or stream it again from its beginning: if it is generated again, it has new events.";
    Error::new(Code::ShuttingDown, text)
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
