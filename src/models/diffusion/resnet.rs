//! Residual blocks of convolutions, which UNets and autoencoders share, and what halves and doubles images between
//! them.

use outpost_kernels::Activation;

use super::easel::{Easel, Halt, Result};
use super::layers::{Conv, GroupNorm, Linear, Loaded, conv, linear, same_conv};
use super::map::Map;
use crate::models::weights::Loader;

/// What all blocks of a network have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub groups: usize,
    pub epsilon: f32,
    /// Numbers that tell the time; `None`: the network knows no time.
    pub time: Option<usize>,
    /// Whether the time scales and shifts, rather than only shifts.
    pub time_scales: bool,
    /// What a block's sum is divided by.
    pub divisor: f32,
}

/// `x + conv(silu(norm(conv(silu(norm(x))) + time)))` (He et al. 2016, <https://arxiv.org/abs/1603.05027>).
#[derive(Debug)]
pub(super) struct ResnetBlock {
    norm1: GroupNorm,
    conv1: Conv,
    time: Option<Linear>,
    time_scales: bool,
    norm2: GroupNorm,
    conv2: Conv,
    shortcut: Option<Linear>,
    divisor: f32,
}

impl ResnetBlock {
    pub fn load(loader: &Loader<'_>, stem: &str, [inputs, outputs]: [usize; 2], blocks: &Blocks) -> Loaded<Self> {
        let Blocks { groups, epsilon, time, time_scales, divisor } = *blocks;
        let part = |name: &str| format!("{stem}.{name}");
        let norm = |name: &str, channels| GroupNorm::load(loader, &part(name), channels, groups, epsilon);
        let told = if time_scales { 2 * outputs } else { outputs };
        let time = time.map(|time| linear(loader, &part("time_emb_proj"), [time, told], true)).transpose()?;
        let shortcut = (inputs != outputs).then(|| linear(loader, &part("conv_shortcut"), [inputs, outputs], true));
        Ok(Self {
            norm1: norm("norm1", inputs)?,
            conv1: same_conv(loader, &part("conv1"), [inputs, outputs], 3)?,
            time,
            time_scales,
            norm2: norm("norm2", outputs)?,
            conv2: same_conv(loader, &part("conv2"), [outputs, outputs], 3)?,
            shortcut: shortcut.transpose()?,
            divisor,
        })
    }

    /// `time`: `[images, 1, 1, time]`, through SiLU already.
    pub fn forward(&self, easel: &Easel<'_>, x: &Map, time: Option<&Map>) -> Result<Map> {
        let y = easel.norm_conv(&self.norm1, x, None, &self.conv1)?;
        let told = match (&self.time, time) {
            (Some(weight), Some(time)) => Some(easel.linear(weight, time)?),
            (None, _) => None,
            (Some(_), None) => return Err(Halt::Failed("a block was not told the time".to_owned())),
        };
        let mut y = match told {
            Some(told) if self.time_scales => {
                let mut y = easel.group_norm(&self.norm2, &y, None, false)?;
                scale_and_shift(&mut y, &told);
                easel.activate(Activation::Silu, &mut y)?;
                easel.conv(&self.conv2, &y)?
            }
            told => easel.norm_conv(&self.norm2, &y, told.as_ref(), &self.conv2)?,
        };
        match &self.shortcut {
            Some(weight) => easel.add(&mut y, &easel.linear(weight, x)?)?,
            None => easel.add(&mut y, x)?,
        }
        if self.divisor != 1. {
            y.numbers_mut().iter_mut().for_each(|y| *y /= self.divisor);
        }
        Ok(y)
    }
}

/// `y · (1 + scale) + shift`, of `told`: `[images, scales and shifts]`.
fn scale_and_shift(y: &mut Map, told: &Map) {
    let (channels, image) = (y.channels, y.pixels() * y.channels);
    let told: Vec<&[f32]> = told.each().collect();
    for (y, told) in y.numbers_mut().chunks_exact_mut(image.max(1)).zip(told) {
        let (scale, shift) = told.split_at(told.len() / 2);
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

    pub fn forward(&self, easel: &Easel<'_>, x: &Map) -> Result<Map> {
        easel.conv(&self.0, x)
    }
}

/// Brings images to twice the size, or nearly so.
#[derive(Debug)]
pub(super) struct Upsample(Conv);

impl Upsample {
    pub fn load(loader: &Loader<'_>, stem: &str, channels: usize) -> Loaded<Self> {
        same_conv(loader, &format!("{stem}.upsamplers.0.conv"), [channels; 2], 3).map(Self)
    }

    pub fn forward(&self, easel: &Easel<'_>, x: Map, size: [usize; 2]) -> Result<Map> {
        let large = easel.resize(&x, size)?;
        drop(x);
        easel.conv(&self.0, &large)
    }
}
