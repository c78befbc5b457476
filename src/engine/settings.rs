//! How the engine is set up.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::precision::Precisions;
use crate::models::kv::KvType;
use crate::models::scratch::StepLimits;

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
    pub tenant_divisor: usize,
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
    pub client_timeout: Duration,
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
            tenant_divisor: 2,
            prefill_chunk: 256,
            kv_type: KvType::default(),
            speculate: true,
            drafts: Drafts::default(),
            precisions: Precisions::default(),
            max_queued_texts: 4 << 20,
            max_queued_images: 64,
            client_timeout: Duration::from_secs(60),
            sandbox: None,
        }
    }

    /// The most that a step is made of.
    pub(super) fn step_limits(&self) -> StepLimits {
        let draft = if self.speculate { MAX_DRAFT_TOKENS } else { 0 };
        let logits = self.max_running * (1 + draft);
        StepLimits { tokens: self.prefill_chunk + logits, rows: self.max_running, logits, threads: self.threads }
    }
}

/// Most tokens of an answer that are guessed for one check, whoever guesses.
pub(super) const MAX_DRAFT_TOKENS: usize = 8;
/// DeltaStream that wait for a slow reader before its sequence pauses.
pub(super) const DELTA_BUFFER: usize = 64;
/// As OpenAI has them.
pub(super) const MAX_CHOICES: u32 = 128;
pub(super) const MAX_TOP_LOGPROBS: u8 = 20;
pub(super) const MAX_STOPS: usize = 64;
pub(super) const MAX_IMAGES: usize = 10;
