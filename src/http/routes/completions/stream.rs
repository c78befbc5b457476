//! A text completion as server-sent events, in OpenAI's format.

use actix_web::HttpResponse;

use super::response::{TextChoice, TextChunk, TextOffset, echoed, logprobs};
use crate::calls::completions::RunningCompletion;
use crate::calls::generation::RunningText;
use crate::engine::TextDelta;
use crate::http::routes::completion_body::finish_reason;
use crate::http::routes::generation_stream::{self, EventSource};
use crate::http::routes::sampling_fields::StreamOptions;
use crate::http::sse;
use crate::ids::RequestId;

pub fn respond(running: RunningCompletion, options: StreamOptions, request_id: Option<RequestId>) -> HttpResponse {
    let offsets = vec![TextOffset::default(); running.choices() as usize];
    generation_stream::respond(CompletionEvents { running, options, offsets }, request_id)
}

struct CompletionEvents {
    running: RunningCompletion,
    options: StreamOptions,
    /// By choice.
    offsets: Vec<TextOffset>,
}

impl EventSource for CompletionEvents {
    type Call = RunningCompletion;

    fn call(&mut self) -> &mut RunningCompletion {
        &mut self.running
    }

    fn event(&mut self, delta: &TextDelta) -> Option<sse::Event> {
        if delta.text.is_empty() && delta.tokens.is_empty() && delta.token_ids.is_empty() && delta.end.is_none() {
            return None;
        }
        let has_tokens = !delta.tokens.is_empty() || delta.prompt.is_some();
        let offset = self.offsets.get_mut(delta.choice as usize).filter(|_| has_tokens);
        let lists = self.running.logprobs.zip(offset).map(|(top, offset)| {
            let mut lists = echoed(&self.running, delta.choice, delta.prompt.as_deref(), top, offset);
            lists.extend(logprobs(&delta.tokens, offset));
            lists
        });
        let choice = TextChoice {
            text: delta.text.clone(),
            index: delta.choice,
            logprobs: lists,
            prompt_logprobs: None,
            prompt_token_ids: self.running.take_prompt_token_ids(delta.choice),
            token_ids: delta.token_ids.clone(),
            finish_reason: delta.end.map(finish_reason),
        };
        Some(sse::data(&self.chunk(vec![choice])))
    }

    fn last_event(&mut self) -> sse::Event {
        if !self.options.includes_usage() {
            return sse::done();
        }
        let usage = TextChunk { usage: Some(Some(self.running.usage().into())), ..self.chunk(Vec::new()) };
        sse::join(sse::data(&usage), sse::done())
    }
}

impl CompletionEvents {
    fn chunk(&self, choices: Vec<TextChoice>) -> TextChunk<'_> {
        TextChunk {
            id: self.running.id.to_string(),
            object: "text_completion",
            created: self.running.created.as_seconds(),
            model: &self.running.model,
            system_fingerprint: self.running.system_fingerprint(),
            choices,
            usage: self.options.usage_so_far(|| self.running.usage().into()),
        }
    }
}
