//! The variational autoencoder between images and latents (Kingma and Welling 2014, <https://arxiv.org/abs/1312.6114>;
//! Rombach et al. 2022, <https://arxiv.org/abs/2112.10752>).
//!
//! Names and order follow diffusers' `AutoencoderKL`.

mod config;
mod raster;
mod tiling;

pub use config::VaeConfig;
pub use raster::Raster;
use tiling::Tiling;

use super::attention::Attention;
use super::layers::{linear, same_conv};
use super::resnet::{Downsample, ResnetBlock, ResnetConfig, Upsample};
use crate::backend::{Convolutions, GroupNorm, Tensor};
use crate::error::ModelError;
use crate::error::Result;
use crate::nn::{Context, Conv, Linear};
use crate::weights::Loader;

const EPSILON: f32 = 1e-6;

#[derive(Debug)]
pub struct Vae<B: Convolutions> {
    config: VaeConfig,
    decoder: Decoder<B>,
    encoder: Encoder<B>,
}

/// The residual blocks of a resolution, and the layer that resizes their output.
type Block<B, R> = (Vec<ResnetBlock<B>>, Option<R>);

#[derive(Debug)]
struct Decoder<B: Convolutions> {
    post_quant: Option<Linear<B>>,
    conv_in: Conv<B>,
    mid: MidBlock<B>,
    blocks: Vec<Block<B, Upsample<B>>>,
    norm_out: GroupNorm<B>,
    conv_out: Conv<B>,
}

#[derive(Debug)]
struct Encoder<B: Convolutions> {
    conv_in: Conv<B>,
    blocks: Vec<Block<B, Downsample<B>>>,
    mid: MidBlock<B>,
    norm_out: GroupNorm<B>,
    conv_out: Conv<B>,
    quant: Option<Linear<B>>,
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
struct MidBlock<B: Convolutions> {
    resnet1: ResnetBlock<B>,
    attention: Option<(GroupNorm<B>, Attention<B>)>,
    resnet2: ResnetBlock<B>,
}

impl<B: Convolutions> MidBlock<B> {
    fn load(loader: &Loader<'_, B>, stem: &str, config: &VaeConfig, channels: usize) -> Result<Self> {
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

    fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
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

impl<B: Convolutions> Vae<B> {
    pub fn load(loader: &Loader<'_, B>, config: VaeConfig) -> Result<Self> {
        Ok(Self { decoder: Decoder::load(loader, &config)?, encoder: Encoder::load(loader, &config)?, config })
    }

    pub fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Side of a tile in image pixels.
    pub fn tile_side(&self) -> usize {
        Tiling::latent_side(&self.config) * self.config.factor()
    }

    /// Decodes scaled `latents` of `latent_channels` channels to an image, `[factor · height, factor · width,
    /// out_channels]`, with values from about −1 to 1. `tiled`: decodes one tile at a time to save memory.
    pub fn decode(&self, ctx: &Context<'_, B>, mut latents: Raster, tiled: bool) -> Result<Raster> {
        let VaeConfig { scaling, shift, .. } = self.config;
        latents.values.iter_mut().for_each(|x| *x = *x / scaling + shift);
        let tiling = Tiling::for_decoding(&self.config);
        let decode = |latents: Raster| Raster::download(&**ctx, self.decoder.forward(ctx, latents.upload(&**ctx)?)?);
        match tiled && tiling.is_split(latents.size) {
            true => tiling.map(&latents, decode),
            false => decode(latents),
        }
    }

    /// Encodes an image of `in_channels` channels with values from −1 to 1 to the distribution of its scaled latents.
    /// `tiled`: encodes one tile at a time to save memory.
    pub fn encode(&self, ctx: &Context<'_, B>, image: Raster, tiled: bool) -> Result<DiagonalGaussian> {
        let VaeConfig { scaling, shift, latent_channels: channels, .. } = self.config;
        let tiling = Tiling::for_encoding(&self.config);
        let encode = |image: Raster| Raster::download(&**ctx, self.encoder.forward(ctx, image.upload(&**ctx)?)?);
        let moments = match tiled && tiling.is_split(image.size) {
            true => tiling.map(&image, encode)?,
            false => encode(image)?,
        };
        let (mut mean, mut std) = (Vec::new(), Vec::new());
        for row in moments.values.chunks_exact(2 * channels) {
            let (means, log_variances) = row.split_at(channels);
            mean.extend(means.iter().map(|x| (x - shift) * scaling));
            std.extend(log_variances.iter().map(|log_variance| (0.5 * log_variance.clamp(-30., 20.)).exp() * scaling));
        }
        Ok(DiagonalGaussian { mean, std, size: moments.size })
    }
}

impl<B: Convolutions> Decoder<B> {
    fn load(loader: &Loader<'_, B>, config: &VaeConfig) -> Result<Self> {
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

    fn forward(&self, ctx: &Context<'_, B>, mut x: Tensor<B>) -> Result<Tensor<B>> {
        if let Some(weight) = &self.post_quant {
            x = weight.forward(ctx, &x)?;
        }
        x = self.conv_in.forward(ctx, &x)?;
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
        self.conv_out.forward_normed(ctx, &self.norm_out, &x, None)
    }
}

impl<B: Convolutions> Encoder<B> {
    fn load(loader: &Loader<'_, B>, config: &VaeConfig) -> Result<Self> {
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

    fn forward(&self, ctx: &Context<'_, B>, mut x: Tensor<B>) -> Result<Tensor<B>> {
        x = self.conv_in.forward(ctx, &x)?;
        for (resnets, downsample) in &self.blocks {
            for resnet in resnets {
                x = resnet.forward(ctx, &x, None)?;
            }
            if let Some(downsample) = downsample {
                x = downsample.forward(ctx, &x)?;
            }
        }
        x = self.mid.forward(ctx, &x)?;
        let x = self.conv_out.forward_normed(ctx, &self.norm_out, &x, None)?;
        match &self.quant {
            Some(weight) => weight.forward(ctx, &x),
            None => Ok(x),
        }
    }
}
