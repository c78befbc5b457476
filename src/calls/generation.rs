//! What all calls that generate text share: admission, the submission of prompts to the engine, and the usage of what is
//! generated. A call may have several prompts; they have one usage record.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::errors::{self, ModelErrors};
use super::fine_tuning::TunedModels;
use super::output_spec::{GeneratedCall, append_call_deltas};
use super::prompt_preparation::PromptPreparation;
use crate::clock_rng::ClockRng;
use crate::engine::{
    DeltaStream, Engine, FinishReason, GenerationRequest, TextDelta, TextModel, TokenInfo, TokenizeLimits,
};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::usage::{Outcome, UsageRecorder};

/// Prepares and submits prompts. Clones share the limits of preparation.
#[derive(Clone)]
pub struct TextGeneration {
    pub(super) engine: Engine,
    pub(super) clock_rng: Arc<dyn ClockRng>,
    preparing: PromptPreparation,
    tuned: TunedModels,
}

/// The prompts of a call while the engine completes them. Dropping it cancels the work.
pub(crate) struct RunningGeneration {
    prompts: Vec<RunningPrompt>,
    /// Choices of each prompt.
    choices: u32,
    prompt_tokens: u32,
    /// The prompt whose deltas are looked for first.
    next: usize,
    recorder: Arc<UsageRecorder>,
    context_window: u32,
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

struct RunningPrompt {
    deltas: DeltaStream,
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

/// One complete choice.
#[derive(Default)]
pub struct Choice {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<GeneratedCall>,
    pub tokens: Vec<TokenInfo>,
    pub ending: Option<FinishReason>,
}

impl TextGeneration {
    pub fn new(engine: Engine, clock_rng: Arc<dyn ClockRng>, tuned: TunedModels) -> Self {
        Self { engine, clock_rng, preparing: PromptPreparation::new(), tuned }
    }

    /// Checks the key's permission for the model `id`. A loaded model is returned, after a check that its queue has room.
    pub(super) async fn admit(
        &self,
        access: &Access,
        id: &str,
        recorder: &UsageRecorder,
    ) -> Result<Option<Arc<TextModel>>> {
        self.authorize(access, id).await?;
        let tenant = access.project().to_u128();
        let loaded = self.engine.models().loaded_model(id).filter(|model| model.is_available_to(tenant));
        if let Some(model) = &loaded {
            recorder.set_model(model.id());
            self.engine.check_queue(model, tenant).map_err(|refused| errors::from_refused(model.id(), refused))?;
        }
        Ok(loaded)
    }

    /// Checks the key's permission for the model `id`, which may be one that the project has trained.
    pub(super) async fn authorize(&self, access: &Access, id: &str) -> Result<()> {
        access.require_model(id)?;
        self.tuned.register(access, id).await
    }

    /// Runs `work`, which tokenises `bytes` of text, off the async threads.
    pub(super) async fn prepare<T: Send + 'static>(
        &self,
        access: &Access,
        bytes: usize,
        work: impl FnOnce(&ModelErrors<'_>, TokenizeLimits) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (engine, allowed) = (self.engine.clone(), access.clone());
        let prepared = self
            .preparing
            .run(access.project(), bytes, move |bound| work(&ModelErrors { engine: &engine, access: &allowed }, bound));
        prepared.await
    }

    /// Like [`Self::prepare`], with the chat model `id`, which is loaded if needed.
    pub(super) async fn prepare_with<T: Send + 'static>(
        &self,
        access: &Access,
        id: &str,
        bytes: usize,
        work: impl FnOnce(&TextModel, TokenizeLimits) -> Result<T> + Send + 'static,
    ) -> Result<(Arc<TextModel>, T)> {
        let (id, tenant) = (id.to_owned(), access.project().to_u128());
        let prepared = self.prepare(access, bytes, move |errors, bound| {
            let load = errors.engine.models().load_for(&id, tenant);
            let model = load.map_err(|error| errors.load_failed(&id, &error))?;
            let made = work(&model, bound)?;
            Ok((model, made))
        });
        prepared.await
    }

    /// Charges the prompts to the project and submits them. All have the same number of choices. If one is refused, none
    /// runs.
    pub(super) fn submit(
        &self,
        model: &Arc<TextModel>,
        requests: Vec<GenerationRequest>,
        recorder: Arc<UsageRecorder>,
    ) -> Result<RunningGeneration> {
        let tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
        let choices = requests.first().map_or(1, |request| request.choices);
        recorder.charge_prompt(tokens as u64)?;
        let submitted = self.clock_rng.uptime();
        let submit = |request: GenerationRequest| {
            let generated = vec![(0, 0); request.choices as usize];
            let deltas = self.engine.submit(model, request)?.deltas;
            Ok(RunningPrompt { deltas, cached: 0, generated })
        };
        let prompts: Result<Vec<_>, _> = requests.into_iter().map(submit).collect();
        // A request that never ran is not charged.
        let prompts = prompts.inspect_err(|_| recorder.waive());
        let prompts = prompts.map_err(|refused| errors::from_refused(model.id(), refused))?;
        let prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        Ok(RunningGeneration {
            prompts,
            choices,
            prompt_tokens,
            next: 0,
            recorder,
            context_window: model.context_window(),
            timings: Timings { submitted, first: None, last: None },
            clock_rng: Arc::clone(&self.clock_rng),
        })
    }

    /// The seed of a request that sets none.
    pub(super) fn fresh_seed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.clock_rng.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}

impl RunningGeneration {
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
                Poll::Ready(Some(Err(failure))) => return Poll::Ready(Some(Err(errors::from_failure(failure)))),
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

    fn record(&self) {
        let usage = self.usage();
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
        let generated = || self.prompts.iter().flat_map(|prompt| &prompt.generated);
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.prompts.iter().map(|prompt| prompt.cached).sum(),
            completion_tokens: generated().map(|(all, _)| all).sum(),
            reasoning_tokens: generated().map(|(_, reasoning)| reasoning).sum(),
        }
    }
}

impl RunningPrompt {
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
            let unreceived: Vec<TextDelta> = prompt.deltas.close().collect();
            unreceived.iter().for_each(|delta| prompt.count(delta));
            has_more |= !unreceived.is_empty();
        }
        if has_more {
            self.record();
        }
    }
}

/// A running call that generates text. Dropping it cancels the work.
pub(crate) trait RunningText {
    fn generation(&self) -> &RunningGeneration;

    /// The next delta of any choice; `None` when all have ended. Cancel-safe.
    async fn next(&mut self) -> Option<Result<TextDelta>>;

    /// The number of choices of all prompts.
    fn choices(&self) -> u32 {
        self.generation().choices()
    }

    /// Usage so far, of all prompts together.
    fn usage(&self) -> Usage {
        self.generation().usage()
    }

    /// Records the usage durably; called before the last byte of a stream.
    async fn close(&self, outcome: Outcome) -> Result<()> {
        self.generation().close(outcome).await
    }

    /// Waits until every choice has ended.
    async fn whole(&mut self) -> Result<Vec<Choice>> {
        let mut choices = Choices::new(self.choices());
        while let Some(delta) = self.next().await {
            choices.add(delta?);
        }
        choices.complete()
    }
}

/// The choices of a call, put together from deltas.
struct Choices(Vec<Choice>);

impl Choices {
    pub fn new(count: u32) -> Self {
        Self((0..count).map(|_| Choice::default()).collect())
    }

    pub fn add(&mut self, delta: TextDelta) {
        let Some(choice) = self.0.get_mut(delta.choice as usize) else { return };
        choice.reasoning.push_str(&delta.reasoning);
        choice.text.push_str(&delta.text);
        append_call_deltas(&mut choice.calls, &delta.calls);
        choice.tokens.extend(delta.tokens);
        choice.ending = delta.end.or(choice.ending);
    }

    /// All choices, once each has ended.
    pub fn complete(self) -> Result<Vec<Choice>> {
        match self.0.iter().all(|choice| choice.ending.is_some()) {
            true => Ok(self.0),
            false => Err(Error::internal("the engine closed a ticket before its end")),
        }
    }
}
