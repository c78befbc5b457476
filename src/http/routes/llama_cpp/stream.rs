//! A completion as server-sent events, in llama.cpp's format: the last event has `stop: true`, and nothing follows it.

use actix_web::HttpResponse;

use super::response::Form;
use crate::calls::completions::RunningCompletion;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::http::routes::generation_stream::{self, EventSource};
use crate::http::sse;
use crate::ids::RequestId;

pub fn respond(turn: Turn<RunningCompletion>, form: Form, request_id: Option<RequestId>) -> HttpResponse {
    generation_stream::respond(CompletionEvents { turn, form }, request_id)
}

struct CompletionEvents {
    turn: Turn<RunningCompletion>,
    form: Form,
}

impl EventSource for CompletionEvents {
    type Call = RunningCompletion;

    fn turn(&mut self) -> &mut Turn<RunningCompletion> {
        &mut self.turn
    }

    fn event(&mut self, event: &TurnEvent) -> Option<sse::Event> {
        let is_sent = !event.text().is_empty() || !event.token_ids.is_empty();
        is_sent.then(|| sse::data(&self.form.part(event, &self.turn.call)))
    }

    fn last_event(&mut self) -> sse::Event {
        sse::data(&self.form.last(&self.turn, String::new(), Vec::new()))
    }
}
