//! A chat completion in OpenAI's format, whole or as server-sent events: with or without the reasoning, and stored before its
//! end is sent.

use std::borrow::Cow;

use super::conversation_fields;
use super::request::Storing;
use super::response::{Chunk, ChunkChoice, Delta, call_deltas, completion, logprobs};
use crate::calls::text::chat::RunningChat;
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::{KeptTokens, OutputItems, TurnEvent};
use crate::error::{Error, Result};
use crate::http::Api;
use crate::http::authentication::Caller;
use crate::http::response::{ApiResult, Head};
use crate::http::routes::completion_body::finish_reason;
use crate::http::routes::sampling_fields::StreamOptions;
use crate::http::routes::turn_response::TurnEncoder;
use crate::http::sse;
use crate::service::access::Access;
use crate::service::chat_completions::{ChatCompletions, StoredChatCompletion};

/// Where a completion is stored, and with what.
pub struct Storage {
    pub completions: ChatCompletions,
    pub access: Access,
    pub storing: Storing,
}

pub struct ChatEncoder {
    turn: Turn,
    /// `None` if the completion is not stored.
    storage: Option<Storage>,
    /// Whether the completion has the reasoning.
    includes_reasoning: bool,
    options: StreamOptions,
    /// By choice.
    role_sent: Vec<bool>,
}

impl TurnEncoder for ChatEncoder {
    type Call = RunningChat;

    fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }

    async fn store(&self) -> Result<()> {
        let Some(Storage { completions, access, storing }) = &self.storage else { return Ok(()) };
        let chat = &self.turn.call;
        let completion = completion(&self.turn, self.includes_reasoning);
        let stored = StoredChatCompletion {
            id: chat.id,
            model: chat.model.clone(),
            metadata: storing.metadata.clone(),
            messages: storing.messages.clone(),
            completion: serde_json::to_string(&completion).map_err(Error::internal)?,
            created_at: chat.created,
        };
        completions.create(access, stored).await
    }

    fn whole(self, caller: &Caller) -> ApiResult {
        let head = Head { id: self.turn.call.id, object: "chat.completion", state: None };
        caller.reply(head, completion(&self.turn, self.includes_reasoning))
    }

    fn event(&mut self, event: &TurnEvent) -> Option<sse::Event> {
        let first = self.role_sent.get_mut(event.choice as usize).is_some_and(|seen| !std::mem::replace(seen, true));
        let prompt_token_ids = self.turn.call.prompt_token_ids.take();
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
            usage: Some(Some(self.turn.call.usage().into())),
            conversation: conversation_fields::conversation(&self.turn.call),
            truncated_messages: self.turn.call.truncated,
            ..self.chunk(Vec::new())
        };
        sse::join(sse::data(&usage), sse::done())
    }
}

impl ChatEncoder {
    /// `stream`: the options of a stream; `None` if the response is not streamed.
    pub fn new(
        chat: RunningChat,
        storage: Option<Storage>,
        includes_reasoning: bool,
        stream: Option<StreamOptions>,
        api: &Api,
    ) -> Self {
        let has_body = stream.is_none() || storage.is_some();
        let kept = if has_body { KeptTokens::All } else { KeptTokens::None };
        let turn = Turn::new(chat, OutputItems::or_empty(kept), api.clock_rng.clone());
        let role_sent = vec![false; turn.outputs().len()];
        Self { turn, storage, includes_reasoning, options: stream.unwrap_or_default(), role_sent }
    }

    /// `None` if the event adds nothing.
    fn delta_choice<'a>(&self, event: &'a TurnEvent, first: bool) -> Option<ChunkChoice<'a>> {
        let chat = &self.turn.call;
        let TurnEvent { choice, tokens, token_ids, .. } = event;
        let tool_calls = call_deltas(chat.call_ids, *choice, &event.steps);
        let [reasoning, added] =
            [event.reasoning(), event.text()].map(|text| Some(text).filter(|text| !text.is_empty()));
        let reasoning = reasoning.filter(|_| self.includes_reasoning);
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
        let chat = &self.turn.call;
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
