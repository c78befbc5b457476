//! The residual blocks of the vocoder.

use super::config::BlockConfig;
use super::style::StyledNorm;
use crate::backend::{AdaIn, ChannelActivation, Conv1dShape, Tensor, TimeConvolutions};
use crate::error::{ModelError, Result};
use crate::nn::{Context, Conv1d};
use crate::weights::Loader;

/// Pairs of convolutions, a dilated one and one without dilation, each after an adaptive norm and a snake activation. The
/// output of each pair is added to its input.
#[derive(Debug)]
pub(super) struct SnakeBlock<B: TimeConvolutions>(Vec<[SnakeConv<B>; 2]>);

/// `conv(snake(norm(x)))`
#[derive(Debug)]
struct SnakeConv<B: TimeConvolutions> {
    norm: StyledNorm,
    alphas: B::Vector,
    inverses: B::Vector,
    conv: Conv1d<B>,
}

impl<B: TimeConvolutions> SnakeBlock<B> {
    pub fn load(
        loader: &Loader<'_, B>,
        stem: &str,
        channels: usize,
        style: usize,
        BlockConfig { kernel, dilations }: &BlockConfig,
    ) -> Result<Self> {
        let conv = |half: usize, index: usize, dilation: usize| -> Result<SnakeConv<B>> {
            let alphas = loader.values(&format!("{stem}.alpha{half}.{index}"), &[1, channels, 1])?;
            let inverses: Vec<f32> = alphas.iter().map(|alpha| alpha.recip()).collect();
            if !inverses.iter().all(|inverse| inverse.is_finite()) {
                return Err(ModelError::Checkpoint(format!("{stem}.alpha{half}.{index} has divisors that are zero")));
            }
            let padding = [(kernel - 1) * dilation / 2; 2];
            let shape =
                Conv1dShape { inputs: channels, outputs: channels, kernel: *kernel, stride: 1, dilation, padding };
            Ok(SnakeConv {
                norm: StyledNorm::load(loader, &format!("{stem}.adain{half}.{index}"), style, channels)?,
                alphas: loader.backend().vector(alphas)?,
                inverses: loader.backend().vector(inverses)?,
                conv: loader.conv1d(&format!("{stem}.convs{half}.{index}"), shape)?,
            })
        };
        let pairs = dilations.iter().enumerate();
        let pairs = pairs.map(|(index, dilation)| Ok([conv(1, index, *dilation)?, conv(2, index, 1)?]));
        pairs.collect::<Result<_>>().map(Self)
    }

    /// `x`: `[1, steps, 1, channels]`, `style`: `[style]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, style: &[f32]) -> Result<Tensor<B>> {
        let mut sum: Option<Tensor<B>> = None;
        for [dilated, plain] in &self.0 {
            let x = sum.as_ref().unwrap_or(x);
            let mut y = plain.forward(ctx, &dilated.forward(ctx, x, style)?, style)?;
            ctx.add(&mut y, x)?;
            sum = Some(y);
        }
        sum.map_or_else(|| ctx.copy(x), Ok)
    }
}

impl<B: TimeConvolutions> SnakeConv<B> {
    fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, style: &[f32]) -> Result<Tensor<B>> {
        let Self { norm, alphas, inverses, conv } = self;
        let activation = ChannelActivation::Snake { alphas, inverses };
        conv.forward_adain(ctx, &AdaIn { norm: norm.styled(ctx, style)?, activation }, x)
    }
}
