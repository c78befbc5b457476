//! A completion as server-sent events, in llama.cpp's format: the last event has `stop: true`, and nothing follows it.

use actix_web::HttpResponse;

use super::response::Form;
use crate::calls::completions::RunningCompletion;
use crate::calls::generation::Choice;
use crate::engine::{FinishReason, TextDelta};
use crate::http::routes::generation_stream::{self, EventSource};
use crate::http::sse;
use crate::ids::RequestId;

pub fn respond(running: RunningCompletion, form: Form, request_id: Option<RequestId>) -> HttpResponse {
    let events = CompletionEvents { running, form, has_new_line: false, ending: FinishReason::Stop };
    generation_stream::respond(events, request_id)
}

struct CompletionEvents {
    running: RunningCompletion,
    form: Form,
    /// Whether the text so far has a line break.
    has_new_line: bool,
    /// How the text ended.
    ending: FinishReason,
}

impl EventSource for CompletionEvents {
    type Call = RunningCompletion;

    fn call(&mut self) -> &mut RunningCompletion {
        &mut self.running
    }

    fn event(&mut self, delta: &TextDelta) -> Option<sse::Event> {
        self.ending = delta.end.unwrap_or(self.ending);
        self.has_new_line |= delta.text.contains('\n');
        let is_sent = !delta.text.is_empty() || !delta.token_ids.is_empty();
        is_sent.then(|| sse::data(&self.form.part(delta, &self.running)))
    }

    fn last_event(&mut self) -> sse::Event {
        let end = Choice { ending: Some(self.ending), ..Choice::default() };
        sse::data(&self.form.last(end, self.has_new_line, &self.running))
    }
}
