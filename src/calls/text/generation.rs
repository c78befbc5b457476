//! Code that all calls that generate text share: admission, the submission of prompts to the engine, and the usage of
//! the output. A call may have several prompts; they have one usage record.

use std::sync::Arc;

use crate::calls::errors::{self, ModelErrors};
use crate::calls::fine_tuning::TunedModels;
use crate::calls::prompt::length::check_token_ids;
use crate::calls::prompt::preparation::PromptPreparation;
use crate::calls::text::running_generation::{Deltas, RunningPrompt};
pub(crate) use crate::calls::text::running_generation::{RunningGeneration, RunningText, Usage};
use crate::calls::text::sampling_request::SamplingRequest;
use crate::calls::upstream::errors::from_failure;
use crate::calls::upstream::models::{Location, UpstreamModels};
use crate::calls::upstream::request_fields::{Fields, json_bytes, json_call};
use crate::calls::upstream::response_limits::TextLimits;
use crate::calls::upstream::text_stream::{ChunkReader, ExpectedText, UpstreamDeltas};
use crate::calls::upstream::told_usage::UsageBounds;
use crate::clock_rng::ClockRng;
use crate::engine::{Engine, GenerationRequest, Sampling, TextModel, TokenizeLimits};
use crate::error::Result;
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;
use crate::upstream::{Kind, UpstreamModel};

/// Prepares and submits prompts. Clones share the limits of preparation.
#[derive(Clone)]
pub struct TextGeneration {
    pub(in crate::calls) engine: Engine,
    pub(in crate::calls) clock_rng: Arc<dyn ClockRng>,
    pub(in crate::calls) upstream: UpstreamModels,
    preparing: PromptPreparation,
    tuned: TunedModels,
}

/// A prompt for an upstream model.
pub(in crate::calls) struct UpstreamPrompt<R> {
    /// The path of the request, such as `chat/completions`.
    pub operation: &'static str,
    /// The body without the model's name.
    pub fields: Fields,
    /// Reads the response.
    pub reader: R,
    /// Number of choices, of all prompts.
    pub choices: u32,
    /// Tokens of the prompts, estimated.
    pub prompt_tokens: u32,
    pub limits: TextLimits,
}

impl TextGeneration {
    pub fn new(engine: Engine, clock_rng: Arc<dyn ClockRng>, tuned: TunedModels, upstream: UpstreamModels) -> Self {
        Self { engine, clock_rng, upstream, preparing: PromptPreparation::new(), tuned }
    }

    /// Checks the key's permission for the model `id`. A loaded model is returned, after a check that its queue has room.
    pub(in crate::calls) async fn admit(
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

    /// Replaces an alias by the ID of its model, which may be one that the project has trained.
    pub(in crate::calls) async fn resolve_alias(&self, access: &Access, name: &mut String) -> Result<()> {
        self.tuned.resolve_alias(access, name).await
    }

    /// Checks the key's permission for the model `id`, which may be one that the project has trained.
    pub(in crate::calls) async fn authorize(&self, access: &Access, id: &str) -> Result<()> {
        access.require_model(id)?;
        self.tuned.register(access, id).await
    }

    /// Where the model `id` runs, after a check of the key's permission. `kinds`: those of upstream models that can do the work.
    pub(in crate::calls) async fn locate(
        &self,
        access: &Access,
        id: &str,
        kinds: &[Kind],
        recorder: &UsageRecorder,
    ) -> Result<Location> {
        access.require_model(id)?;
        self.upstream.locate(access, id, kinds, recorder).await
    }

    /// Runs `work`, which tokenises `bytes` of text, off the async threads.
    pub(in crate::calls) async fn prepare<T: Send + 'static>(
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
    pub(in crate::calls) async fn prepare_with<T: Send + 'static>(
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

    /// The sampling parameters of a request for a model of this server. Words are tokenised off the async threads.
    pub(in crate::calls) async fn sampling(
        &self,
        access: &Access,
        model: &Arc<TextModel>,
        mut request: SamplingRequest,
        seed: Option<u64>,
    ) -> Result<Sampling> {
        check_token_ids(&request, model)?;
        let words = std::mem::take(&mut request.bad_words);
        let bad_words = if words.is_empty() {
            Vec::new()
        } else {
            let (model, bytes) = (Arc::clone(model), words.iter().map(String::len).sum());
            let encode = move |_: &ModelErrors<'_>, limits| {
                let forms = model.encode_words(&words, &limits);
                forms.map_err(|stopped| errors::from_stopped(model.id(), &stopped))
            };
            self.prepare(access, bytes, encode).await?
        };
        let seed = seed.unwrap_or_else(|| self.fresh_seed());
        Ok(Sampling { bad_words: bad_words.into(), ..request.resolve(seed) })
    }

    /// Charges the prompts to the project and submits them. All have the same number of choices. If one is refused, none
    /// runs.
    pub(in crate::calls) async fn submit(
        &self,
        model: &Arc<TextModel>,
        requests: Vec<GenerationRequest>,
        recorder: Arc<UsageRecorder>,
    ) -> Result<RunningGeneration> {
        let tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
        recorder.charge_prompt(tokens as u64).await?;
        let submitted = (self.clock_rng.uptime(), Arc::clone(&self.clock_rng));
        let submit = |request: GenerationRequest| {
            let choices = request.choices;
            Ok(RunningPrompt::new(Deltas::Engine(self.engine.submit(model, request)?.deltas), choices))
        };
        let prompts: Result<Vec<_>, _> = requests.into_iter().map(submit).collect();
        // A request that never ran is not charged.
        let prompts = prompts.inspect_err(|_| recorder.waive());
        let prompts = prompts.map_err(|refused| errors::from_refused(model.id(), refused))?;
        let prompt_tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        let running = RunningGeneration::new(prompts, prompt_tokens, recorder, submitted);
        Ok(running.of_model(model.context_window(), Some(self.engine.system_fingerprint(model))))
    }

    /// Charges the prompts to the project by their estimate, sends them to an upstream model and waits until its response
    /// begins.
    pub(in crate::calls) async fn submit_upstream(
        &self,
        model: &Arc<UpstreamModel>,
        prompt: UpstreamPrompt<impl ChunkReader>,
        recorder: Arc<UsageRecorder>,
    ) -> Result<RunningGeneration> {
        let UpstreamPrompt { operation, fields, reader, choices, prompt_tokens, limits } = prompt;
        recorder.charge_prompt(prompt_tokens.into()).await?;
        recorder.set_estimated(true);
        let submitted = (self.clock_rng.uptime(), Arc::clone(&self.clock_rng));
        let usage = UsageBounds::new(prompt_tokens, json_bytes(&fields), limits);
        let expected = ExpectedText { choices, max_bytes: limits.bytes, usage };
        let call = json_call(model, operation, fields, limits.stream_bytes());
        let started = UpstreamDeltas::start(self.upstream.client(), call, reader, expected).await;
        // A request that never ran is not charged.
        let deltas = started.map_err(|failure| {
            recorder.waive();
            from_failure(&model.id, failure)
        })?;
        let deltas = Deltas::Upstream { id: model.id.clone(), deltas };
        let prompts = vec![RunningPrompt::new(deltas, choices)];
        let running = RunningGeneration::new(prompts, prompt_tokens, recorder, submitted);
        // If the window is unknown, it is never exceeded.
        Ok(running.of_model(model.context.unwrap_or(u32::MAX), None))
    }

    /// The seed of a request that sets none.
    pub(in crate::calls) fn fresh_seed(&self) -> u64 {
        let mut bytes = [0; 8];
        self.clock_rng.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }
}
