//! A text completion in OpenAI's format, whole or as server-sent events.

use super::response::{TextChoice, TextChunk, TextOffset, completion, echoed, logprobs};
use crate::calls::text::completions::RunningCompletion;
use crate::calls::text::generation::RunningText;
use crate::calls::turn::Turn;
use crate::calls::turn::output::TurnEvent;
use crate::http::authentication::Caller;
use crate::http::response::{ApiResult, Head};
use crate::http::routes::completion_body::finish_reason;
use crate::http::routes::sampling_fields::StreamOptions;
use crate::http::routes::turn_response::TurnEncoder;
use crate::http::sse;

pub struct CompletionEncoder {
    turn: Turn<RunningCompletion>,
    options: StreamOptions,
    /// By choice.
    offsets: Vec<TextOffset>,
}

impl TurnEncoder for CompletionEncoder {
    type Call = RunningCompletion;

    fn turn(&mut self) -> &mut Turn<RunningCompletion> {
        &mut self.turn
    }

    fn whole(self, caller: &Caller) -> ApiResult {
        let head = Head { id: self.turn.call.id, object: "text_completion", state: None };
        caller.reply(head, completion(&self.turn))
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

impl CompletionEncoder {
    /// `options`: those of a stream.
    pub fn new(turn: Turn<RunningCompletion>, options: StreamOptions) -> Self {
        let offsets = vec![TextOffset::default(); turn.outputs().len()];
        Self { turn, options, offsets }
    }

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
