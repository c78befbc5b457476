//! A chat response as server-sent events, in OpenAI's format.

use actix_web::HttpResponse;

use super::conversation_fields;
use super::response::{Chunk, ChunkChoice, Delta, call_deltas, logprobs};
use super::storing::StoringChat;
use crate::calls::generation::RunningText;
use crate::engine::TextDelta;
use crate::http::routes::completion_body::finish_reason;
use crate::http::routes::generation_stream::{self, EventSource};
use crate::http::routes::sampling_fields::StreamOptions;
use crate::http::sse;
use crate::ids::RequestId;

pub fn respond(running: StoringChat, options: StreamOptions, request_id: Option<RequestId>) -> HttpResponse {
    let role_sent = vec![false; running.choices() as usize];
    generation_stream::respond(ChatEvents { running, options, role_sent }, request_id)
}

struct ChatEvents {
    running: StoringChat,
    options: StreamOptions,
    role_sent: Vec<bool>,
}

impl EventSource for ChatEvents {
    type Call = StoringChat;

    fn call(&mut self) -> &mut StoringChat {
        &mut self.running
    }

    fn event(&mut self, delta: &TextDelta) -> Option<sse::Event> {
        let first = self.role_sent.get_mut(delta.choice as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        let is_empty = !first
            && delta.reasoning.is_empty()
            && delta.text.is_empty()
            && delta.calls.is_empty()
            && delta.tokens.is_empty()
            && delta.token_ids.is_empty();
        let prompt_token_ids = self.running.prompt_token_ids.take();
        let chunk = |choice| Chunk { prompt_token_ids, ..self.chunk(vec![choice]) };
        let delta_choice = (!is_empty).then(|| sse::data(&chunk(self.delta_choice(delta, first))));
        let Some(ending) = delta.end else { return delta_choice };
        // OpenAI ends a choice with a separate chunk whose delta is empty.
        let last = ChunkChoice {
            index: delta.choice,
            delta: Delta::default(),
            logprobs: None,
            token_ids: &[],
            finish_reason: Some(finish_reason(ending)),
        };
        let close = sse::data(&self.chunk(vec![last]));
        Some(match delta_choice {
            Some(delta_choice) => sse::join(delta_choice, close),
            None => close,
        })
    }

    fn last_event(&mut self) -> sse::Event {
        if !self.options.includes_usage() {
            return sse::done();
        }
        let usage = Chunk {
            usage: Some(Some(self.running.usage().into())),
            conversation: conversation_fields::conversation(&self.running),
            truncated_messages: self.running.truncated,
            ..self.chunk(Vec::new())
        };
        sse::join(sse::data(&usage), sse::done())
    }
}

impl ChatEvents {
    fn delta_choice<'a>(&self, delta: &'a TextDelta, first: bool) -> ChunkChoice<'a> {
        let reasoning = Some(delta.reasoning.as_str()).filter(|text| !text.is_empty());
        let may_be_null = self.running.may_call || reasoning.is_some();
        let text = Some(delta.text.as_str()).filter(|text| !text.is_empty() || !may_be_null);
        ChunkChoice {
            index: delta.choice,
            delta: Delta {
                role: first.then_some("assistant"),
                reasoning_content: reasoning,
                reasoning,
                content: (first || !delta.text.is_empty()).then_some(text),
                tool_calls: call_deltas(&self.running, delta.choice, &delta.calls),
            },
            logprobs: logprobs(&delta.tokens, self.running.logprobs && !delta.tokens.is_empty()),
            token_ids: &delta.token_ids,
            finish_reason: None,
        }
    }

    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> Chunk<'a> {
        Chunk {
            id: self.running.id.to_string(),
            object: "chat.completion.chunk",
            created: self.running.created.as_seconds(),
            model: &self.running.model,
            system_fingerprint: self.running.system_fingerprint(),
            choices,
            prompt_token_ids: None,
            usage: self.options.usage_so_far(|| self.running.usage().into()),
            conversation: None,
            truncated_messages: None,
        }
    }
}
