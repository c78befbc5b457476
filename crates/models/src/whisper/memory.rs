//! Upper bounds of the memory that a model needs.

use super::attention::attention_shape;
use super::config::WhisperConfig;
use crate::backend::{DType, PagedAttention, TimeConvolutions};
use crate::weights::{Footprint, Weights};

/// The memory that the weights need.
pub(super) fn footprint<B: TimeConvolutions>(
    source: &dyn Weights,
    config: &WhisperConfig,
    precision: Option<DType>,
    backend: &B,
) -> Footprint {
    let mut footprint = Footprint::with_time_convolutions(source, backend, precision);
    // Positions are not rounded, and those of the encoder are floats.
    let positions = (config.audio_positions + config.context) * config.width;
    footprint.weights += (size_of::<f32>() * positions) as u64;
    footprint
}

/// An upper bound of the temporary bytes of encoding `windows` windows.
pub(super) fn encode_bytes<B: PagedAttention>(config: &WhisperConfig, backend: &B, windows: usize) -> u64 {
    let WhisperConfig { width, encoder_inner: inner, audio_positions, encoder_heads: heads, mels, .. } = *config;
    let rows = windows * (audio_positions + 1);
    // The spectrogram and the outputs of the convolutions, which have two frames for each position; later the residual
    // stream, the input of a sublayer, queries, keys, values and attention, or a hidden layer; activations that are rounded
    // for products.
    let convolutions = 2 * rows * (mels + 2 * width);
    let layers = rows * (6 * width + 2 * width.max(inner));
    // Keys and values of an image are copied.
    let copies = 2 * (audio_positions + 16) * width;
    let attention = backend.kv_attention_bytes(&attention_shape(width, heads, false), audio_positions, audio_positions);
    (size_of::<f32>() * (convolutions + layers + copies) + attention) as u64
}

/// An upper bound of the temporary bytes of decoding `tokens` tokens, of which `logits` have logits.
pub(super) fn decode_bytes<B: PagedAttention>(
    config: &WhisperConfig,
    backend: &B,
    tokens: usize,
    logits: usize,
) -> u64 {
    let WhisperConfig { width, decoder_inner: inner, decoder_heads: heads, vocabulary, audio_positions, .. } = *config;
    let floats = tokens * (8 * width + 2 * width.max(inner)) + logits * (vocabulary + 3 * width);
    let attention = backend.kv_attention_bytes(&attention_shape(width, heads, false), tokens, audio_positions);
    (size_of::<f32>() * floats + attention) as u64
}
