//! A running call that generates text: its deltas, from the engine or from an upstream model, and their usage.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::calls::errors;
use crate::calls::output_format::output_spec::ToolCallIds;
use crate::calls::turn::output::OutputItems;
use crate::calls::upstream::errors::from_failure;
use crate::calls::upstream::text_stream::UpstreamDeltas;
use crate::calls::upstream::told_usage::ToldUsage;
use crate::clock_rng::ClockRng;
use crate::engine::{DeltaStream, TextDelta};
use crate::error::Result;
use crate::service::usage::{Outcome, UsageRecorder};

/// The prompts of a call while the engine completes them. Dropping it cancels the work.
pub struct RunningGeneration {
    prompts: Vec<RunningPrompt>,
    /// Choices of each prompt.
    choices: u32,
    prompt_tokens: u32,
    /// The prompt whose deltas are looked for first.
    next: usize,
    recorder: Arc<UsageRecorder>,
    context_window: u32,
    /// `None` for an upstream model.
    system_fingerprint: Option<String>,
    timings: Timings,
    clock_rng: Arc<dyn ClockRng>,
}

/// When the parts of a call happened, as uptime of the server.
#[derive(Clone, Copy, Debug)]
pub struct Timings {
    /// When the prompts were submitted to the engine: the model was loaded, and the prompts were tokenised.
    pub submitted: Duration,
    /// When the first token arrived.
    pub first: Option<Duration>,
    /// When the last token arrived.
    pub last: Option<Duration>,
}

pub(in crate::calls) struct RunningPrompt {
    deltas: Deltas,
    /// Prompt tokens found in the prefix cache.
    cached: u32,
    /// Tokens generated so far, and how many of them are reasoning, by choice.
    generated: Vec<(u32, u32)>,
}

/// Tokens that a call used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    pub completion_tokens: u32,
    /// How many of the completion's tokens are reasoning.
    pub reasoning_tokens: u32,
}

impl RunningGeneration {
    /// The choices of prompts that have just been submitted, as many of each. `submitted`: when that was; `clock_rng` tells it.
    pub(in crate::calls) fn new(
        prompts: Vec<RunningPrompt>,
        prompt_tokens: u32,
        recorder: Arc<UsageRecorder>,
        (submitted, clock_rng): (Duration, Arc<dyn ClockRng>),
    ) -> Self {
        Self {
            choices: prompts.first().map_or(1, RunningPrompt::choices),
            prompts,
            prompt_tokens,
            next: 0,
            recorder,
            context_window: u32::MAX,
            system_fingerprint: None,
            timings: Timings { submitted, first: None, last: None },
            clock_rng,
        }
    }

    /// Of a model with this context window and fingerprint.
    pub(in crate::calls) fn of_model(mut self, context_window: u32, system_fingerprint: Option<String>) -> Self {
        self.context_window = context_window;
        self.system_fingerprint = system_fingerprint;
        self
    }

    /// The number of choices of all prompts. Those of the first prompt come first.
    pub fn choices(&self) -> u32 {
        self.choices * u32::try_from(self.prompts.len()).unwrap_or(u32::MAX)
    }

    /// The next delta of any choice, numbered across all prompts; `None` when all have ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<TextDelta>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<TextDelta>>> {
        let (count, mut all_ended) = (self.prompts.len(), true);
        for step in 0..count {
            let at = (self.next + step) % count;
            let Some(prompt) = self.prompts.get_mut(at) else { continue };
            match prompt.deltas.poll_recv(context) {
                Poll::Pending => all_ended = false,
                Poll::Ready(None) => {}
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(delta))) => {
                    prompt.count(&delta);
                    self.next = at + 1;
                    self.record();
                    let now = self.clock_rng.uptime();
                    self.timings.first.get_or_insert(now);
                    self.timings.last = Some(now);
                    let first = self.choices * u32::try_from(at).unwrap_or(u32::MAX);
                    return Poll::Ready(Some(Ok(TextDelta { choice: first + delta.choice, ..delta })));
                }
            }
        }
        if all_ended { Poll::Ready(None) } else { Poll::Pending }
    }

    /// The context window of the model.
    pub fn context_window(&self) -> u32 {
        self.context_window
    }

    pub fn timings(&self) -> Timings {
        self.timings
    }

    /// The usage of a request to an upstream model; `None` until the target reports it.
    fn told(&self) -> Option<ToldUsage> {
        match self.prompts.as_slice() {
            [RunningPrompt { deltas: Deltas::Upstream { deltas, .. }, .. }] => deltas.told(),
            _ => None,
        }
    }

    fn record(&self) {
        let usage = self.usage();
        if let Some(told) = self.told() {
            self.recorder.set_input(told.prompt_tokens.into());
            self.recorder.set_estimated(false);
        }
        self.recorder.set_cached(usage.cached_tokens.into());
        self.recorder.set_output(usage.completion_tokens.into());
    }

    /// Records the usage durably; called before the last byte of a stream. For other responses the middleware does
    /// this.
    pub async fn close(&self, outcome: Outcome) -> Result<()> {
        self.recorder.close(outcome).await
    }

    /// Usage so far.
    pub fn usage(&self) -> Usage {
        if let Some(told) = self.told() {
            return Usage {
                prompt_tokens: told.prompt_tokens,
                cached_tokens: told.cached_tokens,
                completion_tokens: told.completion_tokens,
                reasoning_tokens: told.reasoning_tokens,
            };
        }
        let generated = || self.prompts.iter().flat_map(|prompt| &prompt.generated);
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.prompts.iter().map(|prompt| prompt.cached).sum(),
            completion_tokens: generated().map(|(all, _)| all).sum(),
            reasoning_tokens: generated().map(|(_, reasoning)| reasoning).sum(),
        }
    }
}

/// Where the deltas of a prompt come from.
pub(in crate::calls) enum Deltas {
    Engine(DeltaStream),
    /// From the upstream model with this ID.
    Upstream {
        id: String,
        deltas: UpstreamDeltas,
    },
}

impl Deltas {
    fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<TextDelta>>> {
        match self {
            Self::Engine(deltas) => deltas.poll_recv(context).map_err(errors::from_failure),
            Self::Upstream { id, deltas } => deltas.poll_recv(context).map_err(|failure| from_failure(id, failure)),
        }
    }

    /// Cancels the work. Returns the deltas that were not received yet.
    fn close(&mut self) -> Vec<TextDelta> {
        match self {
            Self::Engine(deltas) => deltas.close().collect(),
            Self::Upstream { deltas, .. } => deltas.close(),
        }
    }
}

impl RunningPrompt {
    pub fn new(deltas: Deltas, choices: u32) -> Self {
        Self { deltas, cached: 0, generated: vec![(0, 0); choices as usize] }
    }

    fn choices(&self) -> u32 {
        u32::try_from(self.generated.len()).unwrap_or(u32::MAX)
    }

    /// Counts the tokens that a delta reports.
    fn count(&mut self, delta: &TextDelta) {
        if let Some(generated) = self.generated.get_mut(delta.choice as usize) {
            *generated = (delta.generated, delta.reasoning_tokens);
        }
        self.cached = delta.cached;
    }
}

impl Drop for RunningGeneration {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl RunningGeneration {
    /// Cancels the work. All generated tokens are charged, received or not.
    pub fn cancel(&mut self) {
        let mut has_more = false;
        for prompt in &mut self.prompts {
            let unreceived = prompt.deltas.close();
            unreceived.iter().for_each(|delta| prompt.count(delta));
            has_more |= !unreceived.is_empty();
        }
        if has_more {
            self.record();
        }
    }
}

/// A running call that generates text. Dropping it cancels the work.
#[expect(async_fn_in_trait, reason = "all implementations are in this crate, and none need be `Send`")]
pub trait RunningText {
    fn generation(&self) -> &RunningGeneration;

    /// The next delta of any choice; `None` when all have ended. Cancel-safe.
    async fn next(&mut self) -> Option<Result<TextDelta>>;

    /// The tokens of the prompt, if token IDs are requested. `None`: it has several prompts, or an upstream model runs it.
    fn prompt(&self) -> Option<&[u32]> {
        None
    }

    /// Begins to store its output, which is complete, in its conversation. Returns false if it has no conversation.
    fn begin_storing(&mut self, _output: &OutputItems) -> bool {
        false
    }

    /// Waits until the output is stored, if that has begun. Cancel-safe.
    async fn wait_until_stored(&mut self) -> Result<()> {
        Ok(())
    }

    /// The ids of its tool calls; `None` if it has none.
    fn call_ids(&self) -> Option<ToolCallIds> {
        None
    }

    /// Number of conversation messages left out; `None` if truncation is off.
    fn truncated(&self) -> Option<usize> {
        None
    }

    /// The fields of the request's schemas that the output need not match.
    fn unenforced(&self) -> &[String] {
        &[]
    }

    /// The number of choices of all prompts.
    fn choices(&self) -> u32 {
        self.generation().choices()
    }

    /// What [`Engine::system_fingerprint`](crate::engine::Engine::system_fingerprint) returned when the call began; `None`
    /// for an upstream model.
    fn system_fingerprint(&self) -> Option<&str> {
        self.generation().system_fingerprint.as_deref()
    }

    /// Usage so far, of all prompts together.
    fn usage(&self) -> Usage {
        self.generation().usage()
    }

    /// Records the usage durably; called before the last byte of a stream.
    async fn close(&self, outcome: Outcome) -> Result<()> {
        self.generation().close(outcome).await
    }
}
