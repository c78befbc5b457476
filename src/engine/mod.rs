//! Requests become tokens: the models in memory, the queue, the worker that computes, the sampler.
//!
//! [`Engine::submit`] takes a request or refuses it at once; what was taken is read from its
//! [`Ticket`] piece by piece, and dropping that cancels. One owned thread computes, with a pool of
//! [`Settings::threads`] threads.

mod budget;
mod checkpoint;
mod detokenizer;
mod drafter;
mod effort;
pub mod embedding;
mod grammar;
mod guard;
pub mod image;
mod job;
mod logprobs;
mod lookup;
mod metrics;
mod pace;
mod precision;
mod preprocessor;
mod pretokenizer;
mod queue;
pub mod registry;
mod request;
mod sampler;
mod scan;
mod schedule;
mod sequence;
mod specials;
mod stop;
mod template;
pub mod text;
mod text_files;
mod tokens;
mod tools;
mod worker;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::ambient::Ambient;
pub use crate::models::encoder::{Tokenized, truncate_dimensions};
use crate::models::kv::BLOCK;
pub use crate::models::kv::KvType;
use crate::models::scratch::Largest;

use embedding::Vectors;
pub use embedding::{EncoderModel, InputType, Matryoshka};
pub use grammar::{Form, GrammarError};
pub use image::{Image, ImageEvent, ImageEvents, ImageModel, ImageRequest, InitImage, SchedulerName};
pub use precision::{Precision, Precisions};
pub use preprocessor::{Stopped, child::run as run_sandbox};
pub use queue::Load;
pub use registry::{InUse, Kind, LoadError, ModelInfo, Registry};
pub use request::{
    Ending, Failure, Generation, Piece, Pieces, Refused, Sampling, Ticket, TokenInfo, TokenLogprob, TooLarge,
};
pub use template::PromptError;
pub use text::{Message, TextModel};
pub use tokens::{Prompt, TokenBound};
pub use tools::{CallPiece, Calling, Shape, Text, Tool, ToolCall};

/// How the engine is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The folder with a folder a model.
    pub models_dir: PathBuf,
    /// Threads that compute, the worker among them.
    pub threads: usize,
    /// For weights, caches and the scratch of steps together.
    pub memory_bytes: u64,
    /// Answers generated at the same time.
    pub max_running: usize,
    /// Requests of a model that may wait beyond those.
    pub max_queued_requests: usize,
    /// Prompt tokens of a model that may wait.
    pub max_queued_tokens: usize,
    /// One tenant may take one part in so many of a queue.
    pub tenant_part: usize,
    /// Most prompt tokens computed in one step; while answers run, as many as do not stall them.
    pub prefill_chunk: usize,
    /// How keys and values are kept.
    pub kv_type: KvType,
    /// Whether tokens are guessed ahead where that saves time. Answers are the same.
    pub speculate: bool,
    /// Which models guess for others.
    pub drafts: Drafts,
    /// How the weights of models that make no text are kept.
    pub precisions: Precisions,
    /// Tokens of texts to be embedded that may wait.
    pub max_queued_texts: usize,
    /// Pictures that may wait.
    pub max_queued_images: usize,
    /// How long a reader may take nothing while its answer waits, before the answer is given up.
    pub reader_patience: Duration,
    /// The `outpost` program: models' tokenizers and chat templates run in child processes of it, with limits on time
    /// and memory. `None`: they run in this process, which a malicious model file can then end.
    pub sandbox: Option<PathBuf>,
}

/// Which models guess the tokens of larger ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drafts {
    /// Whether one is chosen where none is named.
    pub auto: bool,
    /// By the larger model's id.
    pub pairs: BTreeMap<String, String>,
}

impl Default for Drafts {
    fn default() -> Self {
        Self { auto: true, pairs: BTreeMap::new() }
    }
}

impl Settings {
    /// Sensible limits for a folder of models and the memory that the caller grants.
    pub fn new(models_dir: impl Into<PathBuf>, memory_bytes: u64) -> Self {
        Self {
            models_dir: models_dir.into(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes,
            max_running: 32,
            max_queued_requests: 256,
            max_queued_tokens: 262_144,
            tenant_part: 2,
            prefill_chunk: 256,
            kv_type: KvType::default(),
            speculate: true,
            drafts: Drafts::default(),
            precisions: Precisions::default(),
            max_queued_texts: 4 << 20,
            max_queued_images: 64,
            reader_patience: Duration::from_secs(60),
            sandbox: None,
        }
    }

    /// The most that a step is made of.
    fn largest_step(&self) -> Largest {
        let draft = if self.speculate { MOST_GUESSED } else { 0 };
        let logits = self.max_running * (1 + draft);
        Largest { tokens: self.prefill_chunk + logits, rows: self.max_running, logits, threads: self.threads }
    }
}

/// Most tokens of an answer that are guessed for one check, whoever guesses.
const MOST_GUESSED: usize = 8;
/// Pieces that wait for a slow reader before its sequence pauses.
const UNREAD_PIECES: usize = 64;
/// As OpenAI has them.
const MOST_CHOICES: u32 = 128;
const MOST_TOP_LOGPROBS: u8 = 20;
const MOST_STOPS: usize = 64;
const MAX_IMAGES: usize = 10;

/// A handle; the engine ends with the last of them.
#[derive(Clone)]
pub struct Engine {
    owner: Arc<Owner>,
}

struct Owner {
    shared: Arc<queue::Shared>,
    registry: Arc<Registry>,
    ambient: Arc<dyn Ambient>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts the worker thread. Errors come from the operating system refusing it.
    pub fn start(settings: Settings, ambient: Arc<dyn Ambient>) -> std::io::Result<Self> {
        let folder = settings.models_dir.clone();
        let shared = Arc::new(queue::Shared::new(settings));
        let registry = Arc::new(Registry::new(folder, Arc::clone(&shared), Arc::clone(&ambient)));
        let worker = worker::Worker::new(Arc::clone(&shared), Arc::clone(&registry), Arc::clone(&ambient));
        let worker = std::thread::Builder::new().name("engine".to_owned()).spawn(|| worker.run())?;
        Ok(Self { owner: Arc::new(Owner { shared, registry, ambient, worker: Mutex::new(Some(worker)) }) })
    }

    /// The models on disk and in memory.
    pub fn models(&self) -> &Registry {
        &self.owner.registry
    }

    /// Refuses whom [`Self::submit`] would refuse whatever the prompt, before work is put into one.
    pub fn check_queue(&self, model: &TextModel, tenant: u128) -> Result<(), Refused> {
        self.owner.shared.check(model, tenant)
    }

    /// Queues the request, or says at once why not. Never blocks.
    pub fn submit(&self, model: &Arc<TextModel>, request: Generation) -> Result<Ticket, Refused> {
        let shared = &self.owner.shared;
        check(model, &request).map_err(Refused::Invalid)?;
        // Answers take turns where memory is short: one of them must fit.
        self.fits(model, request.prompt.len() as u64 + u64::from(request.max_tokens))?;
        let prompt_tokens = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        let capacity = UNREAD_PIECES.max(request.choices as usize);
        let receiver = shared.push(model, request, capacity, self.owner.ambient.uptime())?;
        Ok(Ticket { prompt_tokens, pieces: Pieces::new(receiver, capacity, Arc::clone(shared)) })
    }

    /// Queues texts to become vectors, each of [`EncoderModel::limit`] tokens at most, or says at once why not.
    /// Never blocks; dropping the receiver cancels.
    pub fn embed(
        &self,
        model: &Arc<EncoderModel>,
        tenant: u128,
        texts: Vec<Tokenized>,
    ) -> Result<oneshot::Receiver<Vectors>, Refused> {
        let fits = |text: &Tokenized| (1..=model.limit()).contains(&text.ids.len());
        let known = |text: &Tokenized| text.ids.iter().all(|id| (*id as usize) < model.vocabulary());
        if texts.is_empty() || !texts.iter().all(|text| fits(text) && known(text)) {
            return Err(Refused::Invalid("there are no texts, or texts that the model does not take".to_owned()));
        }
        self.owner.shared.push_texts(model, tenant, texts)
    }

    /// Queues pictures to be painted, or says why not. Tokenises the prompts first: not for an async thread. Dropping
    /// the receiver cancels.
    pub fn generate_images(&self, model: &Arc<ImageModel>, request: ImageRequest) -> Result<ImageEvents, Refused> {
        if !(1..=MAX_IMAGES).contains(&request.seeds.len()) {
            return Err(Refused::Invalid(format!("{} pictures, 1 to {MAX_IMAGES} are possible", request.seeds.len())));
        }
        model.check(&request).map_err(Refused::Invalid)?;
        let prompts = model.tokenize(&request)?;
        self.owner.shared.push_image_request(model, request, prompts, self.owner.ambient.uptime())
    }

    /// Whether the memory beside the model holds the keys and values of so many positions.
    pub fn fits(&self, model: &TextModel, positions: u64) -> Result<(), TooLarge> {
        let (needed_bytes, budget_bytes) = (self.kv_bytes(model, positions), self.kv_budget(model));
        if needed_bytes <= budget_bytes {
            return Ok(());
        }
        let shared = &self.owner.shared;
        shared.metrics.refuse(model.id(), "memory");
        Err(TooLarge { needed_bytes, budget_bytes, kv_type: shared.settings.kv_type })
    }

    /// Positions that a sequence of this model can have: its context, or what the memory holds of it.
    pub fn positions(&self, model: &TextModel) -> u32 {
        let block = self.kv_bytes(model, 1).max(1);
        let held = (self.kv_budget(model) / block).saturating_mul(BLOCK as u64);
        model.context_window().min(u32::try_from(held).unwrap_or(u32::MAX))
    }

    fn kv_bytes(&self, model: &TextModel, positions: u64) -> u64 {
        let shape = model.kv_shape(self.owner.shared.settings.kv_type);
        positions.div_ceil(BLOCK as u64).saturating_mul(shape.block_bytes())
    }

    /// What the model's keys and values could take if no other model were there.
    fn kv_budget(&self, model: &TextModel) -> u64 {
        self.owner.shared.budget.total().saturating_sub(model.lease.bytes())
    }

    /// Takes nothing new and sends away what waits; what runs goes on.
    pub fn drain(&self) {
        self.owner.shared.close(queue::Gate::Draining);
    }

    /// Ends what runs, too.
    pub fn abort(&self) {
        self.owner.shared.close(queue::Gate::Aborting);
    }

    pub fn load(&self) -> Load {
        self.owner.shared.load()
    }

    /// The engine's figures as OpenMetrics text.
    pub fn metrics(&self) -> String {
        let Owner { shared, registry, .. } = &*self.owner;
        let loaded = registry.loaded();
        let (inbox, metrics) = (shared.lock(), &shared.metrics);
        for (key, id) in &loaded {
            metrics.load(id, &inbox.scheduler.counts_of(*key));
        }
        let counts = inbox.scheduler.counts();
        metrics.speed(inbox.speed().unwrap_or(0.));
        metrics.texts(inbox.texts.waiting());
        metrics.waiting_pictures(inbox.images.waiting(None));
        drop(inbox);
        metrics.memory("weights", shared.budget.weights());
        metrics.memory("scratch", shared.budget.scratch());
        metrics.memory("kv_held", counts.held_bytes);
        metrics.memory("kv_cached", counts.cached_bytes);
        metrics.memory("total", shared.budget.total());
        metrics.text()
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("load", &self.load()).finish_non_exhaustive()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.close(queue::Gate::Closed);
        if let Some(worker) = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = worker.join();
        }
    }
}

fn check(model: &TextModel, request: &Generation) -> Result<(), String> {
    let Generation { prompt, choices, max_tokens, stop, logprobs, .. } = request;
    let (context, vocabulary) = (u64::from(model.context_window()), model.vocabulary());
    if prompt.is_empty() || *max_tokens == 0 {
        return Err("a prompt and at least one token to generate are needed".to_owned());
    }
    if prompt.len() as u64 + u64::from(*max_tokens) > context {
        return Err(format!(
            "{} prompt tokens and {max_tokens} to generate exceed the context of {context}",
            prompt.len()
        ));
    }
    if let Some(id) = prompt.iter().find(|&&id| id as usize >= vocabulary) {
        return Err(format!("the prompt has the token {id}, the vocabulary has {vocabulary}"));
    }
    if !(1..=MOST_CHOICES).contains(choices) {
        return Err(format!("{choices} choices, 1 to {MOST_CHOICES} are possible"));
    }
    if logprobs.is_some_and(|count| count > MOST_TOP_LOGPROBS) {
        return Err(format!("at most {MOST_TOP_LOGPROBS} alternatives have log-probabilities"));
    }
    if stop.len() > MOST_STOPS || stop.iter().any(String::is_empty) {
        return Err(format!("at most {MOST_STOPS} stop strings, none of them empty"));
    }
    request.sampling.check(vocabulary)
}
