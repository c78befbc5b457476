//! What callers hand in and get back.

use crate::engine::error::Failure;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::engine::runtime::Runtime;
use crate::engine::text::grammar::CompiledGrammar;
pub use crate::engine::text::sampler::Sampling;
use crate::engine::text::tools::ToolCallDelta;

/// A request for text.
#[derive(Clone, Debug)]
pub struct GenerationRequest {
    pub prompt: Vec<u32>,
    /// Answers to the one prompt; they share its computation.
    pub choices: u32,
    pub max_tokens: u32,
    pub sampling: Sampling,
    /// What every answer is held to; `None` is free text.
    pub form: Option<CompiledGrammar>,
    /// Texts that end an answer and are not part of it; they are not looked for in calls.
    pub stop: Vec<String>,
    /// `Some(n)`: log-probabilities of the chosen tokens and of the `n` likeliest, 0 to 20.
    pub logprobs: Option<u8>,
    /// Whoever shares the machine fairly with the others.
    pub tenant: u128,
}

/// A request that was taken.
#[derive(Debug)]
pub struct Generation {
    pub prompt_tokens: u32,
    pub pieces: DeltaStream,
}

/// What one step made of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct TextDelta {
    pub choice: u32,
    /// Whole characters; empty while a character is incomplete or a stop string may have begun.
    pub text: String,
    /// What it made of calls, which come after all text.
    pub calls: Vec<ToolCallDelta>,
    /// Filled only when log-probabilities were asked for; never with the end-of-sequence token.
    pub tokens: Vec<TokenInfo>,
    /// Tokens of this choice so far, the end-of-sequence token included.
    pub generated: u32,
    /// Prompt tokens that were taken over from an earlier prompt of the tenant.
    pub cached: u32,
    /// Set in the choice's last piece.
    pub end: Option<FinishReason>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenInfo {
    pub token: TokenLogprob,
    pub top: Vec<TokenLogprob>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    pub id: u32,
    pub bytes: Vec<u8>,
    pub logprob: f32,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// By the model's own end, or a stop string.
    Stop,
    /// By calls that wait for their results.
    Calls,
    /// `max_tokens` were generated.
    Length,
}

pub type Sent = Result<TextDelta, Failure>;

/// The answer, piece by piece. Dropping it cancels the request: there is no other signal.
pub struct DeltaStream {
    receiver: mpsc::Receiver<Sent>,
    /// How many pieces may wait; the sequence pauses when they do.
    capacity: usize,
    runtime: Arc<Runtime>,
}

impl DeltaStream {
    pub(in crate::engine) fn new(receiver: mpsc::Receiver<Sent>, capacity: usize, runtime: Arc<Runtime>) -> Self {
        Self { receiver, capacity, runtime }
    }

    /// The next piece; `None` after the last piece of the last choice, or after a failure.
    pub async fn recv(&mut self) -> Option<Result<TextDelta, Failure>> {
        let piece = self.receiver.recv().await;
        if self.receiver.len() + 1 >= self.capacity {
            self.runtime.wake();
        }
        piece
    }

    /// Takes no more, and gives what was made already but not received.
    pub fn leave(&mut self) -> impl Iterator<Item = TextDelta> {
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
