//! The variational autoencoder between images and latents (Kingma and Welling 2014, <https://arxiv.org/abs/1312.6114>;
//! Rombach et al. 2022, <https://arxiv.org/abs/2112.10752>).
//!
//! Names and order follow diffusers' `AutoencoderKL`.

mod config;
mod tiling;

pub use config::VaeConfig;
use tiling::Tiling;

use super::attention::Attention;
use super::feature_map::FeatureMap;
use super::layers::{Conv, GroupNorm, Linear, linear, same_conv};
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
    blocks: Vec<(Vec<ResnetBlock>, Option<Upsample>)>,
    norm_out: GroupNorm,
    conv_out: Conv,
}

#[derive(Debug)]
struct Encoder {
    conv_in: Conv,
    blocks: Vec<(Vec<ResnetBlock>, Option<Downsample>)>,
    mid: MidBlock,
    norm_out: GroupNorm,
    conv_out: Conv,
    quant: Option<Linear>,
}

/// The posterior distribution of the latents of an image. `mean` and `std` are `[height, width, latent_channels]`.
#[derive(Debug)]
pub struct DiagonalGaussian {
    pub mean: Vec<f32>,
    pub std: Vec<f32>,
    /// Height and width of the latents.
    pub size: [usize; 2],
}

#[derive(Debug)]
struct MidBlock {
    resnet1: ResnetBlock,
    attention: Option<(GroupNorm, Attention)>,
    resnet2: ResnetBlock,
}

impl MidBlock {
    fn load(loader: &Loader<'_>, stem: &str, config: &VaeConfig, channels: usize) -> Result<Self> {
        let name = |suffix: &str| format!("{stem}.mid_block.{suffix}");
        let resnet = |suffix: &str| ResnetBlock::load(loader, &name(suffix), [channels; 2], &resnet_config(config));
        let attention = || {
            let stem = name("attentions.0");
            let norm = GroupNorm::load(loader, &format!("{stem}.group_norm"), channels, config.groups, EPSILON)?;
            Ok::<_, ModelError>((norm, Attention::load(loader, &stem, channels, channels, 1, true)?))
        };
        Ok(Self {
            resnet1: resnet("resnets.0")?,
            attention: config.mid_attention.then(attention).transpose()?,
            resnet2: resnet("resnets.1")?,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        let mut x = self.resnet1.forward(ctx, x, None)?;
        if let Some((norm, attention)) = &self.attention {
            let y = ctx.group_norm(norm, &x, None, false)?;
            let y = attention.forward(ctx, &y)?;
            ctx.add(&mut x, &y)?;
        }
        self.resnet2.forward(ctx, &x, None)
    }
}

fn resnet_config(config: &VaeConfig) -> ResnetConfig {
    ResnetConfig {
        groups: config.groups,
        epsilon: EPSILON,
        temb_width: None,
        time_scale_shift: false,
        output_scale_factor: 1.,
    }
}

impl Vae {
    pub fn load(loader: &Loader<'_>, config: VaeConfig) -> Result<Self> {
        Ok(Self { decoder: Decoder::load(loader, &config)?, encoder: Encoder::load(loader, &config)?, config })
    }

    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Side of a tile in image pixels.
    pub fn tile_side(&self) -> usize {
        Tiling::latent_side(&self.config) * self.config.factor()
    }

    /// Decodes scaled `latents`, `[1, height, width, latent_channels]`, to an image, `[1, factor · height, factor ·
    /// width, out_channels]`, with values from about −1 to 1. `tiled`: decodes one tile at a time to save memory.
    pub fn decode(&self, ctx: &OpContext<'_>, mut latents: FeatureMap, tiled: bool) -> Result<FeatureMap> {
        let VaeConfig { scaling, shift, .. } = self.config;
        latents.data_mut().iter_mut().for_each(|x| *x = *x / scaling + shift);
        let tiling = Tiling::for_decoding(&self.config);
        match tiled && tiling.is_split(latents.size) {
            true => tiling.map(ctx, &latents, |tile| self.decoder.forward(ctx, tile)),
            false => self.decoder.forward(ctx, latents),
        }
    }

    /// Encodes an image, `[1, height, width, in_channels]`, with values from −1 to 1, to the distribution of its scaled
    /// latents. `tiled`: encodes one tile at a time to save memory.
    pub fn encode(&self, ctx: &OpContext<'_>, image: FeatureMap, tiled: bool) -> Result<DiagonalGaussian> {
        let VaeConfig { scaling, shift, latent_channels: channels, .. } = self.config;
        let tiling = Tiling::for_encoding(&self.config);
        let moments = match tiled && tiling.is_split(image.size) {
            true => tiling.map(ctx, &image, |tile| self.encoder.forward(ctx, tile))?,
            false => self.encoder.forward(ctx, image)?,
        };
        let (mut mean, mut std) = (Vec::new(), Vec::new());
        for row in moments.data().chunks_exact(2 * channels) {
            let (means, log_variances) = row.split_at(channels);
            mean.extend(means.iter().map(|x| (x - shift) * scaling));
            std.extend(log_variances.iter().map(|log_variance| (0.5 * log_variance.clamp(-30., 20.)).exp() * scaling));
        }
        Ok(DiagonalGaussian { mean, std, size: moments.size })
    }
}

impl Decoder {
    fn load(loader: &Loader<'_>, config: &VaeConfig) -> Result<Self> {
        let VaeConfig { latent_channels, layers, groups, out_channels, .. } = *config;
        let (last_channels, first_channels) =
            (config.channels.last().copied().unwrap_or(1), config.channels.first().copied().unwrap_or(1));
        let count = config.channels.len();
        let (mut inputs, mut blocks) = (last_channels, Vec::with_capacity(count));
        for (index, &channels) in config.channels.iter().rev().enumerate() {
            let stem = format!("decoder.up_blocks.{index}");
            let mut resnets = Vec::with_capacity(layers + 1);
            for resnet in 0..=layers {
                let stem = format!("{stem}.resnets.{resnet}");
                resnets.push(ResnetBlock::load(loader, &stem, [inputs, channels], &resnet_config(config))?);
                inputs = channels;
            }
            let upsample = (index + 1 < count).then(|| Upsample::load(loader, &stem, channels)).transpose()?;
            blocks.push((resnets, upsample));
        }
        let post_quant = || linear(loader, "post_quant_conv", [latent_channels; 2], true);
        Ok(Self {
            post_quant: config.has_post_quant_conv.then(post_quant).transpose()?,
            conv_in: same_conv(loader, "decoder.conv_in", [latent_channels, last_channels], 3)?,
            mid: MidBlock::load(loader, "decoder", config, last_channels)?,
            blocks,
            norm_out: GroupNorm::load(loader, "decoder.conv_norm_out", first_channels, groups, EPSILON)?,
            conv_out: same_conv(loader, "decoder.conv_out", [first_channels, out_channels], 3)?,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap) -> Result<FeatureMap> {
        if let Some(weight) = &self.post_quant {
            x = ctx.linear(weight, &x)?;
        }
        x = ctx.conv(&self.conv_in, &x)?;
        x = self.mid.forward(ctx, &x)?;
        for (resnets, upsample) in &self.blocks {
            for resnet in resnets {
                x = resnet.forward(ctx, &x, None)?;
            }
            if let Some(upsample) = upsample {
                let [height, width] = x.size;
                x = upsample.forward(ctx, x, [2 * height, 2 * width])?;
            }
        }
        ctx.norm_conv(&self.norm_out, &x, None, &self.conv_out)
    }
}

impl Encoder {
    fn load(loader: &Loader<'_>, config: &VaeConfig) -> Result<Self> {
        let VaeConfig { latent_channels, layers, groups, in_channels, .. } = *config;
        let (last_channels, first_channels) =
            (config.channels.last().copied().unwrap_or(1), config.channels.first().copied().unwrap_or(1));
        let count = config.channels.len();
        let (mut inputs, mut blocks) = (first_channels, Vec::with_capacity(count));
        for (index, &channels) in config.channels.iter().enumerate() {
            let stem = format!("encoder.down_blocks.{index}");
            let mut resnets = Vec::with_capacity(layers);
            for resnet in 0..layers {
                let stem = format!("{stem}.resnets.{resnet}");
                resnets.push(ResnetBlock::load(loader, &stem, [inputs, channels], &resnet_config(config))?);
                inputs = channels;
            }
            // As in the reference, only the bottom and the right are padded.
            let downsample =
                (index + 1 < count).then(|| Downsample::load(loader, &stem, channels, [0, 1])).transpose()?;
            blocks.push((resnets, downsample));
        }
        let quant = || linear(loader, "quant_conv", [2 * latent_channels; 2], true);
        Ok(Self {
            conv_in: same_conv(loader, "encoder.conv_in", [in_channels, first_channels], 3)?,
            blocks,
            mid: MidBlock::load(loader, "encoder", config, last_channels)?,
            norm_out: GroupNorm::load(loader, "encoder.conv_norm_out", last_channels, groups, EPSILON)?,
            conv_out: same_conv(loader, "encoder.conv_out", [last_channels, 2 * latent_channels], 3)?,
            quant: config.has_quant_conv.then(quant).transpose()?,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap) -> Result<FeatureMap> {
        x = ctx.conv(&self.conv_in, &x)?;
        for (resnets, downsample) in &self.blocks {
            for resnet in resnets {
                x = resnet.forward(ctx, &x, None)?;
            }
            if let Some(downsample) = downsample {
                x = downsample.forward(ctx, &x)?;
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
