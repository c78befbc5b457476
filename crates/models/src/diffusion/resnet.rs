//! Residual blocks, downsampling and upsampling layers, shared by UNets and autoencoders.

use crate::backend::{Activation, Convolutions, GroupNorm, Tensor};

use super::layers::{conv, linear, same_conv};
use crate::error::ModelError;
use crate::error::Result;
use crate::nn::{Context, Conv, Linear};
use crate::weights::Loader;

/// Settings shared by all residual blocks of a network.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResnetConfig {
    pub groups: usize,
    pub epsilon: f32,
    /// Width of the timestep embedding; `None` for autoencoders.
    pub temb_width: Option<usize>,
    /// The timestep embedding scales and shifts. Otherwise it only shifts.
    pub time_scale_shift: bool,
    /// The output of a block is divided by this.
    pub output_scale_factor: f32,
}

/// `x + conv(silu(norm(conv(silu(norm(x))) + time)))` (He et al. 2016, <https://arxiv.org/abs/1603.05027>).
#[derive(Debug)]
pub(super) struct ResnetBlock<B: Convolutions> {
    norm1: GroupNorm<B>,
    conv1: Conv<B>,
    time_emb_proj: Option<Linear<B>>,
    time_scale_shift: bool,
    norm2: GroupNorm<B>,
    conv2: Conv<B>,
    shortcut: Option<Linear<B>>,
    output_scale_factor: f32,
}

impl<B: Convolutions> ResnetBlock<B> {
    pub fn load(
        loader: &Loader<'_, B>,
        stem: &str,
        [inputs, outputs]: [usize; 2],
        config: &ResnetConfig,
    ) -> Result<Self> {
        let ResnetConfig { groups, epsilon, temb_width, time_scale_shift, output_scale_factor } = *config;
        let name = |suffix: &str| format!("{stem}.{suffix}");
        let norm = |suffix: &str, channels| GroupNorm::load(loader, &name(suffix), channels, groups, epsilon);
        let temb_outputs = if time_scale_shift { 2 * outputs } else { outputs };
        let time_emb_proj =
            temb_width.map(|width| linear(loader, &name("time_emb_proj"), [width, temb_outputs], true)).transpose()?;
        let shortcut = (inputs != outputs).then(|| linear(loader, &name("conv_shortcut"), [inputs, outputs], true));
        Ok(Self {
            norm1: norm("norm1", inputs)?,
            conv1: same_conv(loader, &name("conv1"), [inputs, outputs], 3)?,
            time_emb_proj,
            time_scale_shift,
            norm2: norm("norm2", outputs)?,
            conv2: same_conv(loader, &name("conv2"), [outputs, outputs], 3)?,
            shortcut: shortcut.transpose()?,
            output_scale_factor,
        })
    }

    /// `x`: `[images, height, width, inputs]`; `temb`: the timestep embedding after SiLU, `[images, 1, 1, temb_width]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, temb: Option<&Tensor<B>>) -> Result<Tensor<B>> {
        let y = self.conv1.forward_normed(ctx, &self.norm1, x, None)?;
        let temb = match (&self.time_emb_proj, temb) {
            (Some(weight), Some(temb)) => Some(weight.forward(ctx, temb)?),
            (None, _) => None,
            (Some(_), None) => {
                return Err(ModelError::Compute("a residual block requires a timestep embedding".to_owned()));
            }
        };
        let mut y = match temb {
            Some(temb) if self.time_scale_shift => {
                let mut y = ctx.group_norm(&self.norm2, &y, None, false)?;
                // Scales come first.
                ctx.modulate(&mut y, &temb, [1, 0])?;
                ctx.activate(Activation::Silu, &mut y, None)?;
                self.conv2.forward(ctx, &y)?
            }
            temb => self.conv2.forward_normed(ctx, &self.norm2, &y, temb.as_ref())?,
        };
        match &self.shortcut {
            Some(weight) => ctx.add(&mut y, &weight.forward(ctx, x)?)?,
            None => ctx.add(&mut y, x)?,
        }
        if self.output_scale_factor != 1. {
            ctx.divide(&mut y, self.output_scale_factor)?;
        }
        Ok(y)
    }
}

/// Halves height and width with a strided convolution.
#[derive(Debug)]
pub(super) struct Downsample<B: Convolutions>(Conv<B>);

impl<B: Convolutions> Downsample<B> {
    /// `padding`: zeros before and after, along each axis.
    pub fn load(loader: &Loader<'_, B>, stem: &str, channels: usize, padding: [usize; 2]) -> Result<Self> {
        conv(loader, &format!("{stem}.downsamplers.0.conv"), [channels; 2], 3, 2, padding).map(Self)
    }

    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        self.0.forward(ctx, x)
    }
}

/// Resizes by nearest neighbour, then convolves.
#[derive(Debug)]
pub(super) struct Upsample<B: Convolutions>(Conv<B>);

impl<B: Convolutions> Upsample<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, channels: usize) -> Result<Self> {
        same_conv(loader, &format!("{stem}.upsamplers.0.conv"), [channels; 2], 3).map(Self)
    }

    /// `size`: height and width of the result, usually twice those of `x`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: Tensor<B>, size: [usize; 2]) -> Result<Tensor<B>> {
        let resized = ctx.resize(&x, size)?;
        drop(x);
        self.0.forward(ctx, &resized)
    }
}
