//! The residual blocks of the prosody predictor and the decoder.

use super::style::StyledNorm;
use crate::backend::{AdaIn, ChannelActivation, Conv1dShape, Tensor, TimeConvolutions};
use crate::error::Result;
use crate::nn::{Context, Conv1d};
use crate::weights::Loader;

const ACTIVATION_SLOPE: f32 = 0.2;

/// Two convolutions, each after an adaptive norm, and a shortcut.
#[derive(Debug)]
pub(super) struct ResidualBlock<B: TimeConvolutions> {
    norms: [StyledNorm; 2],
    convs: [Conv1d<B>; 2],
    /// For a change of channels.
    shortcut: Option<Conv1d<B>>,
    /// Doubles the length.
    upsample: Option<LearnedUpsample<B>>,
}

/// The sizes of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockShape {
    pub inputs: usize,
    pub outputs: usize,
    pub style: usize,
    /// Doubles the length.
    pub upsamples: bool,
}

impl<B: TimeConvolutions> ResidualBlock<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, shape: BlockShape) -> Result<Self> {
        let BlockShape { inputs, outputs, style, upsamples } = shape;
        let conv = |name: &str, inputs: usize, kernel: usize| {
            let padding = [kernel / 2; 2];
            let shape = Conv1dShape { inputs, outputs, kernel, stride: 1, dilation: 1, padding };
            loader.conv1d(&format!("{stem}.{name}"), shape)
        };
        let norm = |name: &str, channels| StyledNorm::load(loader, &format!("{stem}.{name}"), style, channels);
        let upsample = || LearnedUpsample::load(loader, &format!("{stem}.pool"), inputs);
        Ok(Self {
            norms: [norm("norm1", inputs)?, norm("norm2", outputs)?],
            convs: [conv("conv1", inputs, 3)?, conv("conv2", outputs, 3)?],
            shortcut: (inputs != outputs).then(|| conv("conv1x1", inputs, 1)).transpose()?,
            upsample: upsamples.then(upsample).transpose()?,
        })
    }

    /// `x`: `[1, frames, 1, inputs]`, `style`: `[style]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: Tensor<B>, style: &[f32]) -> Result<Tensor<B>> {
        let activation = || ChannelActivation::LeakyRelu(ACTIVATION_SLOPE);
        let [norm, second_norm] = &self.norms;
        let [conv, second_conv] = &self.convs;
        let norm = AdaIn { norm: norm.styled(ctx, style)?, activation: activation() };
        let y = match &self.upsample {
            Some(upsample) => conv.forward(ctx, &upsample.forward(ctx, &ctx.adain(&norm, &x)?)?)?,
            None => conv.forward_adain(ctx, &norm, &x)?,
        };
        let norm = AdaIn { norm: second_norm.styled(ctx, style)?, activation: activation() };
        let mut y = second_conv.forward_adain(ctx, &norm, &y)?;
        let mut shortcut = if let Some(conv) = &self.shortcut { conv.forward(ctx, &x)? } else { x };
        if self.upsample.is_some() {
            shortcut = ctx.resize(&shortcut, [2 * shortcut.rows(), 1])?;
        }
        ctx.add(&mut y, &shortcut)?;
        ctx.multiply(&mut y, std::f32::consts::FRAC_1_SQRT_2)?;
        Ok(y)
    }
}

/// A transposed convolution of each channel, with three taps, a stride of two, and one output cut off at the start.
#[derive(Debug)]
struct LearnedUpsample<B: TimeConvolutions> {
    /// The taps and the bias: `[1, 1, 1, 4 · channels]`.
    weights: Tensor<B>,
}

impl<B: TimeConvolutions> LearnedUpsample<B> {
    fn load(loader: &Loader<'_, B>, stem: &str, channels: usize) -> Result<Self> {
        let taps = loader.values(stem, &[channels, 1, 3])?;
        let bias = loader.bias(stem, channels)?;
        let tap = |index: usize| taps.iter().skip(index).step_by(3);
        let weights: Vec<f32> = tap(0).chain(tap(1)).chain(tap(2)).chain(&bias).copied().collect();
        Ok(Self { weights: loader.backend().tensor(&weights, [1, 1, 1, 4 * channels])? })
    }

    /// Even outputs get an input times the middle tap. Odd ones get it times the last tap, and the next input times the
    /// first tap.
    fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let (length, shape) = (x.rows(), x.shape());
        let mut even = ctx.zeros(shape)?;
        ctx.modulate(&mut even, &self.weights, [3, 0])?;
        let mut odd = ctx.copy(&even)?;
        ctx.add_gated(&mut even, x, &self.weights, 1)?;
        ctx.add_gated(&mut odd, x, &self.weights, 2)?;
        let mut next = ctx.zeros(shape)?;
        ctx.write_rows(&mut next, 0, &ctx.rows(x, 1..length)?)?;
        ctx.add_gated(&mut odd, &next, &self.weights, 0)?;
        let both = ctx.concat_channels(&even, &odd)?;
        ctx.reshape(both, [1, 2 * length, 1, x.channels])
    }
}
