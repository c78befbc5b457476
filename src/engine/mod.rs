//! The inference engine: loaded models, request queues, the compute thread and the workloads it runs.
//!
//! [`Engine::submit`] accepts a request or refuses it at once. An accepted request streams its output through a
//! [`Generation`]; dropping that cancels the request. One thread owned by the engine drives all computation, on a pool
//! of [`Settings::threads`] threads.

mod checkpoint;
mod devices;
mod discovery;
mod embedding;
mod error;
mod image;
mod model_info;
mod precision;
mod preprocessor;
mod registry;
mod runtime;
mod settings;
#[cfg(test)]
mod tests;
mod text;
mod tokenizer;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::clock_rng::ClockRng;
pub use crate::models::encoder::{Tokenized, truncate_dimensions};
use crate::models::kv::BLOCK;
pub use crate::models::kv::KvType;

pub use devices::Devices;
use embedding::{EmbeddingQueue, EmbeddingWorkload, Vectors};
pub use embedding::{EncoderModel, InputType, Matryoshka};
pub use error::{Failure, InUse, LoadError, PreprocessError, Refused, TooLarge};
pub use image::{Image, ImageEvent, ImageEvents, ImageModel, ImageRequest, InitImage, SchedulerName};
use image::{ImageQueue, ImageWorkload};
pub use image::{MAX_SIDE as MAX_IMAGE_SIDE, MIN_SIDE as MIN_IMAGE_SIDE};
pub use model_info::{ModelInfo, ModelKind};
pub use precision::{Precision, Precisions};
pub use preprocessor::sandbox_child::run as run_sandbox;
pub use registry::Registry;
use runtime::supervised_worker::Worker;
use runtime::workload::Workload;
use runtime::{Runtime, ShutdownPhase};
use settings::DELTA_BUFFER;
pub use settings::{Drafts, MAX_CHOICES, MAX_IMAGES, MAX_STOPS, MAX_TOP_LOGPROBS, Settings};
pub use text::chat_template::PromptError;
pub use text::grammar::{CompiledGrammar, GrammarError, Unenforced};
pub use text::message::Message;
pub use text::model::TextModel;
pub use text::queue::Load;
use text::queue::TextQueue;
pub use text::request::{
    DeltaStream, FinishReason, Generation, GenerationRequest, Sampling, TextDelta, TokenInfo, TokenLogprob,
};
pub use text::tools::{CallMode, OutputSpec, TextFormat, Tool, ToolCall, ToolCallDelta};
use text::workload::TextWorkload;
pub use tokenizer::{Prompt, TokenizeLimits};

/// A handle to the engine. The engine stops when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    owner: Arc<Owner>,
}

struct Owner {
    runtime: Arc<Runtime>,
    registry: Arc<Registry>,
    texts: Arc<TextQueue>,
    embeddings: Arc<EmbeddingQueue>,
    images: Arc<ImageQueue>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts the compute thread. Fails if the operating system cannot start it.
    pub fn start(settings: Settings, clock: Arc<dyn ClockRng>) -> std::io::Result<Self> {
        let runtime = Arc::new(Runtime::new(settings, clock));
        let texts = TextQueue::new(Arc::clone(&runtime));
        let embeddings = EmbeddingQueue::new(Arc::clone(&runtime));
        let images = ImageQueue::new(Arc::clone(&runtime));
        let registry = Arc::new(Registry::new(Arc::clone(&runtime), Arc::clone(&texts)));
        runtime.set_kv_cache(Arc::downgrade(&texts) as _);
        runtime.set_idle_models(Arc::downgrade(&registry) as _);
        let workloads: Vec<Box<dyn Workload>> = vec![
            Box::new(TextWorkload::new(Arc::clone(&texts))),
            Box::new(EmbeddingWorkload::new(Arc::clone(&embeddings))),
            Box::new(ImageWorkload::new(Arc::clone(&images))),
        ];
        let worker = Worker::new(Arc::clone(&runtime), workloads);
        let worker = std::thread::Builder::new().name("engine".to_owned()).spawn(|| worker.run())?;
        let worker = Mutex::new(Some(worker));
        Ok(Self { owner: Arc::new(Owner { runtime, registry, texts, embeddings, images, worker }) })
    }

    /// The models on disk and in memory.
    pub fn models(&self) -> &Registry {
        &self.owner.registry
    }

    /// Checks whether [`Self::submit`] would refuse a request with any prompt, so that callers can skip tokenizing one.
    pub fn check_queue(&self, model: &TextModel, tenant: u128) -> Result<(), Refused> {
        self.owner.texts.check(model, tenant)
    }

    /// Queues the request or refuses it at once. Never blocks.
    pub fn submit(&self, model: &Arc<TextModel>, request: GenerationRequest) -> Result<Generation, Refused> {
        let Owner { runtime, texts, .. } = &*self.owner;
        check(model, &request).map_err(Refused::Invalid)?;
        // Requests are preempted when memory is short, so it is enough that one sequence fits.
        self.fits(model, request.prompt.len() as u64 + u64::from(request.max_tokens))?;
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let capacity = DELTA_BUFFER.max(request.choices as usize);
        let receiver = texts.push(model, request, capacity)?;
        Ok(Generation { prompt_tokens, deltas: DeltaStream::new(receiver, capacity, Arc::clone(runtime)) })
    }

    /// Queues texts to embed or score, each of at most [`EncoderModel::limit`] tokens, or refuses them at once.
    /// Never blocks. Dropping the receiver cancels.
    pub fn embed(
        &self,
        model: &Arc<EncoderModel>,
        tenant: u128,
        texts: Vec<Tokenized>,
    ) -> Result<oneshot::Receiver<Vectors>, Refused> {
        let fits = |text: &Tokenized| (1..=model.limit()).contains(&text.ids.len());
        let known = |text: &Tokenized| text.ids.iter().all(|id| (*id as usize) < model.vocabulary());
        if texts.is_empty() || !texts.iter().all(|text| fits(text) && known(text)) {
            return Err(Refused::Invalid(
                "the input must have at least one text, and each text must be tokens that fit the model's limit"
                    .to_owned(),
            ));
        }
        self.owner.embeddings.push(model, tenant, texts)
    }

    /// Queues images to generate or refuses them. Tokenizes the prompts first, so it must not run on an async thread.
    /// Dropping the receiver cancels.
    pub fn generate_images(&self, model: &Arc<ImageModel>, request: ImageRequest) -> Result<ImageEvents, Refused> {
        if !(1..=MAX_IMAGES as usize).contains(&request.seeds.len()) {
            return Err(Refused::Invalid(format!(
                "{} images were requested; the number must be 1 to {MAX_IMAGES}",
                request.seeds.len()
            )));
        }
        model.check(&request).map_err(Refused::Invalid)?;
        let prompts = model.tokenize(&request)?;
        self.owner.images.push(model, request, prompts)
    }

    /// Checks that the KV cache of `positions` positions fits into the memory that the model's weights leave.
    pub fn fits(&self, model: &TextModel, positions: u64) -> Result<(), TooLarge> {
        let (needed_bytes, budget_bytes) = (self.kv_bytes(model, positions), self.kv_budget(model));
        if needed_bytes <= budget_bytes {
            return Ok(());
        }
        let runtime = &self.owner.runtime;
        runtime.metrics.refuse(model.id(), "memory");
        Err(TooLarge { needed_bytes, budget_bytes, kv_type: runtime.settings.kv_type })
    }

    /// Max positions of a sequence of this model, limited by its context window and by memory.
    pub fn positions(&self, model: &TextModel) -> u32 {
        let block = self.kv_bytes(model, 1).max(1);
        let held = (self.kv_budget(model) / block).saturating_mul(BLOCK as u64);
        model.context_window().min(u32::try_from(held).unwrap_or(u32::MAX))
    }

    fn kv_bytes(&self, model: &TextModel, positions: u64) -> u64 {
        let shape = model.kv_shape(self.owner.runtime.settings.kv_type);
        positions.div_ceil(BLOCK as u64).saturating_mul(shape.block_bytes())
    }

    /// Bytes that the model's KV cache could take if no other model were loaded.
    fn kv_budget(&self, model: &TextModel) -> u64 {
        self.owner.runtime.memory.total().saturating_sub(model.lease.bytes())
    }

    /// Accepts no new requests and fails queued ones. Running requests continue.
    pub fn drain(&self) {
        self.owner.runtime.advance(ShutdownPhase::Draining);
    }

    /// Also fails running requests.
    pub fn abort(&self) {
        self.owner.runtime.advance(ShutdownPhase::Aborting);
    }

    /// Whether every workload is running. `false` after a panic until the workload has recovered.
    pub fn is_healthy(&self) -> bool {
        self.owner.runtime.is_healthy()
    }

    /// The load of text generation.
    pub fn load(&self) -> Load {
        self.owner.texts.load()
    }

    /// The engine's metrics as OpenMetrics text.
    pub fn metrics(&self) -> String {
        let Owner { runtime, registry, texts, embeddings, images, .. } = &*self.owner;
        let (metrics, memory) = (&runtime.metrics, &runtime.memory);
        metrics.set_uptime(runtime.uptime());
        let loaded = registry.loaded();
        let state = texts.lock();
        for (key, id) in &loaded {
            metrics.load(id, &state.scheduler.counts_of(*key));
        }
        let counts = state.scheduler.counts();
        metrics.speed(state.speed().unwrap_or(0.));
        drop(state);
        metrics.set_queued_text_tokens(embeddings.waiting_tokens());
        metrics.set_queued_images(images.waiting());
        metrics.memory("weights", memory.weights());
        metrics.memory("scratch", memory.scratch());
        metrics.memory("kv_held", counts.held_bytes);
        metrics.memory("kv_cached", counts.cached_bytes);
        metrics.memory("total", memory.total());
        metrics.encode()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("load", &self.load()).finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.runtime.advance(ShutdownPhase::Closed);
        if let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = worker.join();
        }
    }
}

fn check(model: &TextModel, request: &GenerationRequest) -> Result<(), String> {
    let GenerationRequest { prompt, choices, max_tokens, stop, logprobs, .. } = request;
    let (context, vocabulary) = (u64::from(model.context_window()), model.vocabulary());
    if prompt.is_empty() || *max_tokens == 0 {
        return Err("the prompt must not be empty, and max_tokens must be at least 1".to_owned());
    }
    if prompt.len() as u64 + u64::from(*max_tokens) > context {
        return Err(format!(
            "{} prompt tokens and max_tokens {max_tokens} exceed the context window of {context}",
            prompt.len()
        ));
    }
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
        return Err(format!("the prompt has the token ID {id}, but the vocabulary has only {vocabulary} tokens"));
    }
    if !(1..=MAX_CHOICES).contains(choices) {
        return Err(format!("{choices} choices were requested; the number must be 1 to {MAX_CHOICES}"));
    }
    if logprobs.is_some_and(|count| count > MAX_TOP_LOGPROBS) {
        return Err(format!("at most {MAX_TOP_LOGPROBS} top log-probabilities can be returned for each token"));
    }
    if stop.len() > MAX_STOPS || stop.iter().any(String::is_empty) {
        return Err(format!("at most {MAX_STOPS} stop strings are allowed, and none may be empty"));
    }
    request.sampling.check(vocabulary)
}
