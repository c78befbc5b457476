//! The decoder: from the encodings of frames, pitch and energy to the features of the vocoder.

use super::config::KokoroConfig;
use super::residual::{BlockShape, ResidualBlock};
use super::vocoder::Vocoder;
use crate::backend::{Backend, Conv1dShape, Tensor, TimeConvolutions};
use crate::error::{ModelError, Result};
use crate::nn::{Context, Conv1d};
use crate::weights::Loader;

/// Residual blocks after the first one. The last one doubles the length.
const BLOCKS: usize = 4;

#[derive(Debug)]
pub(super) struct Decoder<B: TimeConvolutions> {
    /// They halve the length of pitch and energy.
    pitch_conv: Conv1d<B>,
    energy_conv: Conv1d<B>,
    encode: ResidualBlock<B>,
    /// Reduces the encodings of frames, which all blocks get.
    reduce: Conv1d<B>,
    blocks: Vec<ResidualBlock<B>>,
    vocoder: Vocoder<B>,
}

/// The encodings, pitch and energy of a text.
#[derive(Debug)]
pub(super) struct Frames<B: Backend> {
    /// The encodings of the tokens of frames: `[1, frames, 1, hidden]`.
    pub encoded: Tensor<B>,
    /// `[1, 2 · frames, 1, 1]`
    pub pitch: Tensor<B>,
    /// `[1, 2 · frames, 1, 1]`
    pub energy: Tensor<B>,
}

impl<B: TimeConvolutions> Decoder<B> {
    pub fn load(loader: &Loader<'_, B>, config: &KokoroConfig) -> Result<Self> {
        let KokoroConfig { hidden, style, .. } = *config;
        let half = Conv1dShape { inputs: 1, outputs: 1, kernel: 3, stride: 2, dilation: 1, padding: [1, 1] };
        // The config does not have these widths.
        let width = outputs(loader, "decoder.encode.conv1")?;
        let reduced = outputs(loader, "decoder.asr_res.0")?;
        let pointwise =
            Conv1dShape { inputs: hidden, outputs: reduced, kernel: 1, stride: 1, dilation: 1, padding: [0; 2] };
        let block = |index: usize| {
            let upsamples = index + 1 == BLOCKS;
            let outputs = if upsamples { config.vocoder.channels } else { width };
            let shape = BlockShape { inputs: width + 2 + reduced, outputs, style, upsamples };
            ResidualBlock::load(loader, &format!("decoder.decode.{index}"), shape)
        };
        let encode = BlockShape { inputs: hidden + 2, outputs: width, style, upsamples: false };
        Ok(Self {
            pitch_conv: loader.conv1d("decoder.F0_conv", half)?,
            energy_conv: loader.conv1d("decoder.N_conv", half)?,
            encode: ResidualBlock::load(loader, "decoder.encode", encode)?,
            reduce: loader.conv1d("decoder.asr_res.0", pointwise)?,
            blocks: (0..BLOCKS).map(block).collect::<Result<_>>()?,
            vocoder: Vocoder::load(loader, config)?,
        })
    }

    /// The samples of a text. `style` is `[style]`; `noise` has a normal value for each sample.
    pub fn forward(&self, ctx: &Context<'_, B>, frames: Frames<B>, style: &[f32], noise: &[f32]) -> Result<Vec<f32>> {
        let pitch = self.pitch_conv.forward(ctx, &frames.pitch)?;
        let curves = ctx.concat_channels(&pitch, &self.energy_conv.forward(ctx, &frames.energy)?)?;
        let pitch = ctx.to_vec(&frames.pitch)?;
        let x = ctx.concat_channels(&frames.encoded, &curves)?;
        let mut x = self.encode.forward(ctx, x, style)?;
        let reduced = ctx.concat_channels(&self.reduce.forward(ctx, &frames.encoded)?, &curves)?;
        drop((frames, curves));
        for block in &self.blocks {
            x = block.forward(ctx, ctx.concat_channels(&x, &reduced)?, style)?;
        }
        drop(reduced);
        self.vocoder.forward(ctx, x, style, &pitch, noise)
    }
}

/// The output channels of a convolution in the checkpoint.
fn outputs<B: Backend>(loader: &Loader<'_, B>, stem: &str) -> Result<usize> {
    match loader.shape(stem)?.as_slice() {
        [outputs, _, _] if (1..=1 << 14).contains(outputs) => Ok(*outputs),
        shape => Err(ModelError::Checkpoint(format!("{stem} has the shape {shape:?}, which is no convolution"))),
    }
}
