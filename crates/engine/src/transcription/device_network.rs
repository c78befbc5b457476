//! A Whisper network, without the type of its device.

use super::alignment::AttentionWeights;
use super::checkpoint::WhisperCheckpoint;
use crate::precision::Precision;
use outpost_models::ModelError;
use outpost_models::backend::{PagedAttention, Pause, RequestOptions, TimeConvolutions};
use outpost_models::kv::KvType;
use outpost_models::nn::Context;
use outpost_models::whisper::{DecodeInput, LogMel, WhisperCache, WhisperModel};

/// The data type of keys and values.
const KV_TYPE: KvType = KvType::F16;

/// A network on its device.
pub trait DeviceNetwork: Send + Sync {
    /// Bytes of memory that a batch of `slots` windows takes beside the weights.
    fn batch_bytes(&self, slots: usize) -> u64;

    /// Starts a batch of at most `slots` windows. `pause` is called every few milliseconds of its computations.
    ///
    /// # Errors
    /// If the device has no memory.
    fn start_batch(&self, slots: usize, pause: Pause) -> Result<Box<dyn NetworkBatch + '_>, ModelError>;
}

/// Windows that are computed together, each in a slot.
pub trait NetworkBatch {
    /// Encodes the audio of windows, each for its slot. Samples: 16 kHz mono, at most 30 s.
    fn encode(&mut self, windows: &[(usize, &[f32])]) -> Result<(), ModelError>;

    /// Computes tokens of some slots. Returns the logits that the inputs select, `[logits, vocabulary]`.
    fn decode(&mut self, inputs: &[DecodeInput<'_>]) -> Result<Vec<f32>, ModelError>;

    /// The attention of the alignment heads over the audio of a slot, for these tokens, which begin at position 0.
    fn alignment(&mut self, slot: usize, tokens: &[u32]) -> Result<AttentionWeights, ModelError>;
}

/// Reads the weights of a network.
pub fn load<B: PagedAttention + TimeConvolutions>(
    files: &WhisperCheckpoint,
    precision: Precision,
    backend: &B,
) -> Result<Box<dyn DeviceNetwork>, ModelError> {
    let model = WhisperModel::load(&files.weights(), *files.config(), precision.kind(), backend)?;
    let (log_mel, heads) = (files.log_mel(), files.alignment_heads());
    let bf16_attention = precision != Precision::Full;
    let (_binding, backend) = (backend.thread_binding(), backend.clone());
    Ok(Box::new(Network { _binding, model, log_mel, heads, backend, bf16_attention }))
}

struct Network<B: PagedAttention + TimeConvolutions> {
    _binding: B::ThreadBinding,
    model: WhisperModel<B>,
    log_mel: LogMel,
    /// The alignment heads, as `(layer, head)`.
    heads: Vec<(usize, usize)>,
    backend: B,
    bf16_attention: bool,
}

impl<B: PagedAttention + TimeConvolutions> DeviceNetwork for Network<B> {
    fn batch_bytes(&self, slots: usize) -> u64 {
        let config = self.model.config();
        // Half of the context is for the prompt, the other for the text.
        let tokens = slots * config.context.div_ceil(2);
        let encoding = WhisperModel::encode_bytes(config, &self.backend, 1);
        let decoding = WhisperModel::decode_bytes(config, &self.backend, tokens, 2 * slots);
        // They are copied once, to be normalised.
        let alignment = 2 * self.heads.len() * config.context * config.audio_positions * size_of::<f32>();
        let cache = WhisperModel::<B>::cache_bytes(config, slots, KV_TYPE);
        cache + encoding.max(decoding).max(alignment as u64)
    }

    fn start_batch(&self, slots: usize, pause: Pause) -> Result<Box<dyn NetworkBatch + '_>, ModelError> {
        let backend = self.backend.for_request(RequestOptions { pause, bf16_attention: self.bf16_attention });
        let cache = self.model.new_cache(&backend, slots, KV_TYPE)?;
        Ok(Box::new(Batch { network: self, backend, cache }))
    }
}

struct Batch<'a, B: PagedAttention + TimeConvolutions> {
    network: &'a Network<B>,
    backend: B,
    cache: WhisperCache<B>,
}

impl<B: PagedAttention + TimeConvolutions> NetworkBatch for Batch<'_, B> {
    fn encode(&mut self, windows: &[(usize, &[f32])]) -> Result<(), ModelError> {
        let Self { network: Network { model, log_mel, .. }, backend, cache } = self;
        let context = Context::new(backend);
        // One window is enough work for all threads.
        windows.iter().try_for_each(|(slot, samples)| {
            let mel = log_mel.compute(samples, &|| backend.pause())?;
            backend.pause()?;
            model.encode(&context, cache, &[*slot], &[&mel])
        })
    }

    fn decode(&mut self, inputs: &[DecodeInput<'_>]) -> Result<Vec<f32>, ModelError> {
        self.network.model.decode(&Context::new(&self.backend), &mut self.cache, inputs)
    }

    fn alignment(&mut self, slot: usize, tokens: &[u32]) -> Result<AttentionWeights, ModelError> {
        let Network { model, heads, .. } = self.network;
        let values = model.alignment(&Context::new(&self.backend), &mut self.cache, slot, tokens, heads)?;
        let frames = model.config().audio_positions;
        Ok(AttentionWeights { values, heads: heads.len(), tokens: tokens.len(), frames })
    }
}
