//! A text completion as server-sent events, in OpenAI's format.

use actix_web::HttpResponse;

use super::response::{TextChoice, TextChunk, TextOffset, echoed, logprobs};
use crate::calls::completions::RunningCompletion;
use crate::calls::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::http::routes::completion_body::finish_reason;
use crate::http::routes::generation_stream::{self, EventSource};
use crate::http::routes::sampling_fields::StreamOptions;
use crate::http::sse;
use crate::ids::RequestId;

pub fn respond(turn: Turn<RunningCompletion>, options: StreamOptions, request_id: Option<RequestId>) -> HttpResponse {
    let offsets = vec![TextOffset::default(); turn.outputs().len()];
    generation_stream::respond(CompletionEvents { turn, options, offsets }, request_id)
}

struct CompletionEvents {
    turn: Turn<RunningCompletion>,
    options: StreamOptions,
    /// By choice.
    offsets: Vec<TextOffset>,
}

impl EventSource for CompletionEvents {
    type Call = RunningCompletion;

    fn turn(&mut self) -> &mut Turn<RunningCompletion> {
        &mut self.turn
    }

    fn event(&mut self, event: &TurnEvent) -> Option<sse::Event> {
        let TurnEvent { choice: index, tokens, token_ids, prompt, ending, .. } = event;
        let text = event.text();
        if text.is_empty() && tokens.is_empty() && token_ids.is_empty() && ending.is_none() {
            return None;
        }
        let running = &mut self.turn.call;
        let has_tokens = !tokens.is_empty() || prompt.is_some();
        let offset = self.offsets.get_mut(*index as usize).filter(|_| has_tokens);
        let lists = running.logprobs.zip(offset).map(|(top, offset)| {
            let mut lists = echoed(running, *index, prompt.as_deref(), top, offset);
            lists.extend(logprobs(tokens, offset));
            lists
        });
        let choice = TextChoice {
            text: text.into_owned(),
            index: *index,
            logprobs: lists,
            prompt_logprobs: None,
            prompt_token_ids: running.take_prompt_token_ids(*index),
            token_ids: token_ids.clone(),
            finish_reason: ending.map(finish_reason),
        };
        Some(sse::data(&self.chunk(vec![choice])))
    }

    fn last_event(&mut self) -> sse::Event {
        if !self.options.includes_usage() {
            return sse::done();
        }
        let usage = TextChunk { usage: Some(Some(self.turn.call.usage().into())), ..self.chunk(Vec::new()) };
        sse::join(sse::data(&usage), sse::done())
    }
}

impl CompletionEvents {
    fn chunk(&self, choices: Vec<TextChoice>) -> TextChunk<'_> {
        let running = &self.turn.call;
        TextChunk {
            id: running.id.to_string(),
            object: "text_completion",
            created: running.created.as_seconds(),
            model: &running.model,
            system_fingerprint: running.system_fingerprint(),
            choices,
            usage: self.options.usage_so_far(|| running.usage().into()),
        }
    }
}
