//! The variational autoencoder between images and latents (Kingma and Welling 2014, <https://arxiv.org/abs/1312.6114>;
//! Rombach et al. 2022, <https://arxiv.org/abs/2112.10752>).
//!
//! Names and order follow diffusers' `AutoencoderKL`.

mod config;
mod tiles;

pub use config::VaeConfig;
use tiles::Tiles;

use super::attention::Attention;
use super::feature_map::FeatureMap;
use super::layers::{Conv, GroupNorm, Linear, Loaded, linear, same_conv};
use super::op_context::{OpContext, Result};
use super::resnet::{Downsample, ResnetBlock, ResnetConfig, Upsample};
use crate::models::error::ModelError;
use crate::models::weights::Loader;

const EPSILON: f32 = 1e-6;

#[derive(Debug)]
pub struct Vae {
    config: VaeConfig,
    decoder: Decoder,
    encoder: Encoder,
}

#[derive(Debug)]
struct Decoder {
    post_quant: Option<Linear>,
    conv_in: Conv,
    mid: MidBlock,
    stages: Vec<(Vec<ResnetBlock>, Option<Upsample>)>,
    norm_out: GroupNorm,
    conv_out: Conv,
}

#[derive(Debug)]
struct Encoder {
    conv_in: Conv,
    stages: Vec<(Vec<ResnetBlock>, Option<Downsample>)>,
    mid: MidBlock,
    norm_out: GroupNorm,
    conv_out: Conv,
    quant: Option<Linear>,
}

/// The distribution of an image's latents: `[height, width, latent_channels]` each.
#[derive(Debug)]
pub struct DiagonalGaussian {
    pub mean: Vec<f32>,
    pub std: Vec<f32>,
    pub size: [usize; 2],
}

#[derive(Debug)]
struct MidBlock {
    first: ResnetBlock,
    attention: Option<(GroupNorm, Attention)>,
    second: ResnetBlock,
}

impl MidBlock {
    fn load(loader: &Loader<'_>, stem: &str, config: &VaeConfig, channels: usize) -> Loaded<Self> {
        let name = |part: &str| format!("{stem}.mid_block.{part}");
        let resnet = |part: &str| ResnetBlock::load(loader, &name(part), [channels; 2], &resnet_config(config));
        let attention = || {
            let stem = name("attentions.0");
            let norm = GroupNorm::load(loader, &format!("{stem}.group_norm"), channels, config.groups, EPSILON)?;
            Ok::<_, ModelError>((norm, Attention::load(loader, &stem, channels, channels, 1, true)?))
        };
        Ok(Self {
            first: resnet("resnets.0")?,
            attention: config.mid_attention.then(attention).transpose()?,
            second: resnet("resnets.1")?,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        let mut x = self.first.forward(ctx, x, None)?;
        if let Some((norm, attention)) = &self.attention {
            let y = ctx.group_norm(norm, &x, None, false)?;
            let y = attention.forward(ctx, &y)?;
            ctx.add(&mut x, &y)?;
        }
        self.second.forward(ctx, &x, None)
    }
}

fn resnet_config(config: &VaeConfig) -> ResnetConfig {
    ResnetConfig {
        groups: config.groups,
        epsilon: EPSILON,
        time: None,
        time_scale_shift: false,
        output_scale_factor: 1.,
    }
}

impl Vae {
    pub fn load(loader: &Loader<'_>, config: VaeConfig) -> Loaded<Self> {
        Ok(Self { decoder: Decoder::load(loader, &config)?, encoder: Encoder::load(loader, &config)?, config })
    }

    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Image pixels along a tile's side.
    pub fn tile_side(&self) -> usize {
        Tiles::latents(&self.config) * self.config.factor()
    }

    /// Decodes `latents` (`[1, height, width, latent_channels]`, as the network makes them) to an image, `[1, .., ..,
    /// out_channels]`, from about −1 to 1. `tiled`: in tiles, with the memory of one.
    pub fn decode(&self, ctx: &OpContext<'_>, mut latents: FeatureMap, tiled: bool) -> Result<FeatureMap> {
        let VaeConfig { scaling, shift, .. } = self.config;
        latents.data_mut().iter_mut().for_each(|x| *x = *x / scaling + shift);
        let tiles = Tiles::of_latents(&self.config);
        match tiled && tiles.is_split(latents.size) {
            true => tiles.map(ctx, &latents, |tile| self.decoder.forward(ctx, tile)),
            false => self.decoder.forward(ctx, latents),
        }
    }

    /// Encodes an image, `[1, height, width, in_channels]`, from −1 to 1, to the distribution of its latents.
    pub fn encode(&self, ctx: &OpContext<'_>, image: FeatureMap, tiled: bool) -> Result<DiagonalGaussian> {
        let VaeConfig { scaling, shift, latent_channels: channels, .. } = self.config;
        let tiles = Tiles::of_pixels(&self.config);
        let moments = match tiled && tiles.is_split(image.size) {
            true => tiles.map(ctx, &image, |tile| self.encoder.forward(ctx, tile))?,
            false => self.encoder.forward(ctx, image)?,
        };
        let (mut mean, mut std) = (Vec::new(), Vec::new());
        for row in moments.data().chunks_exact(2 * channels) {
            let (means, logs) = row.split_at(channels);
            mean.extend(means.iter().map(|x| (x - shift) * scaling));
            std.extend(logs.iter().map(|log| (0.5 * log.clamp(-30., 20.)).exp() * scaling));
        }
        Ok(DiagonalGaussian { mean, std, size: moments.size })
    }
}

impl Decoder {
    fn load(loader: &Loader<'_>, config: &VaeConfig) -> Loaded<Self> {
        let VaeConfig { latent_channels: latent, layers, groups, out_channels, .. } = *config;
        let (last, first) =
            (config.channels.last().copied().unwrap_or(1), config.channels.first().copied().unwrap_or(1));
        let count = config.channels.len();
        let (mut before, mut stages) = (last, Vec::with_capacity(count));
        for (index, &channels) in config.channels.iter().rev().enumerate() {
            let stem = format!("decoder.up_blocks.{index}");
            let mut resnets = Vec::with_capacity(layers + 1);
            for at in 0..=layers {
                let stem = format!("{stem}.resnets.{at}");
                resnets.push(ResnetBlock::load(loader, &stem, [before, channels], &resnet_config(config))?);
                before = channels;
            }
            let up = (index + 1 < count).then(|| Upsample::load(loader, &stem, channels)).transpose()?;
            stages.push((resnets, up));
        }
        let post_quant = || linear(loader, "post_quant_conv", [latent, latent], true);
        Ok(Self {
            post_quant: config.has_post_quant_conv.then(post_quant).transpose()?,
            conv_in: same_conv(loader, "decoder.conv_in", [latent, last], 3)?,
            mid: MidBlock::load(loader, "decoder", config, last)?,
            stages,
            norm_out: GroupNorm::load(loader, "decoder.conv_norm_out", first, groups, EPSILON)?,
            conv_out: same_conv(loader, "decoder.conv_out", [first, out_channels], 3)?,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap) -> Result<FeatureMap> {
        if let Some(weight) = &self.post_quant {
            x = ctx.linear(weight, &x)?;
        }
        x = ctx.conv(&self.conv_in, &x)?;
        x = self.mid.forward(ctx, &x)?;
        for (resnets, up) in &self.stages {
            for resnet in resnets {
                x = resnet.forward(ctx, &x, None)?;
            }
            if let Some(up) = up {
                let [height, width] = x.size;
                x = up.forward(ctx, x, [2 * height, 2 * width])?;
            }
        }
        ctx.norm_conv(&self.norm_out, &x, None, &self.conv_out)
    }
}

impl Encoder {
    fn load(loader: &Loader<'_>, config: &VaeConfig) -> Loaded<Self> {
        let VaeConfig { latent_channels: latent, layers, groups, in_channels, .. } = *config;
        let (last, first) =
            (config.channels.last().copied().unwrap_or(1), config.channels.first().copied().unwrap_or(1));
        let count = config.channels.len();
        let (mut before, mut stages) = (first, Vec::with_capacity(count));
        for (index, &channels) in config.channels.iter().enumerate() {
            let stem = format!("encoder.down_blocks.{index}");
            let mut resnets = Vec::with_capacity(layers);
            for at in 0..layers {
                let stem = format!("{stem}.resnets.{at}");
                resnets.push(ResnetBlock::load(loader, &stem, [before, channels], &resnet_config(config))?);
                before = channels;
            }
            // Padding is at the end only.
            let down = (index + 1 < count).then(|| Downsample::load(loader, &stem, channels, [0, 1])).transpose()?;
            stages.push((resnets, down));
        }
        let quant = || linear(loader, "quant_conv", [2 * latent, 2 * latent], true);
        Ok(Self {
            conv_in: same_conv(loader, "encoder.conv_in", [in_channels, first], 3)?,
            stages,
            mid: MidBlock::load(loader, "encoder", config, last)?,
            norm_out: GroupNorm::load(loader, "encoder.conv_norm_out", last, groups, EPSILON)?,
            conv_out: same_conv(loader, "encoder.conv_out", [last, 2 * latent], 3)?,
            quant: config.has_quant_conv.then(quant).transpose()?,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap) -> Result<FeatureMap> {
        x = ctx.conv(&self.conv_in, &x)?;
        for (resnets, down) in &self.stages {
            for resnet in resnets {
                x = resnet.forward(ctx, &x, None)?;
            }
            if let Some(down) = down {
                x = down.forward(ctx, &x)?;
            }
        }
        x = self.mid.forward(ctx, &x)?;
        let x = ctx.norm_conv(&self.norm_out, &x, None, &self.conv_out)?;
        match &self.quant {
            Some(weight) => ctx.linear(weight, &x),
            None => Ok(x),
        }
    }
}
