//! A chat response as server-sent events, in OpenAI's format.

use std::borrow::Cow;

use actix_web::HttpResponse;

use super::conversation_fields;
use super::response::{Chunk, ChunkChoice, Delta, call_deltas, logprobs};
use super::storing::StoringChat;
use crate::calls::chat::RunningChat;
use crate::calls::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::error::Result;
use crate::http::routes::completion_body::finish_reason;
use crate::http::routes::generation_stream::{self, EventSource};
use crate::http::routes::sampling_fields::StreamOptions;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::usage::Outcome;

pub fn respond(running: StoringChat, options: StreamOptions, request_id: Option<RequestId>) -> HttpResponse {
    let role_sent = vec![false; running.turn.outputs().len()];
    generation_stream::respond(ChatEvents { running, options, role_sent }, request_id)
}

struct ChatEvents {
    running: StoringChat,
    options: StreamOptions,
    role_sent: Vec<bool>,
}

impl EventSource for ChatEvents {
    type Call = RunningChat;

    fn turn(&mut self) -> &mut Turn {
        &mut self.running.turn
    }

    async fn next(&mut self) -> Option<Result<TurnEvent>> {
        self.running.next().await
    }

    async fn close(&mut self, outcome: Outcome) -> Result<()> {
        self.running.close(outcome).await
    }

    fn event(&mut self, event: &TurnEvent) -> Option<sse::Event> {
        let first = self.role_sent.get_mut(event.choice as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        let prompt_token_ids = self.running.turn.call.prompt_token_ids.take();
        let chunk = |choice| Chunk { prompt_token_ids, ..self.chunk(vec![choice]) };
        let delta_choice = self.delta_choice(event, first).map(|choice| sse::data(&chunk(choice)));
        let Some(ending) = event.ending else { return delta_choice };
        // OpenAI ends a choice with a separate chunk whose delta is empty.
        let last = ChunkChoice {
            index: event.choice,
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
            usage: Some(Some(self.running.turn.call.usage().into())),
            conversation: conversation_fields::conversation(&self.running.turn.call),
            truncated_messages: self.running.turn.call.truncated,
            ..self.chunk(Vec::new())
        };
        sse::join(sse::data(&usage), sse::done())
    }
}

impl ChatEvents {
    /// `None` if the event adds nothing.
    fn delta_choice<'a>(&self, event: &'a TurnEvent, first: bool) -> Option<ChunkChoice<'a>> {
        let chat = &self.running.turn.call;
        let TurnEvent { choice, tokens, token_ids, .. } = event;
        let tool_calls = call_deltas(chat.call_ids, *choice, &event.steps);
        let [reasoning, added] =
            [event.reasoning(), event.text()].map(|text| Some(text).filter(|text| !text.is_empty()));
        let is_empty = reasoning.is_none()
            && added.is_none()
            && tool_calls.is_empty()
            && tokens.is_empty()
            && token_ids.is_empty();
        if is_empty && !first {
            return None;
        }
        // Null starts a response that may have no text.
        let is_text = added.is_some();
        let content = added.or((!chat.may_call && reasoning.is_none()).then_some(Cow::Borrowed("")));
        Some(ChunkChoice {
            index: *choice,
            delta: Delta {
                role: first.then_some("assistant"),
                reasoning_content: reasoning.clone(),
                reasoning,
                content: (first || is_text).then_some(content),
                tool_calls,
            },
            logprobs: logprobs(tokens, chat.logprobs && !tokens.is_empty()),
            token_ids,
            finish_reason: None,
        })
    }

    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> Chunk<'a> {
        let chat = &self.running.turn.call;
        Chunk {
            id: chat.id.to_string(),
            object: "chat.completion.chunk",
            created: chat.created.as_seconds(),
            model: &chat.model,
            system_fingerprint: chat.system_fingerprint(),
            choices,
            prompt_token_ids: None,
            usage: self.options.usage_so_far(|| chat.usage().into()),
            conversation: None,
            truncated_messages: None,
        }
    }
}
