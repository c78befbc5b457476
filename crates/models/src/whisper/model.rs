//! A loaded model.

use super::cache::{WhisperCache, cache_bytes};
use super::config::WhisperConfig;
use super::decoder::{DecodeInput, TextDecoder};
use super::encoder::AudioEncoder;
use super::log_mel::LogMelSpectrogram;
use super::memory;
use crate::backend::{DType, PagedAttention, TimeConvolutions};
use crate::error::{ModelError, Result};
use crate::kv::KvType;
use crate::nn::Context;
use crate::weights::{Footprint, Loader, Weights};

/// A loaded Whisper model, shared by all windows.
#[derive(Debug)]
pub struct WhisperModel<B: PagedAttention + TimeConvolutions> {
    config: WhisperConfig,
    encoder: AudioEncoder<B>,
    decoder: TextDecoder<B>,
}

impl<B: PagedAttention + TimeConvolutions> WhisperModel<B> {
    /// Reads the weights, with projections and token embeddings rounded to `precision`.
    ///
    /// # Errors
    /// If the checkpoint is damaged, or its tensors do not fit `config`.
    pub fn load(source: &dyn Weights, config: WhisperConfig, precision: Option<DType>, backend: &B) -> Result<Self> {
        let loader = Loader::new(source, backend).with_precision(precision);
        let encoder = AudioEncoder::load(&loader, &config)?;
        let decoder = TextDecoder::load(&loader, &config)?;
        loader.finish()?;
        Ok(Self { config, encoder, decoder })
    }

    /// The memory that the weights need.
    pub fn footprint(source: &dyn Weights, config: &WhisperConfig, precision: Option<DType>, backend: &B) -> Footprint {
        memory::footprint(source, config, precision, backend)
    }

    pub fn config(&self) -> &WhisperConfig {
        &self.config
    }

    /// A cache for `slots` windows at once. All its memory is allocated.
    ///
    /// # Errors
    /// If the device has no memory.
    pub fn new_cache(&self, backend: &B, slots: usize, kv_type: KvType) -> Result<WhisperCache<B>> {
        WhisperCache::new(&self.config, backend, slots, kv_type)
    }

    /// Bytes of [`Self::new_cache`].
    pub fn cache_bytes(config: &WhisperConfig, slots: usize, kv_type: KvType) -> u64 {
        cache_bytes(config, slots, kv_type)
    }

    /// An upper bound of the temporary bytes of [`Self::encode`] for `windows` windows.
    pub fn encode_bytes(config: &WhisperConfig, backend: &B, windows: usize) -> u64 {
        memory::encode_bytes(config, backend, windows)
    }

    /// An upper bound of the temporary bytes of [`Self::decode`] for inputs of `tokens` tokens in total, of which `logits`
    /// are selected.
    pub fn decode_bytes(config: &WhisperConfig, backend: &B, tokens: usize, logits: usize) -> u64 {
        memory::decode_bytes(config, backend, tokens, logits)
    }

    /// Encodes windows into slots, one each. Tokens of the slots are forgotten. A handle for a request pauses every few
    /// milliseconds.
    ///
    /// # Errors
    /// If a spectrogram does not fit the model, there is not one slot for each, a slot does not exist or is named twice, or
    /// the computation is cancelled. The slots hold no window then.
    pub fn encode(
        &self,
        ctx: &Context<'_, B>,
        cache: &mut WhisperCache<B>,
        slots: &[usize],
        mels: &[&LogMelSpectrogram],
    ) -> Result<()> {
        let mut distinct = slots.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != mels.len() || slots.len() != mels.len() {
            return Err(ModelError::Compute(format!("{} spectrograms do not fit the slots {slots:?}", mels.len())));
        }
        if let Some(mel) = mels.iter().find(|mel| mel.mels() != self.config.mels) {
            let (found, expected) = (mel.mels(), self.config.mels);
            return Err(ModelError::Compute(format!("a spectrogram has {found} bands, the model takes {expected}")));
        }
        slots.iter().try_for_each(|slot| cache.set_encoded(*slot, false))?;
        if mels.is_empty() {
            return Ok(());
        }
        let audio = self.encoder.forward(ctx, mels)?;
        self.decoder.write_audio(ctx, cache, slots, &audio)?;
        slots.iter().try_for_each(|slot| cache.set_encoded(*slot, true))
    }

    /// Computes the tokens of several slots in one batch. Returns the logits of the tokens that [`DecodeInput::logits`]
    /// selects, in the order of the inputs: `[selected tokens, vocabulary]`.
    ///
    /// # Errors
    /// If a slot holds no window or is named twice, tokens do not follow those of the slot, exceed the context or are not in
    /// the vocabulary, or the computation is cancelled.
    pub fn decode(
        &self,
        ctx: &Context<'_, B>,
        cache: &mut WhisperCache<B>,
        inputs: &[DecodeInput<'_>],
    ) -> Result<Vec<f32>> {
        self.decoder.decode(ctx, cache, inputs)
    }

    /// The cross-attention weights of `heads`, as `(layer, head)`, at each of `tokens` from position 0 on: `[heads, tokens,
    /// audio_positions]`. The weights of a token add up to 1. The slot's tokens must be decoded again afterwards.
    ///
    /// # Errors
    /// As for [`Self::decode`], or if a head does not exist.
    pub fn alignment(
        &self,
        ctx: &Context<'_, B>,
        cache: &mut WhisperCache<B>,
        slot: usize,
        tokens: &[u32],
        heads: &[(usize, usize)],
    ) -> Result<Vec<f32>> {
        self.decoder.alignment(ctx, cache, slot, tokens, heads)
    }

    /// The encoder's hidden states of windows: `[windows, audio_positions, width]`.
    #[cfg(test)]
    pub(super) fn hidden_states(&self, ctx: &Context<'_, B>, mels: &[&LogMelSpectrogram]) -> Result<Vec<f32>> {
        ctx.to_vec(&self.encoder.forward(ctx, mels)?)
    }
}
