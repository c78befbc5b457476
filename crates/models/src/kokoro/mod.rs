//! Kokoro: speech from phonemes, a StyleTTS 2 (Li et al. 2023, <https://arxiv.org/abs/2306.07691>) without diffusion, as in the
//! reference implementation (<https://github.com/hexgrad/kokoro>).
//!
//! The text part encodes tokens and predicts how many frames each of them takes. The decoder then gets the encodings of
//! frames, with their pitch and energy, and its vocoder computes the samples. Both depend on a style, which comes from a
//! [`Voice`].

mod albert;
mod config;
mod decoder;
mod memory;
mod prosody;
mod residual;
mod snake_block;
mod source;
mod stft;
mod style;
mod tensor_names;
#[cfg(test)]
mod tests;
mod text_encoder;
mod vocoder;
mod voice;

use super::backend::{Backend, DType, Tensor, TimeConvolutions};
use super::diffusion::noise::Generator;
use super::nn::Context;
use super::safetensors::ModelFolder;
use super::weights::Loader;
use crate::error::{ModelError, Result};
use albert::Albert;
pub use config::{AlbertConfig, BlockConfig, KokoroConfig, Upsampling, VocoderConfig};
use decoder::{Decoder, Frames};
use prosody::ProsodyPredictor;
pub use source::SAMPLE_RATE;
use tensor_names::{KokoroWeights, Part};
use text_encoder::TextEncoder;
pub use voice::Voice;

/// The slowest and the fastest speech.
pub const SPEEDS: std::ops::RangeInclusive<f32> = 0.25..=4.;

/// A loaded model, shared by all requests.
#[derive(Debug)]
pub struct KokoroModel<B: TimeConvolutions> {
    config: KokoroConfig,
    albert: Albert<B>,
    text_encoder: TextEncoder<B>,
    prosody: ProsodyPredictor<B>,
    decoder: Decoder<B>,
}

/// A text whose durations are known.
#[derive(Debug)]
pub struct EncodedText<B: Backend> {
    /// Frames of each token.
    pub durations: Vec<usize>,
    /// For the predictors of pitch and energy: `[1, tokens, 1, hidden + style]`.
    prosody: Tensor<B>,
    /// For the decoder: `[1, tokens, 1, hidden]`.
    encoded: Tensor<B>,
}

impl<B: Backend> EncodedText<B> {
    /// Frames of all tokens.
    pub fn frames(&self) -> usize {
        self.durations.iter().sum()
    }
}

/// Spoken text.
#[derive(Clone, Debug, PartialEq)]
pub struct Speech {
    /// Samples at [`SAMPLE_RATE`], mono, about −1 to 1.
    pub samples: Vec<f32>,
    /// Frames of each token; a frame has [`KokoroConfig::frame_samples`] samples.
    pub durations: Vec<usize>,
}

impl<B: TimeConvolutions> KokoroModel<B> {
    /// Reads the weights. Those of the decoder are rounded to `precision`; the predictors of durations keep theirs.
    ///
    /// # Errors
    /// If the checkpoint is damaged, or does not fit the config.
    pub fn load(folder: &ModelFolder, config: KokoroConfig, backend: &B, precision: Option<DType>) -> Result<Self> {
        let source = KokoroWeights { folder, part: Part::Text };
        let loader = Loader::new(&source, backend);
        let (albert, text_encoder) = (Albert::load(&loader, &config)?, TextEncoder::load(&loader, &config)?);
        let prosody = ProsodyPredictor::load(&loader, &config)?;
        loader.finish()?;
        let source = KokoroWeights { folder, part: Part::Decoder };
        let loader = Loader::new(&source, backend).with_precision(precision);
        let decoder = Decoder::load(&loader, &config)?;
        loader.finish()?;
        Ok(Self { config, albert, text_encoder, prosody, decoder })
    }

    pub fn config(&self) -> &KokoroConfig {
        &self.config
    }

    /// Speaks a text. `tokens` are those of [`KokoroConfig::tokens`], `style` is that of [`Voice::style`]. The same seed gives
    /// the same samples.
    ///
    /// # Errors
    /// If the text is too long, a token does not exist, or the style or the speed is out of range.
    pub fn synthesize(
        &self,
        ctx: &Context<'_, B>,
        tokens: &[u32],
        style: &[f32],
        speed: f32,
        seed: u64,
    ) -> Result<Speech> {
        let text = self.encode(ctx, tokens, style, speed)?;
        self.decode(ctx, text, style, seed)
    }

    /// The first part of [`Self::synthesize`], which takes a small part of its time and memory. It determines how much
    /// memory the second part needs.
    ///
    /// # Errors
    /// As [`Self::synthesize`].
    pub fn encode(&self, ctx: &Context<'_, B>, tokens: &[u32], style: &[f32], speed: f32) -> Result<EncodedText<B>> {
        let KokoroConfig { vocabulary, .. } = self.config;
        if tokens.is_empty() || tokens.len() > self.config.albert.context {
            let (count, limit) = (tokens.len(), self.config.albert.context);
            return Err(ModelError::Parameters(format!("a text has {count} tokens; 1 to {limit} are allowed")));
        }
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            return Err(ModelError::Parameters(format!(
                "there is no token {token}; the last one is {}",
                vocabulary - 1
            )));
        }
        if !SPEEDS.contains(&speed) {
            let (min, max) = (SPEEDS.start(), SPEEDS.end());
            return Err(ModelError::Parameters(format!("the speed is {speed}; it must be from {min} to {max}")));
        }
        let [_, prosody_style] = self.styles(style)?;
        let encoded = self.albert.forward(ctx, tokens)?;
        let prosody = self.prosody.encode(ctx, &encoded, prosody_style)?;
        let durations = self.prosody.durations(ctx, &prosody, speed)?;
        Ok(EncodedText { durations, prosody, encoded: self.text_encoder.forward(ctx, tokens)? })
    }

    /// The second part of [`Self::synthesize`].
    ///
    /// # Errors
    /// As [`Self::synthesize`].
    pub fn decode(&self, ctx: &Context<'_, B>, text: EncodedText<B>, style: &[f32], seed: u64) -> Result<Speech> {
        let noise = Generator::new(seed).normal(text.frames() * self.config.frame_samples());
        self.decode_with_noise(ctx, text, style, &noise)
    }

    /// Like [`Self::decode`], with a normal value for each sample; zeros leave out the noise.
    ///
    /// # Errors
    /// As [`Self::synthesize`].
    pub fn decode_with_noise(
        &self,
        ctx: &Context<'_, B>,
        text: EncodedText<B>,
        style: &[f32],
        noise: &[f32],
    ) -> Result<Speech> {
        let EncodedText { durations, prosody, encoded } = text;
        let [decoder_style, prosody_style] = self.styles(style)?;
        let rows: Vec<usize> =
            durations.iter().enumerate().flat_map(|(row, count)| std::iter::repeat_n(row, *count)).collect();
        let prosody = ctx.gather_rows(&prosody, &rows)?;
        let encoded = ctx.gather_rows(&encoded, &rows)?;
        let [pitch, energy] = self.prosody.curves(ctx, &prosody, prosody_style)?;
        drop(prosody);
        let samples = self.decoder.forward(ctx, Frames { encoded, pitch, energy }, decoder_style, noise)?;
        Ok(Speech { samples, durations })
    }

    /// The styles of the decoder and of the prosody, each `[style]`.
    fn styles<'a>(&self, style: &'a [f32]) -> Result<[&'a [f32]; 2]> {
        let width = self.config.style;
        match style.split_at_checked(width).filter(|(_, second)| second.len() == width) {
            Some((first, second)) => Ok([first, second]),
            None => {
                let found = style.len();
                Err(ModelError::Parameters(format!("the style has {found} values, the model needs {}", 2 * width)))
            }
        }
    }
}
