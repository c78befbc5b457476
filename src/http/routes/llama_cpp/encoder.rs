//! A completion in llama.cpp's format. The last event of a stream has `stop: true`, and nothing follows it.

use super::response::Form;
use crate::calls::text::completions::RunningCompletion;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::http::authentication::Caller;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::TurnEncoder;
use crate::http::sse;

pub struct CompletionEncoder {
    pub turn: Turn<RunningCompletion>,
    pub form: Form,
}

impl TurnEncoder for CompletionEncoder {
    type Call = RunningCompletion;

    fn turn(&mut self) -> &mut Turn<RunningCompletion> {
        &mut self.turn
    }

    fn whole(self, caller: &Caller) -> ApiResult {
        Ok(caller.mount.bare(self.turn.call.id, self.form.whole(&self.turn)))
    }

    fn event(&mut self, event: &TurnEvent) -> Option<sse::Event> {
        let is_sent = !event.text().is_empty() || !event.token_ids.is_empty();
        is_sent.then(|| sse::data(&self.form.part(event, &self.turn.call)))
    }

    fn last_event(&mut self) -> sse::Event {
        sse::data(&self.form.last(&self.turn, String::new(), Vec::new()))
    }
}
