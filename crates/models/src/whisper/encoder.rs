//! The encoder of audio: two convolutions, and layers with bidirectional attention.

use super::attention::{Attention, EPSILON, ResidualStream, load_mlp};
use super::config::WhisperConfig;
use super::log_mel::LogMelSpectrogram;
use crate::backend::{Activation, Backend, Conv1dShape, Norm, Tensor, TimeConvolutions};
use crate::error::{ModelError, Result};
use crate::nn::{Context, Conv1d, Linear, Mlp};
use crate::weights::Loader;

/// Frames that a convolution sees.
const KERNEL: usize = 3;

/// The encoder's weights.
#[derive(Debug)]
pub(super) struct AudioEncoder<B: TimeConvolutions> {
    conv1: Conv1d<B>,
    conv2: Conv1d<B>,
    /// `[1, audio_positions, 1, width]`
    positions: Tensor<B>,
    layers: Vec<EncoderLayer<B>>,
    norm: Norm<B>,
    heads: usize,
}

#[derive(Debug)]
struct EncoderLayer<B: Backend> {
    attn_norm: Norm<B>,
    attn: Attention<B>,
    ffn_norm: Norm<B>,
    mlp: Mlp<B>,
}

impl<B: TimeConvolutions> AudioEncoder<B> {
    pub fn load(loader: &Loader<'_, B>, config: &WhisperConfig) -> Result<Self> {
        let WhisperConfig { width, mels, encoder_inner: inner, encoder_heads: heads, .. } = *config;
        let conv = |stem: &str, inputs, stride| {
            let shape = Conv1dShape { inputs, outputs: width, kernel: KERNEL, stride, dilation: 1, padding: [1; 2] };
            loader.conv1d(stem, shape)
        };
        let layer = |index: usize| {
            let stem = |suffix: &str| format!("encoder.blk.{index}.{suffix}");
            Ok(EncoderLayer {
                attn_norm: Norm::load_layer_norm(loader, &stem("attn_norm"), width, EPSILON)?,
                attn: Attention::load(loader, &stem("attn"), width)?,
                ffn_norm: Norm::load_layer_norm(loader, &stem("ffn_norm"), width, EPSILON)?,
                mlp: load_mlp(loader, &stem("ffn"), width, inner)?,
            })
        };
        Ok(Self {
            conv1: conv("encoder.conv1", mels, 1)?,
            conv2: conv("encoder.conv2", width, 2)?,
            positions: positions(loader, config)?,
            layers: (0..config.encoder_layers).map(layer).collect::<Result<_>>()?,
            norm: Norm::load_layer_norm(loader, "encoder.norm", width, EPSILON)?,
            heads,
        })
    }

    /// The hidden states of windows: `[windows, audio_positions, 1, width]`.
    pub fn forward(&self, ctx: &Context<'_, B>, mels: &[&LogMelSpectrogram]) -> Result<Tensor<B>> {
        let mut stream = ResidualStream { x: self.embed(ctx, mels)?, y: None };
        for layer in &self.layers {
            let normed = stream.norm(ctx, &layer.attn_norm)?;
            let Attention { q, k, v, output } = &layer.attn;
            let [q, k, v] = Linear::forward_all(ctx, [q, k, v], &normed)?;
            let attention = ctx.attention([&q, &k, &v], self.heads, false)?;
            drop((normed, q, k, v));
            stream.y = Some(output.forward(ctx, &attention)?);
            drop(attention);
            let normed = stream.norm(ctx, &layer.ffn_norm)?;
            stream.y = Some(layer.mlp.forward(ctx, &normed)?);
        }
        stream.norm(ctx, &self.norm)
    }

    /// The output of the convolutions, with positions.
    fn embed(&self, ctx: &Context<'_, B>, mels: &[&LogMelSpectrogram]) -> Result<Tensor<B>> {
        let positions = self.positions.rows();
        let frames = 2 * positions;
        let bands = mels.first().map_or(0, |mel| mel.mels());
        if let Some(mel) = mels.iter().find(|mel| mel.mels() != bands || mel.frames() != frames) {
            let (found, bands) = (mel.frames(), mel.mels());
            return Err(ModelError::Compute(format!(
                "a spectrogram of {found} frames of {bands} bands does not fit {frames} frames"
            )));
        }
        let x = ctx.upload([mels.len(), frames, 1, bands], &mut |x| {
            for (mel, x) in mels.iter().zip(x.chunks_exact_mut((frames * bands).max(1))) {
                x.copy_from_slice(mel.values());
            }
            Ok(())
        })?;
        let mut x = self.conv1.forward(ctx, &x)?;
        ctx.activate(Activation::Gelu, &mut x, None)?;
        let mut x = self.conv2.forward(ctx, &x)?;
        ctx.activate(Activation::Gelu, &mut x, None)?;
        for window in 0..mels.len() {
            ctx.add_rows(&mut x, window * positions, &self.positions)?;
        }
        Ok(x)
    }
}

/// The position embeddings of the checkpoint, or the sinusoids from which they were made.
fn positions<B: Backend>(loader: &Loader<'_, B>, config: &WhisperConfig) -> Result<Tensor<B>> {
    let WhisperConfig { audio_positions: count, width, .. } = *config;
    let stem = "encoder.positions";
    let values = match loader.has(stem) {
        true => {
            let table = loader.table(stem, count, width)?;
            let mut values = vec![0.; count * width];
            table.look_up(0..count as u32, false, &mut values)?;
            values
        }
        false => sinusoids(count, width),
    };
    loader.backend().tensor(&values, [1, count, 1, width])
}

/// `sinusoids` of openai-whisper: sines in the first half of a row, cosines in the second.
fn sinusoids(count: usize, width: usize) -> Vec<f32> {
    let half = width / 2;
    let step = 10_000f64.ln() / half.saturating_sub(1).max(1) as f64;
    let angle = |position: usize, index: usize| position as f64 * (-step * index as f64).exp();
    let row = |position: usize| {
        let sines = (0..half).map(move |index| angle(position, index).sin());
        sines.chain((0..width - half).map(move |index| angle(position, index).cos()))
    };
    (0..count).flat_map(row).map(|value| value as f32).collect()
}
