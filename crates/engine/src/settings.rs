//! Engine settings and fixed limits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::devices::Devices;
use super::precision::Precisions;
use outpost_common::disk_space::DiskReserve;
use outpost_models::kv::KvType;
use outpost_models::step_memory::StepLimits;

/// The engine's settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The models folder: each entry is one model.
    pub models_dir: PathBuf,
    /// Compute threads, including the engine's own.
    pub threads: usize,
    /// Memory budget for weights, KV cache and scratch buffers together; bytes.
    pub memory_bytes: u64,
    /// Max sequences generated at the same time.
    pub max_running: usize,
    /// Max queued requests of a model.
    pub max_queued_requests: usize,
    /// Max queued prompt tokens of a model.
    pub max_queued_tokens: usize,
    /// One tenant may fill at most `1 / tenant_divisor` of a queue.
    pub tenant_divisor: usize,
    /// Max prompt tokens prefilled in one step; fewer while other sequences decode, so that they do not stall.
    pub prefill_chunk: usize,
    /// The data type of the KV cache.
    pub kv_type: KvType,
    /// The prefix cache on disk, if there is one.
    pub prefix_disk: Option<PrefixDiskSettings>,
    /// Enables speculative decoding where it saves time. It does not change the output.
    pub speculate: bool,
    /// The draft models to use.
    pub drafts: Drafts,
    /// The precision of the weights of embedding, reranking and image models.
    pub precisions: Precisions,
    /// The devices that run the models; the CPU by default.
    pub devices: Devices,
    /// Max queued tokens of texts to embed or rank.
    pub max_queued_texts: usize,
    /// Max queued images.
    pub max_queued_images: usize,
    /// Max queued transcriptions.
    pub max_queued_transcriptions: usize,
    /// Max queued parts of texts to speak.
    pub max_queued_speech_parts: usize,
    /// Time without reads after which a client's request is cancelled.
    pub client_timeout: Duration,
    /// The `outpost` program. Tokenizers and chat templates run in child processes of it, with time and memory limits.
    /// `None`: they run in this process, which a malicious model file can then crash.
    pub sandbox: Option<PathBuf>,
}

/// The prefix cache on disk.
#[derive(Clone, Debug)]
pub struct PrefixDiskSettings {
    /// The folder of its files, which belongs to this process alone.
    pub folder: PathBuf,
    /// Max bytes of all files.
    pub max_bytes: u64,
    /// A secret from which the keys of all files derive.
    pub key: PrefixDiskKey,
    /// The space of the disk that is kept back for more important data.
    pub reserve: DiskReserve,
}

#[derive(Clone)]
pub struct PrefixDiskKey(pub [u8; 32]);

impl std::fmt::Debug for PrefixDiskKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PrefixDiskKey(..)")
    }
}

/// Which draft models to use for speculative decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drafts {
    /// Chooses draft models for models that `pairs` does not name.
    pub auto: bool,
    /// The draft model's ID by the target model's ID.
    pub pairs: BTreeMap<String, String>,
}

impl Default for Drafts {
    fn default() -> Self {
        Self { auto: true, pairs: BTreeMap::new() }
    }
}

impl Settings {
    /// Default limits for a models folder and a memory budget in bytes.
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
            prefix_disk: None,
            speculate: true,
            drafts: Drafts::default(),
            precisions: Precisions::default(),
            devices: Devices::default(),
            max_queued_texts: 4 << 20,
            max_queued_images: 64,
            max_queued_transcriptions: 64,
            max_queued_speech_parts: 4096,
            client_timeout: Duration::from_secs(60),
            sandbox: None,
        }
    }

    /// Whether a model drafts with its own layer for multi-token prediction, if it has one: unless a draft model is named for it.
    pub fn uses_mtp(&self, id: &str) -> bool {
        self.speculate && !self.drafts.pairs.contains_key(id)
    }

    /// The size of the largest step, which decides the size of scratch buffers.
    pub fn step_limits(&self) -> StepLimits {
        let draft = if self.speculate { MAX_DRAFT_TOKENS } else { 0 };
        let sampled = self.max_running * (1 + draft);
        let logits = sampled.max(MIN_STEP_LOGITS);
        StepLimits { tokens: self.prefill_chunk + sampled, rows: self.max_running, logits }
    }
}

/// Logits that each step may compute, for prompts whose log-probabilities are requested.
const MIN_STEP_LOGITS: usize = 64;
/// Max draft tokens of a sequence that one step verifies.
pub(super) const MAX_DRAFT_TOKENS: usize = 8;
/// Deltas buffered for a slow client before its sequence pauses.
pub(super) const DELTA_BUFFER: usize = 64;
// Limits of one request. The API uses the same ones, so that its errors name the field.
/// As in OpenAI's API. Choices beyond the slots wait, and have no state of their own before they run.
pub const MAX_CHOICES: u32 = 128;
pub const MAX_TOP_LOGPROBS: u8 = 20;
/// Max log-probabilities of one position, of all choices together: 16 choices with all alternatives. They take far more
/// memory than the text, and a response that is not streamed holds all of them.
pub const MAX_LOGPROBS_PER_POSITION: u32 = 16 * (1 + MAX_TOP_LOGPROBS as u32);
pub const MAX_STOPS: usize = 16;
pub const MAX_STOP_BYTES: usize = 256;
// The next three are those of vLLM.
pub const MAX_STOP_TOKENS: usize = 128;
pub const MAX_ALLOWED_TOKENS: usize = 1024;
pub const MAX_BAD_WORDS: usize = 128;
pub const MAX_IMAGES: u32 = 10;
