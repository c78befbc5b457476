//! The inference engine: loaded models, request queues, the compute thread and the workloads it runs.
//!
//! [`Engine::submit`] accepts a request or refuses it at once. An accepted request streams its output through a
//! [`Generation`]; dropping that cancels the request. Each device has a thread that drives its computation; on the CPU, with
//! a pool of [`Settings::threads`] threads.

mod checkpoint;
mod device_backend;
mod device_worker;
mod devices;
mod discovery;
mod embedding;
mod error;
mod ids;
mod image;
mod jobs;
mod kinds;
mod model_adapter;
mod model_info;
mod model_memory;
mod model_settings;
mod moderation;
mod per_model;
mod precision;
mod preprocessor;
mod registry;
mod runtime;
mod settings;
mod speech;
#[cfg(test)]
mod tests;
mod text;
mod tokenizer;
mod training;
mod transcription;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ring::digest::{Context, SHA256};
use tokio::sync::oneshot;

use outpost_common::clock_rng::ClockRng;
pub use outpost_content::{Message, ToolCall};
use outpost_models::backend::Isa;
use outpost_models::devices::Selected;
pub use outpost_models::encoder::head::Labels;
pub use outpost_models::encoder::{Tokenized, truncate_dimensions};
use outpost_models::kv::BLOCK;
pub use outpost_models::kv::KvType;
use outpost_models::state_layout::StateGroup;
pub use outpost_models::whisper::{LANGUAGES as TRANSCRIPTION_LANGUAGES, find_language, language_name};

pub use device_backend::DeviceBackend;
use device_worker::{DeviceWorker, settings_for};
pub use devices::Devices;
pub use discovery::{AdapterFiles, AdapterSource, ignored_files, installed_models, model_entries};
use embedding::{EmbeddingQueue, Vectors};
pub use embedding::{EncoderModel, InputType, Matryoshka, PairOptions};
pub use error::{Failure, InUse, LoadError, PreprocessError, Refused, TooLarge};
pub use image::{Image, ImageEvent, ImageEvents, ImageModel, ImageRequest, InitImage, SchedulerName};
use image::{ImageJob, ImageQueue};
pub use image::{MAX_SIDE as MAX_IMAGE_SIDE, MIN_SIDE as MIN_IMAGE_SIDE};
use kinds::{KINDS, RequestQueue};
pub use kinds::{MemoryNeed, Model};
pub use model_info::{ModelInfo, ModelKind};
pub use model_memory::model_memory;
pub use model_settings::{DerivedModel, GenerationDefaults, InstalledSettings};
pub use moderation::{CATEGORIES, DEFAULT_THRESHOLD, LabelMeaning, ModerationSettings, label_meanings};
pub use per_model::PerModel;
pub use precision::{Precision, Precisions};
pub use preprocessor::TokenizerDescription;
pub use preprocessor::sandbox_child::run as run_sandbox;
pub use registry::{AdapterRegistration, Registry, UpstreamLookup};
use runtime::metrics::Metrics;
use runtime::server_info::server_info;
use runtime::{DeviceIndex, DeviceInfo, Runtime, ShutdownPhase};
use settings::DELTA_BUFFER;
pub use settings::{
    Drafts, MAX_ALLOWED_TOKENS, MAX_BAD_WORDS, MAX_CHOICES, MAX_IMAGES, MAX_LOGPROBS_PER_POSITION, MAX_STOP_BYTES,
    MAX_STOP_TOKENS, MAX_STOPS, MAX_TOP_LOGPROBS, PrefixDiskKey, PrefixDiskSettings, Settings,
};
use speech::{SpeechJob, SpeechQueue};
pub use speech::{SpeechModel, SpeechParts, SpeechRequest, SpokenPart, VoiceInfo};
pub use text::chat_template::PromptError;
use text::content_hash;
pub use text::grammar::{CompiledGrammar, GrammarError, Unenforced, gbnf_to_lark};
pub use text::model::TextModel;
use text::prefix_disk::PrefixDisk;
pub use text::prompt::{MediaSpan, Prompt};
pub use text::prompt_options::{PromptEnd, PromptOptions, RESERVED_VARIABLES, TemplateVariable};
pub use text::queue::Load;
use text::queue::TextQueue;
pub use text::reasoning::{ReasoningRequest, is_in_template as template_has_reasoning};
pub use text::request::{
    DeltaStream, FinishReason, Generation, GenerationRequest, PromptLogprob, PromptToken, Sampling, TextDelta,
    TextOptions, TokenInfo, TokenLogprob,
};
pub use text::sampler::parameters::{
    SAMPLING_PARAMETERS, SamplingParameter, SamplingParameters, SamplingRule, SamplingValue,
};
pub use text::tools::{CallMode, InputFormat, JsonDepth, OutputSpec, TextFormat, Tool, ToolCallDelta};
pub use text::training_example::{TrainingExample, TrainingTexts};
pub use tokenizer::{InfillFile, InfillTexts, SpecialTokenOptions, TokenIds, TokenizeLimits};
use training::TrainingQueue;
pub use training::{
    Measurement, StepReport, TrainableModel, TrainingCheckpoint, TrainingData, TrainingEvent, TrainingMethod,
    TrainingOptions, TrainingRun, TrainingText,
};

use transcription::TranscriptionQueue;
pub use transcription::{
    SAMPLE_RATE as TRANSCRIPTION_SAMPLE_RATE, Segment, SpeechWindow, SpokenToken, Transcription, TranscriptionEvent,
    TranscriptionModel, TranscriptionRequest, TranscriptionTask, WINDOW_SAMPLES, WindowSender, Word,
};

/// Max time for what the prefix cache on disk still writes when the engine stops.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// A handle to the engine. The engine stops when the last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    owner: Arc<Owner>,
}

struct Owner {
    registry: Arc<Registry>,
    devices: Arc<[DeviceWorker]>,
    prefix_disk: Option<Arc<PrefixDisk>>,
    metrics: Arc<Metrics>,
}

impl Engine {
    /// Starts the compute thread of each device that models run on. Fails if a device cannot be opened, or if the operating
    /// system cannot start a thread.
    pub fn start(settings: Settings, clock: Arc<dyn ClockRng>) -> std::io::Result<Self> {
        let metrics = Metrics::new(server_info(settings.threads), KINDS.iter().map(|kind| kind.metrics));
        let metrics = Arc::new(metrics);
        let (devices, placement) = start_devices(&settings, &metrics, &clock)?;
        let devices: Arc<[DeviceWorker]> = devices.into();
        let prefix_disk = settings.prefix_disk.clone();
        let prefix_disk = prefix_disk.and_then(|disk| start_prefix_disk(disk, &metrics, &clock)).map(Arc::new);
        for device in &*devices {
            if let (Some(disk), Some(texts)) = (&prefix_disk, device.queues.get::<TextQueue>()) {
                texts.set_prefix_disk(disk);
            }
        }
        let registry = Arc::new(Registry::new(settings, Arc::clone(&devices), placement, clock));
        for device in &*devices {
            device.runtime.set_idle_models(Arc::downgrade(&registry) as _);
        }
        Ok(Self { owner: Arc::new(Owner { registry, devices, prefix_disk, metrics }) })
    }

    /// The queue of the device that runs a model.
    fn queue<Q: RequestQueue>(&self, device: DeviceIndex) -> Result<&Q, Refused> {
        let queue = self.owner.devices.get(device).and_then(|device| device.queues.get());
        queue.ok_or_else(|| Refused::Invalid("the model's device does not exist".to_owned()))
    }

    /// The queues of text generation of all devices.
    fn texts(&self) -> impl Iterator<Item = &TextQueue> {
        self.owner.devices.iter().filter_map(|device| device.queues.get())
    }

    /// Max choices that each device generates at once, across all models.
    pub fn slots(&self) -> usize {
        self.owner.registry.max_running()
    }

    /// The models on disk and in memory.
    pub fn models(&self) -> &Registry {
        &self.owner.registry
    }

    /// Checks whether [`Self::submit`] would refuse a request with any prompt, so that callers can skip tokenizing one.
    pub fn check_queue(&self, model: &TextModel, tenant: u128) -> Result<(), Refused> {
        self.queue::<TextQueue>(model.device)?.check(model, tenant)
    }

    /// Queues the request or refuses it at once. Never blocks.
    pub fn submit(&self, model: &Arc<TextModel>, request: GenerationRequest) -> Result<Generation, Refused> {
        let texts = self.queue::<TextQueue>(model.device)?;
        if !model.is_available_to(request.tenant) {
            return Err(Refused::Invalid(format!("the model {} belongs to another project", model.id())));
        }
        check(model, &request).map_err(Refused::Invalid)?;
        // Requests are preempted when memory is short, so it is enough that one sequence fits.
        self.fits(model, request.prompt.len() as u64 + u64::from(request.max_tokens))?;
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        // Each choice holds room for its next delta, also while it waits for a slot.
        let capacity = DELTA_BUFFER.max(2 * request.choices as usize);
        let receiver = texts.push(model, request, capacity)?;
        Ok(Generation { prompt_tokens, deltas: DeltaStream::new(receiver, Arc::clone(texts.runtime())) })
    }

    /// What, besides the request, decides the text that a model generates: its weights, this version of the server, the
    /// instruction set or the kind of GPU, and the type of the KV cache. Requests with the same seed get the same text while
    /// it stays the same.
    pub fn system_fingerprint(&self, model: &TextModel) -> String {
        let kind = self.owner.devices.get(model.device).map_or("cpu", |device| device.runtime.device.kind());
        let (kernels, kv_type) = (Isa::detect().name(), self.kv_type(model));
        let version = env!("CARGO_PKG_VERSION");
        let mut hash = Context::new(&SHA256);
        hash.update(format!("{version} {kind} {kernels} {kv_type:?} {:x}", model.content_hash()).as_bytes());
        format!("fp_{:016x}", content_hash::finish(hash))
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
        self.queue::<EmbeddingQueue>(model.device)?.push(model, tenant, texts)
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
        self.queue::<ImageQueue>(model.device)?.push(ImageJob::new(model, request, prompts))
    }

    /// Queues a transcription or refuses it. Its audio follows through the [`WindowSender`]. Tokenizes the prompt first, so it
    /// must not run on an async thread. Dropping the [`Transcription`] cancels.
    pub fn transcribe(
        &self,
        model: &Arc<TranscriptionModel>,
        request: &TranscriptionRequest,
    ) -> Result<(WindowSender, Transcription), Refused> {
        let request = model.prepare(request)?;
        self.queue::<TranscriptionQueue>(model.device)?.push(model, request)
    }

    /// Queues a text to speak or refuses it. Turns it into phonemes first, so it must not run on an async thread. Dropping the
    /// parts cancels.
    pub fn speak(&self, model: &Arc<SpeechModel>, request: &SpeechRequest) -> Result<SpeechParts, Refused> {
        self.queue::<SpeechQueue>(model.device)?.push(SpeechJob::new(model, request)?)
    }

    /// Queues a training, which [`Registry::load_for_training`] has loaded the model for, or refuses it at once.
    /// `saved`: the state of an earlier training that is resumed. Dropping the run cancels.
    pub fn train(
        &self,
        model: TrainableModel,
        data: TrainingData,
        options: TrainingOptions,
        saved: Option<Vec<u8>>,
    ) -> Result<TrainingRun, Refused> {
        self.queue::<TrainingQueue>(model.device)?.push(model, data, options, saved)
    }

    /// Checks that the KV cache of `positions` positions fits into the memory that the model's weights leave.
    pub fn fits(&self, model: &TextModel, positions: u64) -> Result<(), TooLarge> {
        let (needed_bytes, budget_bytes) = (self.kv_bytes(model, positions), self.kv_budget(model));
        if needed_bytes <= budget_bytes {
            return Ok(());
        }
        self.owner.metrics.refuse(model.id(), "memory");
        Err(TooLarge { needed_bytes, budget_bytes, kv_type: self.kv_type(model) })
    }

    /// The data type of the KV cache on the model's device.
    fn kv_type(&self, model: &TextModel) -> KvType {
        self.owner.devices.get(model.device).map_or_else(KvType::default, |device| device.runtime.settings.kv_type)
    }

    /// Max positions of a sequence of this model, limited by its context window and by memory.
    pub fn positions(&self, model: &TextModel) -> u32 {
        let budget = self.kv_budget(model);
        let (mut fits, mut bound) = (0, model.context_window().div_ceil(BLOCK as u32) + 1);
        while fits + 1 < bound {
            let blocks = fits.midpoint(bound);
            match self.kv_bytes(model, u64::from(blocks) * BLOCK as u64) <= budget {
                true => fits = blocks,
                false => bound = blocks,
            }
        }
        model.context_window().min(fits.saturating_mul(BLOCK as u32))
    }

    /// Bytes of the KV cache of a sequence.
    fn kv_bytes(&self, model: &TextModel, positions: u64) -> u64 {
        let Some(device) = self.owner.devices.get(model.device) else { return 0 };
        let settings = &device.runtime.settings;
        let positions = usize::try_from(positions).unwrap_or(usize::MAX);
        let bytes = |group: &StateGroup| {
            (group.max_blocks(positions, settings.prefill_chunk) as u64).saturating_mul(group.block_bytes)
        };
        model.network.state_groups(settings.kv_type).iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Bytes that the model's KV cache could take if no other model were loaded.
    fn kv_budget(&self, model: &TextModel) -> u64 {
        let total = self.owner.devices.get(model.device).map_or(0, |device| device.runtime.memory.total());
        total.saturating_sub(model.leased_bytes())
    }

    /// The tenants whose texts are in the prefix cache on disk.
    pub fn tenants_on_disk(&self) -> HashSet<u128> {
        self.owner.prefix_disk.as_ref().map_or_else(HashSet::new, |disk| disk.tenants())
    }

    /// Deletes a tenant's texts from the prefix cache on disk.
    pub fn forget_on_disk(&self, tenant: u128) {
        self.owner.prefix_disk.iter().for_each(|disk| disk.forget(tenant));
    }

    /// Sets the most queued text requests of a model. Those that are queued already stay.
    pub fn set_max_queued(&self, requests: usize) {
        self.texts().for_each(|texts| texts.set_max_queued(requests));
    }

    /// Accepts no new requests and fails queued ones. Running requests continue.
    pub fn drain(&self) {
        self.advance(ShutdownPhase::Draining);
    }

    /// Also fails running requests, and those that are prepared.
    pub fn abort(&self) {
        self.owner.registry.stop_preprocessing();
        self.advance(ShutdownPhase::Aborting);
    }

    fn advance(&self, phase: ShutdownPhase) {
        self.owner.devices.iter().for_each(|device| device.runtime.advance(phase));
    }

    /// True while every workload runs. A workload that has panicked counts as down until it has recovered; `/readyz` is
    /// 503 meanwhile.
    pub fn is_healthy(&self) -> bool {
        self.owner.devices.iter().all(|device| device.runtime.is_healthy())
    }

    /// The name of a device that no longer works. Requests of its models fail until the server is restarted.
    pub fn lost_device(&self) -> Option<&str> {
        let lost = self.owner.devices.iter().find(|device| device.runtime.is_device_lost());
        lost.map(|device| device.name())
    }

    /// The load of text generation on all devices.
    pub fn load(&self) -> Load {
        self.texts().map(TextQueue::load).sum()
    }

    /// The engine's metrics as OpenMetrics text.
    pub fn metrics(&self) -> String {
        let Owner { registry, devices, metrics, .. } = &*self.owner;
        for model in registry.loaded_networks() {
            if let Ok(texts) = self.queue::<TextQueue>(model.device) {
                metrics.load(model.id(), &texts.lock().scheduler.counts_of(model.key));
            }
        }
        let mut speed = 0.;
        for DeviceWorker { runtime, queues, .. } in &**devices {
            let (name, memory) = (runtime.device.name.as_str(), &runtime.memory);
            metrics.set_uptime(runtime.uptime());
            metrics.memory(name, "weights", memory.weights());
            metrics.memory(name, "scratch", memory.scratch());
            metrics.memory(name, "total", memory.total());
            let Some(state) = queues.get::<TextQueue>().map(TextQueue::lock) else { continue };
            let counts = state.scheduler.counts();
            metrics.memory(name, "kv_held", counts.held_bytes);
            metrics.memory(name, "kv_cached", counts.cached_bytes);
            speed += state.speed().unwrap_or(0.);
        }
        metrics.speed(speed);
        for kind in &KINDS {
            if let Some(metric) = kind.metrics.waiting {
                metrics.set_waiting(metric, devices.iter().map(|device| (kind.waiting)(&device.queues)).sum());
            }
        }
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
        self.devices.iter().for_each(|device| device.runtime.advance(ShutdownPhase::Closed));
        self.devices.iter().for_each(DeviceWorker::join);
        self.prefix_disk.iter().for_each(|disk| disk.close(LAST_WRITES));
    }
}

/// Starts the devices that `settings` names, and says which of them runs which model.
fn start_devices(
    settings: &Settings,
    metrics: &Arc<Metrics>,
    clock: &Arc<dyn ClockRng>,
) -> std::io::Result<(Vec<DeviceWorker>, PerModel<DeviceIndex>)> {
    let mut devices: Vec<DeviceWorker> = Vec::new();
    let mut start = |selected: &Selected| {
        let name = selected.name();
        if let Some(index) = devices.iter().position(|device| device.name() == name) {
            return Ok(index);
        }
        let settings = settings_for(selected, settings.clone());
        let backend = DeviceBackend::open(selected, &settings).map_err(std::io::Error::other)?;
        let info = DeviceInfo { index: devices.len(), name };
        let runtime = Arc::new(Runtime::new(settings, info, Arc::clone(metrics), Arc::clone(clock)));
        devices.push(DeviceWorker::start(backend, runtime)?);
        Ok::<_, std::io::Error>(devices.len() - 1)
    };
    let usual = start(&settings.devices.usual)?;
    let models = settings.devices.models.iter().map(|(id, selected)| Ok((id.clone(), start(selected)?)));
    let models = models.collect::<std::io::Result<_>>()?;
    Ok((devices, PerModel { usual, models }))
}

/// If the disk fails, the engine works without.
fn start_prefix_disk(
    settings: PrefixDiskSettings,
    metrics: &Arc<Metrics>,
    clock: &Arc<dyn ClockRng>,
) -> Option<PrefixDisk> {
    let folder = settings.folder.clone();
    PrefixDisk::start(settings, Arc::clone(clock), Arc::clone(metrics))
        .inspect_err(|error| {
            tracing::error!(%error, folder = %folder.display(), "there is no prefix cache on disk, because it cannot be opened");
        })
        .ok()
}

fn check(model: &TextModel, request: &GenerationRequest) -> Result<(), String> {
    let GenerationRequest { prompt, prompt_logprobs, choices, max_tokens, stop, logprobs, .. } = request;
    let (context, vocabulary) = (u64::from(model.context_window()), model.vocabulary());
    if prompt.is_empty() {
        return Err("the prompt must not be empty".to_owned());
    }
    if prompt.len() as u64 + u64::from(*max_tokens) > context {
        return Err(format!(
            "{} prompt tokens and max_tokens {max_tokens} exceed the context window of {context}",
            prompt.len()
        ));
    }
    if let Some(id) = prompt.ids().iter().find(|&&id| id as usize >= vocabulary) {
        return Err(format!("the prompt has the token ID {id}, but the vocabulary has only {vocabulary} tokens"));
    }
    let width = model.network.width();
    if let Some(span) = prompt.media().iter().find(|span| span.width() != width) {
        return Err(format!("embeddings in the prompt have {} elements, those of the model {width}", span.width()));
    }
    if !(1..=MAX_CHOICES).contains(choices) {
        return Err(format!("{choices} choices were requested; the number must be 1 to {MAX_CHOICES}"));
    }
    if logprobs.max(prompt_logprobs).is_some_and(|count| count > MAX_TOP_LOGPROBS) {
        return Err(format!("at most {MAX_TOP_LOGPROBS} top log-probabilities can be returned for each token"));
    }
    let per_position = logprobs.map_or(0, |count| choices * (1 + u32::from(count)));
    if per_position > MAX_LOGPROBS_PER_POSITION {
        return Err(format!(
            "{per_position} log-probabilities of a position were requested; the most is {MAX_LOGPROBS_PER_POSITION}"
        ));
    }
    if stop.len() > MAX_STOPS || stop.iter().any(String::is_empty) {
        return Err(format!("at most {MAX_STOPS} stop strings are allowed, and none may be empty"));
    }
    request.sampling.check(vocabulary)
}
