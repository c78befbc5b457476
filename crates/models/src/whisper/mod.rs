//! Whisper, a speech recognition model: an encoder of audio and a decoder of text (Radford et al. 2022,
//! <https://arxiv.org/abs/2212.04356>), following transformers' `WhisperForConditionalGeneration`.
//!
//! Audio is cut into windows of at most 30 seconds. A window becomes a log-mel spectrogram ([`LogMel`]), and the encoder
//! turns it into 1500 hidden states. The keys and values that each decoder layer computes from them are kept in a slot of a
//! [`WhisperCache`]. The decoder then computes the tokens of many slots in one ragged batch.

mod alignment_heads;
mod attention;
mod byte_pair_merges;
mod cache;
mod config;
mod decoder;
mod encoder;
mod ggml;
mod languages;
mod log_mel;
mod mel_filters;
mod memory;
mod model;
mod special_tokens;
mod tensor_names;
#[cfg(test)]
mod tests;
mod weights;

pub use alignment_heads::alignment_heads;
pub use byte_pair_merges::{Merge, byte_pair_merges};
pub use cache::WhisperCache;
pub use config::WhisperConfig;
pub use decoder::DecodeInput;
pub use ggml::GgmlFile;
pub use languages::{LANGUAGES, find_language, language_name};
pub use log_mel::{LogMel, LogMelSpectrogram, SAMPLE_RATE};
pub use mel_filters::MelFilters;
pub use model::WhisperModel;
pub use special_tokens::{LANGUAGES_BEFORE_V3, SpecialTokens, timestamp_texts};
pub use weights::WhisperWeights;
