//! Residual blocks, downsampling and upsampling layers, shared by UNets and autoencoders.

use outpost_kernels::Activation;

use super::feature_map::FeatureMap;
use super::layers::{Conv, GroupNorm, Linear, conv, linear, same_conv};
use super::op_context::{OpContext, Result};
use crate::models::error::ModelError;
use crate::models::weights::Loader;

/// Settings shared by all residual blocks of a network.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResnetConfig {
    pub groups: usize,
    pub epsilon: f32,
    /// Width of the timestep embedding; `None` for autoencoders.
    pub temb_width: Option<usize>,
    /// Whether the timestep embedding scales and shifts, rather than only shifts.
    pub time_scale_shift: bool,
    /// The output of a block is divided by this.
    pub output_scale_factor: f32,
}

/// `x + conv(silu(norm(conv(silu(norm(x))) + time)))` (He et al. 2016, <https://arxiv.org/abs/1603.05027>).
#[derive(Debug)]
pub(super) struct ResnetBlock {
    norm1: GroupNorm,
    conv1: Conv,
    time_emb_proj: Option<Linear>,
    time_scale_shift: bool,
    norm2: GroupNorm,
    conv2: Conv,
    shortcut: Option<Linear>,
    output_scale_factor: f32,
}

impl ResnetBlock {
    pub fn load(loader: &Loader<'_>, stem: &str, [inputs, outputs]: [usize; 2], config: &ResnetConfig) -> Result<Self> {
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
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap, temb: Option<&FeatureMap>) -> Result<FeatureMap> {
        let y = ctx.norm_conv(&self.norm1, x, None, &self.conv1)?;
        let temb = match (&self.time_emb_proj, temb) {
            (Some(weight), Some(temb)) => Some(ctx.linear(weight, temb)?),
            (None, _) => None,
            (Some(_), None) => {
                return Err(ModelError::Compute("a residual block requires a timestep embedding".to_owned()));
            }
        };
        let mut y = match temb {
            Some(temb) if self.time_scale_shift => {
                let mut y = ctx.group_norm(&self.norm2, &y, None, false)?;
                scale_and_shift(&mut y, &temb);
                ctx.activate(Activation::Silu, &mut y)?;
                ctx.conv(&self.conv2, &y)?
            }
            temb => ctx.norm_conv(&self.norm2, &y, temb.as_ref(), &self.conv2)?,
        };
        match &self.shortcut {
            Some(weight) => ctx.add(&mut y, &ctx.linear(weight, x)?)?,
            None => ctx.add(&mut y, x)?,
        }
        if self.output_scale_factor != 1. {
            y.data_mut().iter_mut().for_each(|y| *y /= self.output_scale_factor);
        }
        Ok(y)
    }
}

/// `y = y · (1 + scale) + shift`. `temb` is `[images, 1, 1, 2 · channels]`, scales first.
fn scale_and_shift(y: &mut FeatureMap, temb: &FeatureMap) {
    let (channels, image) = (y.channels, y.pixels() * y.channels);
    let temb: Vec<&[f32]> = temb.per_image().collect();
    for (y, temb) in y.data_mut().chunks_exact_mut(image.max(1)).zip(temb) {
        let (scale, shift) = temb.split_at(temb.len() / 2);
        for y in y.chunks_exact_mut(channels) {
            y.iter_mut().zip(scale.iter().zip(shift)).for_each(|(y, (scale, shift))| *y = *y * (1. + scale) + shift);
        }
    }
}

/// Halves height and width with a strided convolution.
#[derive(Debug)]
pub(super) struct Downsample(Conv);

impl Downsample {
    /// `padding`: zeros before and after, along each axis.
    pub fn load(loader: &Loader<'_>, stem: &str, channels: usize, padding: [usize; 2]) -> Result<Self> {
        conv(loader, &format!("{stem}.downsamplers.0.conv"), [channels; 2], 3, 2, padding).map(Self)
    }

    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        ctx.conv(&self.0, x)
    }
}

/// Resizes by nearest neighbour, then convolves.
#[derive(Debug)]
pub(super) struct Upsample(Conv);

impl Upsample {
    pub fn load(loader: &Loader<'_>, stem: &str, channels: usize) -> Result<Self> {
        same_conv(loader, &format!("{stem}.upsamplers.0.conv"), [channels; 2], 3).map(Self)
    }

    /// `size`: height and width of the result, usually twice those of `x`.
    pub fn forward(&self, ctx: &OpContext<'_>, x: FeatureMap, size: [usize; 2]) -> Result<FeatureMap> {
        let resized = ctx.resize(&x, size)?;
        drop(x);
        ctx.conv(&self.0, &resized)
    }
}
