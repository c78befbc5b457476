//! The UNet of Stable Diffusion 1, 2 and XL (Rombach et al. 2022, <https://arxiv.org/abs/2112.10752>; Podell et al.
//! 2023, <https://arxiv.org/abs/2307.01952>).
//!
//! Names and order follow diffusers' `UNet2DConditionModel`.

mod config;

pub use config::UnetConfig;

use crate::backend::{Activation, Backend, Convolutions, GroupNorm, Tensor};
use config::Level;

use super::layers::{linear, same_conv};
use super::resnet::{Downsample, ResnetBlock, ResnetConfig, Upsample};
use super::spatial_transformer::{SpatialTransformer, SpatialTransformerConfig};
use super::timestep_embedding::{TimestepEmbedding, sinusoidal_embedding};
use crate::error::Result;
use crate::error::{ModelError, reject_config};
use crate::nn::{Context, Conv, Linear};
use crate::weights::Loader;

#[derive(Debug)]
pub struct Unet<B: Convolutions> {
    config: UnetConfig,
    time_embedding: TimestepEmbedding<B>,
    /// Projects the embedded guidance scale to the width of the sinusoidal embedding.
    guidance_proj: Option<Linear<B>>,
    /// Embeds the micro-conditioning.
    add_embedding: Option<TimestepEmbedding<B>>,
    conv_in: Conv<B>,
    down_blocks: Vec<Block<B>>,
    mid_block: (ResnetBlock<B>, SpatialTransformer<B>, ResnetBlock<B>),
    up_blocks: Vec<Block<B>>,
    norm_out: GroupNorm<B>,
    conv_out: Conv<B>,
}

/// A down block or an up block: the layers of one resolution level in the down or the up path.
#[derive(Debug)]
struct Block<B: Convolutions> {
    resnets: Vec<ResnetBlock<B>>,
    /// One after each resnet, or none.
    transformers: Vec<SpatialTransformer<B>>,
    downsample: Option<Downsample<B>>,
    upsample: Option<Upsample<B>>,
}

/// The inputs of a UNet besides the latents.
#[derive(Debug)]
pub struct UnetConditioning<'a, B: Backend> {
    pub timestep: f32,
    /// Prompt embeddings, `[images, tokens, 1, context_width]`.
    pub text: &'a Tensor<B>,
    /// The guidance scale, for UNets that embed it.
    pub guidance: Option<f32>,
    /// For UNets with micro-conditioning.
    pub micro: Option<&'a MicroConditioning>,
}

/// The micro-conditioning of SDXL: the pooled prompt embedding and six sizes.
#[derive(Clone, Debug)]
pub struct MicroConditioning {
    /// `[images][pooled_width]`
    pub pooled: Vec<Vec<f32>>,
    /// `[images][6]`, in pixels.
    pub sizes: Vec<Vec<f32>>,
}

impl<B: Convolutions> Unet<B> {
    pub fn load(loader: &Loader<'_, B>, config: UnetConfig) -> Result<Self> {
        let UnetConfig { groups, epsilon, time, time_scale_shift, output_scale_factor, .. } = config;
        let resnet_config =
            ResnetConfig { groups, epsilon, temb_width: Some(time.width), time_scale_shift, output_scale_factor };
        let first_channels = config.levels.first().map_or(0, |level| level.channels);
        let add_embedding = config
            .micro_conditioning
            .map(|micro| TimestepEmbedding::load(loader, "add_embedding", micro.total_width, time.width));
        let guidance_proj = |width| linear(loader, "time_embedding.cond_proj", [width, time.sinusoid_dim], false);
        let [kernel_in, kernel_out] = config.conv_kernels;
        Ok(Self {
            time_embedding: TimestepEmbedding::load(loader, "time_embedding", time.sinusoid_dim, time.width)?,
            guidance_proj: time.guidance_dim.map(guidance_proj).transpose()?,
            add_embedding: add_embedding.transpose()?,
            conv_in: same_conv(loader, "conv_in", [config.in_channels, first_channels], kernel_in)?,
            down_blocks: load_down_blocks(loader, &config, &resnet_config)?,
            mid_block: load_mid_block(loader, &config, &resnet_config)?,
            up_blocks: load_up_blocks(loader, &config, &resnet_config)?,
            norm_out: GroupNorm::load(loader, "conv_norm_out", first_channels, groups, epsilon)?,
            conv_out: same_conv(loader, "conv_out", [first_channels, config.out_channels], kernel_out)?,
            config,
        })
    }

    pub fn config(&self) -> &UnetConfig {
        &self.config
    }

    /// The model output, `[images, height, width, out_channels]`, for the latents `x`, `[images, height, width,
    /// in_channels]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, cond: &UnetConditioning<'_, B>) -> Result<Tensor<B>> {
        let temb = self.embed_conditioning(ctx, x.images, cond)?;
        let mut skips = vec![self.conv_in.forward(ctx, x)?];
        for block in &self.down_blocks {
            for (index, resnet) in block.resnets.iter().enumerate() {
                let mut x = resnet.forward(ctx, last(&skips)?, Some(&temb))?;
                if let Some(transformer) = block.transformers.get(index) {
                    x = transformer.forward(ctx, x, cond.text)?;
                }
                skips.push(x);
            }
            if let Some(downsample) = &block.downsample {
                let x = downsample.forward(ctx, last(&skips)?)?;
                skips.push(x);
            }
        }
        let (first, transformer, second) = &self.mid_block;
        let mut x = first.forward(ctx, last(&skips)?, Some(&temb))?;
        x = transformer.forward(ctx, x, cond.text)?;
        x = second.forward(ctx, &x, Some(&temb))?;
        for block in &self.up_blocks {
            for (index, resnet) in block.resnets.iter().enumerate() {
                let skip = skips
                    .pop()
                    .ok_or_else(|| ModelError::Compute("the up path is longer than the down path".into()))?;
                let input = ctx.concat_channels(&x, &skip)?;
                drop((x, skip));
                x = resnet.forward(ctx, &input, Some(&temb))?;
                if let Some(transformer) = block.transformers.get(index) {
                    x = transformer.forward(ctx, x, cond.text)?;
                }
            }
            if let (Some(upsample), Some(next)) = (&block.upsample, skips.last()) {
                x = upsample.forward(ctx, x, next.size)?;
            }
        }
        self.conv_out.forward_normed(ctx, &self.norm_out, &x, None)
    }

    /// The embedding of the timestep, guidance scale and micro-conditioning after SiLU, `[images, 1, 1, width]`.
    fn embed_conditioning(
        &self,
        ctx: &Context<'_, B>,
        images: usize,
        cond: &UnetConditioning<'_, B>,
    ) -> Result<Tensor<B>> {
        let time = &self.config.time;
        let mut x = ctx.tensor(
            &sinusoidal_embedding(cond.timestep, time.sinusoid_dim, time.cosines_first, time.freq_shift),
            [1, 1, 1, time.sinusoid_dim],
        )?;
        if let Some(weight) = &self.guidance_proj {
            let width = time.guidance_dim.unwrap_or(0);
            // As in diffusers' `get_guidance_scale_embedding`.
            let scale = (cond.guidance.unwrap_or(1.) - 1.) * 1000.;
            let embedded = ctx.tensor(&sinusoidal_embedding(scale, width, false, 1.), [1, 1, 1, width])?;
            ctx.add(&mut x, &weight.forward(ctx, &embedded)?)?;
        }
        let x = self.time_embedding.forward(ctx, &x)?;
        let mut temb = ctx.repeat(&x, images)?;
        match (&self.add_embedding, cond.micro) {
            (Some(embedding), Some(micro)) => {
                ctx.add(&mut temb, &self.embed_micro_conditioning(ctx, embedding, micro)?)?;
            }
            (None, _) => {}
            (Some(_), None) => return Err(ModelError::Compute("the UNet requires micro-conditioning".to_owned())),
        }
        ctx.activate(Activation::Silu, &mut temb, None)?;
        Ok(temb)
    }

    /// `[images, 1, 1, width]`
    fn embed_micro_conditioning(
        &self,
        ctx: &Context<'_, B>,
        embedding: &TimestepEmbedding<B>,
        micro: &MicroConditioning,
    ) -> Result<Tensor<B>> {
        let time = &self.config.time;
        let (width, total) =
            self.config.micro_conditioning.map_or((0, 0), |micro| (micro.sinusoid_dim, micro.total_width));
        let mut values = Vec::with_capacity(micro.pooled.len() * total);
        for (pooled, sizes) in micro.pooled.iter().zip(&micro.sizes) {
            values.extend_from_slice(pooled);
            sizes.iter().for_each(|size| {
                values.extend(sinusoidal_embedding(*size, width, time.cosines_first, time.freq_shift))
            });
        }
        embedding.forward(ctx, &ctx.tensor(&values, [micro.pooled.len(), 1, 1, total])?)
    }
}

/// The latest output of the down path.
fn last<B: Backend>(skips: &[Tensor<B>]) -> Result<&Tensor<B>> {
    skips.last().ok_or_else(|| ModelError::Compute("the down path is empty".to_owned()))
}

fn transformer_config(level: &Level, layers: usize, groups: usize) -> SpatialTransformerConfig {
    let Level { channels, heads, context_width, only_cross_attention, .. } = *level;
    SpatialTransformerConfig { layers, channels, heads, context_width, groups, only_cross_attention }
}

fn load_transformer<B: Convolutions>(
    loader: &Loader<'_, B>,
    stem: &str,
    level: &Level,
    layers: usize,
    groups: usize,
) -> Result<SpatialTransformer<B>> {
    SpatialTransformer::load(loader, stem, &transformer_config(level, layers, groups))
}

fn load_down_blocks<B: Convolutions>(
    loader: &Loader<'_, B>,
    config: &UnetConfig,
    resnet_config: &ResnetConfig,
) -> Result<Vec<Block<B>>> {
    let mut inputs = config.levels.first().map_or(0, |level| level.channels);
    let last = config.levels.len().saturating_sub(1);
    let mut blocks = Vec::with_capacity(config.levels.len());
    for (index, level) in config.levels.iter().enumerate() {
        let stem = format!("down_blocks.{index}");
        let (mut resnets, mut transformers) = (Vec::new(), Vec::new());
        for layer in 0..level.resnets {
            resnets.push(ResnetBlock::load(
                loader,
                &format!("{stem}.resnets.{layer}"),
                [inputs, level.channels],
                resnet_config,
            )?);
            inputs = level.channels;
            if level.attention {
                let layers = level.transformer_layers.get(layer).copied().unwrap_or(1);
                let stem = format!("{stem}.attentions.{layer}");
                transformers.push(load_transformer(loader, &stem, level, layers, config.groups)?);
            }
        }
        let downsample = (index < last)
            .then(|| Downsample::load(loader, &stem, level.channels, [config.downsample_padding; 2]))
            .transpose()?;
        blocks.push(Block { resnets, transformers, downsample, upsample: None });
    }
    Ok(blocks)
}

fn load_mid_block<B: Convolutions>(
    loader: &Loader<'_, B>,
    config: &UnetConfig,
    resnet_config: &ResnetConfig,
) -> Result<(ResnetBlock<B>, SpatialTransformer<B>, ResnetBlock<B>)> {
    let Some(level) = config.last_level() else {
        return reject_config("the UNet has no blocks".to_owned());
    };
    let resnet_config = ResnetConfig { output_scale_factor: config.mid_scale_factor, ..*resnet_config };
    let resnet = |layer: usize| {
        ResnetBlock::load(loader, &format!("mid_block.resnets.{layer}"), [level.channels; 2], &resnet_config)
    };
    let layers = level.transformer_layers.last().copied().unwrap_or(1);
    let transformer_config =
        SpatialTransformerConfig { only_cross_attention: false, ..transformer_config(level, layers, config.groups) };
    let transformer = SpatialTransformer::load(loader, "mid_block.attentions.0", &transformer_config)?;
    Ok((resnet(0)?, transformer, resnet(1)?))
}

fn load_up_blocks<B: Convolutions>(
    loader: &Loader<'_, B>,
    config: &UnetConfig,
    resnet_config: &ResnetConfig,
) -> Result<Vec<Block<B>>> {
    let levels: Vec<&Level> = config.levels.iter().rev().collect();
    let mut inputs = levels.first().map_or(0, |level| level.channels);
    let mut blocks = Vec::with_capacity(levels.len());
    for (index, level) in levels.iter().enumerate() {
        let stem = format!("up_blocks.{index}");
        let next_channels = levels.get(index + 1).unwrap_or(level).channels;
        let layers = match &config.up_transformer_layers {
            Some(layers) => layers.get(index).cloned().unwrap_or_default(),
            None => level.transformer_layers.clone(),
        };
        let (mut resnets, mut transformers) = (Vec::new(), Vec::new());
        for layer in 0..=level.resnets {
            let skip = if layer == level.resnets { next_channels } else { level.channels };
            let channels = [inputs + skip, level.channels];
            resnets.push(ResnetBlock::load(loader, &format!("{stem}.resnets.{layer}"), channels, resnet_config)?);
            inputs = level.channels;
            if config.up_attention.get(index).is_some_and(|attention| *attention) {
                let layers = layers.get(layer).copied().unwrap_or(1);
                let stem = format!("{stem}.attentions.{layer}");
                transformers.push(load_transformer(loader, &stem, level, layers, config.groups)?);
            }
        }
        let upsample = (index + 1 < levels.len()).then(|| Upsample::load(loader, &stem, level.channels)).transpose()?;
        blocks.push(Block { resnets, transformers, downsample: None, upsample });
    }
    Ok(blocks)
}
