//! Generation requests and the stream of deltas they return.

use crate::error::Failure;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::runtime::Runtime;
use crate::text::grammar::CompiledGrammar;
use crate::text::prompt::Prompt;
use crate::text::reasoning::ReasoningRequest;
pub use crate::text::sampler::Sampling;
use crate::text::tools::ToolCallDelta;

/// A request to generate text.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    pub prompt: Prompt,
    /// `Some(n)`: log-probabilities of the prompt's tokens and of the `n` most likely ones at each position, 0 to 20.
    pub prompt_logprobs: Option<u8>,
    /// Number of choices for the prompt; they share its prefill.
    pub choices: u32,
    /// 0: the prompt is computed, and nothing is generated.
    pub max_tokens: u32,
    pub sampling: Sampling,
    /// The grammar that constrains every choice; `None` is free text.
    pub grammar: Option<CompiledGrammar>,
    /// The reasoning that is split from the text; `None`: everything is text.
    pub reasoning: Option<ReasoningRequest>,
    /// Stop strings: they end a choice. Not searched for in reasoning and tool calls.
    pub stop: Vec<String>,
    pub text: TextOptions,
    /// `Some(n)`: log-probabilities of the sampled tokens and of the `n` most likely ones, 0 to 20. A token that ends a choice
    /// without text is left out, unless those of the prompt are requested: then all tokens of the choice have them.
    pub logprobs: Option<u8>,
    /// The tenant that fair scheduling charges.
    pub tenant: u128,
}

/// How tokens become text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextOptions {
    /// Keeps the stop string, or the token that ends a choice, in its text.
    pub keeps_stop: bool,
    /// Keeps the text of control tokens.
    pub keeps_special_tokens: bool,
    /// Adds the IDs of tokens to deltas.
    pub has_token_ids: bool,
}

/// An accepted request.
#[derive(Debug)]
pub struct Generation {
    pub prompt_tokens: u32,
    pub deltas: DeltaStream,
}

/// The output that one step adds to one choice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextDelta {
    pub choice: u32,
    /// Whole characters of the reasoning; it comes before all text.
    pub reasoning: String,
    /// Whole characters; empty while a character is incomplete or a stop string may have begun.
    pub text: String,
    /// Tool call deltas; they come after all text.
    pub calls: Vec<ToolCallDelta>,
    /// Empty unless log-probabilities were requested. Those of reasoning are left out, and most often that of a token that
    /// ends the choice without text: see [`GenerationRequest::logprobs`].
    pub tokens: Vec<TokenInfo>,
    /// The tokens of the prompt, in the first delta of each choice, if their log-probabilities were requested.
    pub prompt: Option<Arc<[PromptToken]>>,
    /// Empty unless token IDs were requested. All tokens, also those without text.
    pub token_ids: Vec<u32>,
    /// Generated tokens of this choice so far, including the end-of-sequence token.
    pub generated: u32,
    /// Number of them that are reasoning, with its markers.
    pub reasoning_tokens: u32,
    /// Prompt tokens that came from the tenant's prefix cache.
    pub cached: u32,
    /// Set in the last delta of the choice.
    pub end: Option<FinishReason>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenInfo {
    pub token: TokenLogprob,
    /// Whether it is a control token that adds no text.
    pub is_control: bool,
    pub top: Vec<TokenLogprob>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    pub id: u32,
    pub bytes: Vec<u8>,
    pub logprob: f32,
}

/// A token of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptToken {
    pub id: u32,
    pub bytes: Vec<u8>,
    pub is_control: bool,
    /// `None` for the first token, which nothing predicts.
    pub logprob: Option<PromptLogprob>,
}

/// How likely a token of a prompt is after those before it.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptLogprob {
    pub logprob: f32,
    /// 1 for the most likely token.
    pub rank: u32,
    /// The most likely tokens, in order.
    pub top: Vec<TokenLogprob>,
}

/// Why a choice ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model generated an end-of-sequence token or a stop token, or the grammar is complete.
    Stop,
    /// The model generated the stop string with this index.
    StopString(usize),
    /// The model called tools and waits for their results.
    ToolCalls,
    /// `max_tokens` tokens were generated.
    Length,
}

pub type DeltaResult = Result<TextDelta, Failure>;

/// The deltas of a generation. Dropping the stream cancels the request; there is no other signal.
pub struct DeltaStream {
    receiver: mpsc::Receiver<DeltaResult>,
    runtime: Arc<Runtime>,
}

impl DeltaStream {
    pub(crate) fn new(receiver: mpsc::Receiver<DeltaResult>, runtime: Arc<Runtime>) -> Self {
        Self { receiver, runtime }
    }

    /// The next delta; `None` after the last delta of the last choice, or after a failure. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Result<TextDelta, Failure>> {
        std::future::poll_fn(|context| self.poll_recv(context)).await
    }

    /// Like [`Self::recv`], for a caller that waits for several streams.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<TextDelta, Failure>>> {
        let delta = self.receiver.poll_recv(context);
        // There was no room, so a choice may have paused. Choices that wait for a slot hold room, too.
        if delta.is_ready() && self.receiver.capacity() <= 1 {
            self.runtime.wake();
        }
        delta
    }

    /// Closes the stream. Returns the deltas that were sent but not received yet.
    pub fn close(&mut self) -> impl Iterator<Item = TextDelta> {
        self.receiver.close();
        std::iter::from_fn(|| self.receiver.try_recv().ok()).filter_map(Result::ok)
    }
}

impl Drop for DeltaStream {
    fn drop(&mut self) {
        self.receiver.close();
        self.runtime.wake();
    }
}

impl std::fmt::Debug for DeltaStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeltaStream").field("waiting", &self.receiver.len()).finish_non_exhaustive()
    }
}
