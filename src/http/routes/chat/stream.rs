//! A chat response as server-sent events, in OpenAI's format.
//!
//! The response body owns the running call: when the client disconnects, actix drops the body, which
//! drops the receiver and stops the generation.

use std::time::Duration;

use actix_web::HttpResponse;
use futures_util::Stream;
use futures_util::stream;

use super::conversation_fields;
use super::request::StreamOptions;
use super::response::{Chunk, ChunkChoice, Delta, call_deltas, finish_reason, logprobs};
use crate::calls::chat::RunningChat;
use crate::engine::TextDelta;
use crate::error::Error;
use crate::http::error::in_stream;
use crate::http::sse;
use crate::ids::RequestId;
use crate::service::usage::Outcome;

/// Interval of keep-alive comments.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

pub fn respond(running: RunningChat, options: StreamOptions, request_id: Option<RequestId>) -> HttpResponse {
    sse::response(events(running, options, request_id))
}

struct Events {
    running: RunningChat,
    options: StreamOptions,
    request_id: Option<RequestId>,
    role_sent: Vec<bool>,
    finished: bool,
}

fn events(
    running: RunningChat,
    options: StreamOptions,
    request_id: Option<RequestId>,
) -> impl Stream<Item = sse::Event> {
    let role_sent = vec![false; running.choices as usize];
    let state = Events { running, options, request_id, role_sent, finished: false };
    stream::unfold(state, |mut state| async move {
        if state.finished {
            return None;
        }
        let event = state.next().await;
        Some((event, state))
    })
}

impl Events {
    async fn next(&mut self) -> sse::Event {
        let keep_alive = tokio::time::Instant::now() + KEEP_ALIVE;
        loop {
            match tokio::time::timeout_at(keep_alive, self.running.next()).await {
                Err(_) => return sse::keep_alive(),
                Ok(Some(Ok(delta))) => {
                    if let Some(event) = self.delta(&delta) {
                        return event;
                    }
                }
                Ok(Some(Err(error))) => return self.fail(error).await,
                Ok(None) => return self.end().await,
            }
        }
    }

    /// The event of a delta; `None` if it adds nothing that the client sees.
    fn delta(&mut self, delta: &TextDelta) -> Option<sse::Event> {
        let first = self.role_sent.get_mut(delta.choice as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        let is_empty = !first && delta.text.is_empty() && delta.calls.is_empty() && delta.tokens.is_empty();
        let delta_choice = (!is_empty).then(|| sse::data(&self.chunk(vec![self.delta_choice(delta, first)])));
        let Some(ending) = delta.end else { return delta_choice };
        // OpenAI ends a choice with a separate chunk whose delta is empty.
        let last = ChunkChoice {
            index: delta.choice,
            delta: Delta::default(),
            logprobs: None,
            finish_reason: Some(finish_reason(ending)),
        };
        let close = sse::data(&self.chunk(vec![last]));
        Some(match delta_choice {
            Some(delta_choice) => sse::join(delta_choice, close),
            None => close,
        })
    }

    fn delta_choice<'a>(&self, delta: &'a TextDelta, first: bool) -> ChunkChoice<'a> {
        let text = Some(delta.text.as_str()).filter(|text| !text.is_empty() || !self.running.may_call);
        ChunkChoice {
            index: delta.choice,
            delta: Delta {
                role: first.then_some("assistant"),
                content: (first || !delta.text.is_empty()).then_some(text),
                tool_calls: call_deltas(&self.running, delta.choice, &delta.calls),
            },
            logprobs: logprobs(&delta.tokens, self.running.logprobs && !delta.tokens.is_empty()),
            finish_reason: None,
        }
    }

    fn chunk<'a>(&'a self, choices: Vec<ChunkChoice<'a>>) -> Chunk<'a> {
        Chunk {
            id: self.running.id.to_string(),
            object: "chat.completion.chunk",
            created: self.running.created.as_seconds(),
            model: &self.running.model,
            choices,
            usage: self.options.include_usage.then_some(None),
            conversation: None,
            truncated_messages: None,
        }
    }

    /// An error after the stream began: one event in the usual error format, and no `[DONE]`.
    async fn fail(&mut self, error: Error) -> sse::Event {
        self.finished = true;
        let recorded = self.running.close(Outcome::of_status(error.code().status())).await;
        in_stream(&error, self.request_id, recorded).unwrap_or_else(sse::done)
    }

    /// The last events. Usage is durable before they are sent.
    async fn end(&mut self) -> sse::Event {
        if let Err(error) = self.running.close(Outcome::Succeeded).await {
            return self.fail(error).await;
        }
        self.finished = true;
        if !self.options.include_usage {
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
