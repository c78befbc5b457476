//! Residual blocks of convolutions, shared by UNets and autoencoders, with the layers that halve and double image sizes
//! between them.

use outpost_kernels::Activation;

use super::feature_map::FeatureMap;
use super::layers::{Conv, GroupNorm, Linear, Loaded, conv, linear, same_conv};
use super::op_context::{OpContext, Result};
use crate::models::error::ModelError;
use crate::models::weights::Loader;

/// Settings shared by all blocks of a network.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResnetConfig {
    pub groups: usize,
    pub epsilon: f32,
    /// Width of the timestep embedding; `None`: the network has none.
    pub time: Option<usize>,
    /// Whether the timestep scales and shifts, rather than only shifts.
    pub time_scale_shift: bool,
    /// Divides a block's output.
    pub output_scale_factor: f32,
}

/// `x + conv(silu(norm(conv(silu(norm(x))) + time)))` (He et al. 2016, <https://arxiv.org/abs/1603.05027>).
#[derive(Debug)]
pub(super) struct ResnetBlock {
    norm1: GroupNorm,
    conv1: Conv,
    time: Option<Linear>,
    time_scale_shift: bool,
    norm2: GroupNorm,
    conv2: Conv,
    shortcut: Option<Linear>,
    output_scale_factor: f32,
}

impl ResnetBlock {
    pub fn load(loader: &Loader<'_>, stem: &str, [inputs, outputs]: [usize; 2], config: &ResnetConfig) -> Loaded<Self> {
        let ResnetConfig { groups, epsilon, time, time_scale_shift, output_scale_factor } = *config;
        let part = |name: &str| format!("{stem}.{name}");
        let norm = |name: &str, channels| GroupNorm::load(loader, &part(name), channels, groups, epsilon);
        let temb = if time_scale_shift { 2 * outputs } else { outputs };
        let time = time.map(|time| linear(loader, &part("time_emb_proj"), [time, temb], true)).transpose()?;
        let shortcut = (inputs != outputs).then(|| linear(loader, &part("conv_shortcut"), [inputs, outputs], true));
        Ok(Self {
            norm1: norm("norm1", inputs)?,
            conv1: same_conv(loader, &part("conv1"), [inputs, outputs], 3)?,
            time,
            time_scale_shift,
            norm2: norm("norm2", outputs)?,
            conv2: same_conv(loader, &part("conv2"), [outputs, outputs], 3)?,
            shortcut: shortcut.transpose()?,
            output_scale_factor,
        })
    }

    /// `time`: `[images, 1, 1, time]`, already through SiLU.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap, time: Option<&FeatureMap>) -> Result<FeatureMap> {
        let y = ctx.norm_conv(&self.norm1, x, None, &self.conv1)?;
        let temb = match (&self.time, time) {
            (Some(weight), Some(time)) => Some(ctx.linear(weight, time)?),
            (None, _) => None,
            (Some(_), None) => return Err(ModelError::Compute("a block has no timestep embedding".to_owned())),
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

/// `y · (1 + scale) + shift`; `temb`: `[images, 2 · channels]`, scales first.
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

/// Halves height and width.
#[derive(Debug)]
pub(super) struct Downsample(Conv);

impl Downsample {
    /// `padding`: zeros before and after.
    pub fn load(loader: &Loader<'_>, stem: &str, channels: usize, padding: [usize; 2]) -> Loaded<Self> {
        conv(loader, &format!("{stem}.downsamplers.0.conv"), [channels; 2], 3, 2, padding).map(Self)
    }

    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        ctx.conv(&self.0, x)
    }
}

/// Doubles height and width, or nearly so.
#[derive(Debug)]
pub(super) struct Upsample(Conv);

impl Upsample {
    pub fn load(loader: &Loader<'_>, stem: &str, channels: usize) -> Loaded<Self> {
        same_conv(loader, &format!("{stem}.upsamplers.0.conv"), [channels; 2], 3).map(Self)
    }

    pub fn forward(&self, ctx: &OpContext<'_>, x: FeatureMap, size: [usize; 2]) -> Result<FeatureMap> {
        let large = ctx.resize(&x, size)?;
        drop(x);
        ctx.conv(&self.0, &large)
    }
}
