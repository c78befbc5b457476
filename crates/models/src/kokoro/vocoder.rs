//! The vocoder: an iSTFTNet (Kaneko et al. 2022, <https://arxiv.org/abs/2203.02395>) with a harmonic source. It upsamples
//! features to the spectra of short frames, which the inverse Fourier transform turns into samples.

use super::config::{BlockConfig, KokoroConfig, VocoderConfig};
use super::snake_block::SnakeBlock;
use super::source::HarmonicSource;
use super::stft::Stft;
use crate::backend::{Conv1dShape, Tensor, TimeConvolutions};
use crate::error::Result;
use crate::nn::{Context, Conv1d, ConvTranspose1d, ConvTranspose1dShape};
use crate::weights::Loader;

const SLOPE: f32 = 0.1;
/// The slope before the last convolution.
const LAST_SLOPE: f32 = 0.01;
/// Taps of the last convolution.
const LAST_KERNEL: usize = 7;

#[derive(Debug)]
pub(super) struct Vocoder<B: TimeConvolutions> {
    source: HarmonicSource,
    stft: Stft,
    bins: usize,
    stages: Vec<Stage<B>>,
    spectrum: Conv1d<B>,
}

/// An upsampling, to which the features of the excitation are added, and the mean of several residual blocks.
#[derive(Debug)]
struct Stage<B: TimeConvolutions> {
    source_conv: Conv1d<B>,
    source_block: SnakeBlock<B>,
    upsample: ConvTranspose1d<B>,
    blocks: Vec<SnakeBlock<B>>,
}

impl<B: TimeConvolutions> Stage<B> {
    fn load(loader: &Loader<'_, B>, config: &KokoroConfig, index: usize, kernel: usize, rate: usize) -> Result<Self> {
        let KokoroConfig { style, vocoder, .. } = config;
        let stem = |name: &str, index: usize| format!("decoder.generator.{name}.{index}");
        let (channels, count) = (vocoder.channels_after(index), vocoder.blocks.len());
        let upsample = ConvTranspose1dShape {
            inputs: vocoder.channels >> index,
            outputs: channels,
            kernel,
            stride: rate,
            padding: (kernel - rate) / 2,
        };
        let block = |(offset, block): (usize, &BlockConfig)| {
            SnakeBlock::load(loader, &stem("resblocks", count * index + offset), channels, *style, block)
        };
        let (source_conv, source_block) = source_shapes(vocoder, index);
        Ok(Self {
            source_conv: loader.conv1d(&stem("noise_convs", index), source_conv)?,
            source_block: SnakeBlock::load(loader, &stem("noise_res", index), channels, *style, &source_block)?,
            upsample: loader.conv_transpose1d(&stem("ups", index), upsample)?,
            blocks: vocoder.blocks.iter().enumerate().map(block).collect::<Result<_>>()?,
        })
    }

    /// `source` has the spectra of the excitation.
    fn forward(&self, ctx: &Context<'_, B>, mut x: Tensor<B>, source: &Tensor<B>, style: &[f32]) -> Result<Tensor<B>> {
        ctx.leaky_relu(&mut x, SLOPE)?;
        let x = self.upsample.forward(ctx, &x)?;
        let mut sum = self.source_block.forward(ctx, &self.source_conv.forward(ctx, source)?, style)?;
        // There is one more spectrum than hops. In the last stage, features are reflected at their start.
        let missing = sum.rows().saturating_sub(x.rows());
        ctx.add_rows(&mut sum, missing, &x)?;
        if missing > 0 {
            ctx.add_rows(&mut sum, 0, &ctx.rows(&x, 1..1 + missing)?)?;
        }
        drop(x);
        let mut mean: Option<Tensor<B>> = None;
        for block in &self.blocks {
            let y = block.forward(ctx, &sum, style)?;
            match &mut mean {
                Some(mean) => ctx.add(mean, &y)?,
                None => mean = Some(y),
            }
        }
        let mut mean = mean.unwrap_or(sum);
        ctx.divide(&mut mean, self.blocks.len() as f32)?;
        Ok(mean)
    }
}

/// The convolution of the spectra of the excitation to the rate of a stage, and the residual block that follows.
fn source_shapes(config: &VocoderConfig, index: usize) -> (Conv1dShape, BlockConfig) {
    let (inputs, outputs) = (2 * config.bins(), config.channels_after(index));
    let is_last = index + 1 == config.upsampling.len();
    let rate = config.rate_after(index);
    let (kernel, padding) = if is_last { (1, [0; 2]) } else { (2 * rate, [rate.div_ceil(2); 2]) };
    let block = BlockConfig { kernel: if is_last { 11 } else { 7 }, dilations: vec![1, 3, 5] };
    (Conv1dShape { inputs, outputs, kernel, stride: rate, dilation: 1, padding }, block)
}

impl<B: TimeConvolutions> Vocoder<B> {
    pub fn load(loader: &Loader<'_, B>, config: &KokoroConfig) -> Result<Self> {
        let vocoder = &config.vocoder;
        let stage = |(index, step): (usize, &super::config::Upsampling)| {
            Stage::load(loader, config, index, step.kernel, step.rate)
        };
        let spectrum = Conv1dShape {
            inputs: vocoder.channels >> vocoder.upsampling.len(),
            outputs: 2 * vocoder.bins(),
            kernel: LAST_KERNEL,
            stride: 1,
            dilation: 1,
            padding: [LAST_KERNEL / 2; 2],
        };
        Ok(Self {
            source: HarmonicSource::load(loader, vocoder)?,
            stft: Stft::new(vocoder.fft_size, vocoder.hop),
            bins: vocoder.bins(),
            stages: vocoder.upsampling.iter().enumerate().map(stage).collect::<Result<_>>()?,
            spectrum: loader.conv1d("decoder.generator.conv_post", spectrum)?,
        })
    }

    /// The samples for features of each value of the pitch, `[1, pitches, 1, channels]`. `noise` has a normal value for each
    /// sample.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        x: Tensor<B>,
        style: &[f32],
        pitch: &[f32],
        noise: &[f32],
    ) -> Result<Vec<f32>> {
        let excitation = self.source.excitation(ctx.pool(), pitch, noise);
        ctx.pause()?;
        let spectra = self.stft.transform(ctx.pool(), &excitation);
        ctx.pause()?;
        let width = 2 * self.bins;
        let source = ctx.tensor(&spectra, [1, spectra.len() / width, 1, width])?;
        drop((excitation, spectra));
        let mut x = x;
        for stage in &self.stages {
            x = stage.forward(ctx, x, &source, style)?;
        }
        drop(source);
        ctx.leaky_relu(&mut x, LAST_SLOPE)?;
        let rows = x.rows();
        let mut spectra = ctx.download(self.spectrum.forward(ctx, &x)?)?;
        drop(x);
        for spectrum in spectra.chunks_exact_mut(width).take(rows) {
            let (magnitudes, phases) = spectrum.split_at_mut(self.bins);
            for (magnitude, phase) in magnitudes.iter_mut().zip(phases) {
                let (length, (sine, cosine)) = (magnitude.exp(), phase.sin().sin_cos());
                (*magnitude, *phase) = (length * cosine, length * sine);
            }
        }
        ctx.pause()?;
        let samples = self.stft.inverse(ctx.pool(), spectra.get(..rows * width).unwrap_or_default());
        ctx.recycle(spectra);
        ctx.pause()?;
        Ok(samples)
    }
}
