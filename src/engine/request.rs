//! What callers hand in and get back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::grammar::Form;
use super::preprocessor::Stopped;
use super::queue::Shared;
pub use super::sampler::Sampling;
use super::tools::CallPiece;
use crate::display::format_bytes;
use crate::models::kv::KvType;

/// A request for text.
#[derive(Clone, Debug)]
pub struct Generation {
    pub prompt: Vec<u32>,
    /// Answers to the one prompt; they share its computation.
    pub choices: u32,
    pub max_tokens: u32,
    pub sampling: Sampling,
    /// What every answer is held to; `None` is free text.
    pub form: Option<Form>,
    /// Texts that end an answer and are not part of it; they are not looked for in calls.
    pub stop: Vec<String>,
    /// `Some(n)`: log-probabilities of the chosen tokens and of the `n` likeliest, 0 to 20.
    pub logprobs: Option<u8>,
    /// Whoever shares the machine fairly with the others.
    pub tenant: u128,
}

/// A request that was taken.
#[derive(Debug)]
pub struct Ticket {
    pub prompt_tokens: u32,
    pub pieces: Pieces,
}

/// What one step made of one choice.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    pub choice: u32,
    /// Whole characters; empty while a character is incomplete or a stop string may have begun.
    pub text: String,
    /// What it made of calls, which come after all text.
    pub calls: Vec<CallPiece>,
    /// Filled only when log-probabilities were asked for; never with the end-of-sequence token.
    pub tokens: Vec<TokenInfo>,
    /// Tokens of this choice so far, the end-of-sequence token included.
    pub generated: u32,
    /// Prompt tokens that were taken over from an earlier prompt of the tenant.
    pub cached: u32,
    /// Set in the choice's last piece.
    pub end: Option<Ending>,
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
pub enum Ending {
    /// By the model's own end, or a stop string.
    Stop,
    /// By calls that wait for their results.
    Calls,
    /// `max_tokens` were generated.
    Length,
}

/// Why an answer broke off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Nobody took the pieces for too long.
    #[error("the answer was not read")]
    Unread,
    /// Nothing that may come next fits the form that was demanded, or finding out takes too long.
    #[error("the demanded form cannot be kept: {0}")]
    Format(String),
    /// The memory that it takes is held by other models in use.
    #[error("the memory that it takes is held by other models in use")]
    NoMemory,
    /// The model cannot be computed, or makes no numbers: its files are damaged, or not what they say.
    #[error("the model {id} cannot be used: {reason}")]
    Unusable { id: String, reason: String },
    /// A defect, for the log.
    #[error("generation failed: {0}")]
    Broken(String),
}

impl Failure {
    /// Of a model whose network makes no numbers.
    pub(super) fn not_finite(id: &str) -> Self {
        Self::Unusable { id: id.to_owned(), reason: NOT_FINITE.to_owned() }
    }
}

/// What is wrong with a model where NaN or infinity comes out.
pub(super) const NOT_FINITE: &str = "its network computes values that are not finite numbers";

/// Whether there is neither NaN nor infinity among these. Compares bits, so that many are compared at once.
pub(super) fn are_finite(numbers: &[f32]) -> bool {
    let largest = numbers.iter().map(|number| number.to_bits() & 0x7fff_ffff).fold(0, u32::max);
    largest < f32::INFINITY.to_bits()
}

/// Why a request was not taken. Nothing of it remains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the queue is full")]
    QueueFull { retry_after: Duration },
    /// Its keys and values would not fit if it were alone.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("{0}")]
    Invalid(String),
    /// The fault of the model's files.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Keys and values of one answer take more memory than is left beside the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its keys and values need {} of memory, {} are there beside the model", format_bytes(*needed_bytes), format_bytes(*budget_bytes))]
pub struct TooLarge {
    pub needed_bytes: u64,
    pub budget_bytes: u64,
    /// How they would be kept.
    pub kv_type: KvType,
}

pub(super) type Sent = Result<Piece, Failure>;

/// The answer, piece by piece. Dropping it cancels the request: there is no other signal.
pub struct Pieces {
    receiver: mpsc::Receiver<Sent>,
    /// How many pieces may wait; the sequence pauses when they do.
    capacity: usize,
    shared: Arc<Shared>,
}

impl Pieces {
    pub(super) fn new(receiver: mpsc::Receiver<Sent>, capacity: usize, shared: Arc<Shared>) -> Self {
        Self { receiver, capacity, shared }
    }

    /// The next piece; `None` after the last piece of the last choice, or after a failure.
    pub async fn recv(&mut self) -> Option<Result<Piece, Failure>> {
        let piece = self.receiver.recv().await;
        if self.receiver.len() + 1 >= self.capacity {
            self.shared.wake();
        }
        piece
    }

    /// Takes no more, and gives what was made already but not received.
    pub fn leave(&mut self) -> impl Iterator<Item = Piece> {
        self.receiver.close();
        std::iter::from_fn(|| self.receiver.try_recv().ok()).filter_map(Result::ok)
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.receiver.close();
        self.shared.wake();
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("waiting", &self.receiver.len()).finish_non_exhaustive()
    }
}
