//! The UNet of Stable Diffusion 1, 2 and XL (Rombach et al. 2022, <https://arxiv.org/abs/2112.10752>; Podell et al.
//! 2023, <https://arxiv.org/abs/2307.01952>).
//!
//! Names and order follow diffusers' `UNet2DConditionModel`.

mod config;

pub use config::UnetConfig;

use config::Level;
use outpost_kernels::Activation;

use super::feature_map::FeatureMap;
use super::layers::{Conv, GroupNorm, Linear, Loaded, linear, same_conv};
use super::op_context::{OpContext, Result};
use super::resnet::{Downsample, ResnetBlock, ResnetConfig, Upsample};
use super::timestep_embedding::{TimeEmbedding, sinusoidal_embedding};
use super::transformer::{Transformer, TransformerSizes};
use crate::models::error::{ModelError, reject_config};
use crate::models::weights::Loader;

#[derive(Debug)]
pub struct Unet {
    config: UnetConfig,
    time: TimeEmbedding,
    guidance: Option<Linear>,
    added: Option<TimeEmbedding>,
    conv_in: Conv,
    down: Vec<Stage>,
    mid: (ResnetBlock, Transformer, ResnetBlock),
    up: Vec<Stage>,
    norm_out: GroupNorm,
    conv_out: Conv,
}

/// The blocks of one image size, in the down or the up path.
#[derive(Debug)]
struct Stage {
    resnets: Vec<ResnetBlock>,
    /// One after each resnet; empty without attention.
    transformers: Vec<Transformer>,
    down: Option<Downsample>,
    up: Option<Upsample>,
}

/// What the network is conditioned on.
#[derive(Debug)]
pub struct UnetConditioning<'a> {
    pub timestep: f32,
    /// `[images, tokens, 1, context]`
    pub text: &'a FeatureMap,
    /// The guidance scale, for networks that embed it.
    pub guidance: Option<f32>,
    /// For networks with micro-conditioning.
    pub added: Option<&'a MicroConditioning>,
}

/// SDXL's micro-conditioning: pooled text and six sizes.
#[derive(Clone, Debug)]
pub struct MicroConditioning {
    /// `[images][pooled]`
    pub pooled: Vec<Vec<f32>>,
    /// `[images][sizes]`
    pub sizes: Vec<Vec<f32>>,
}

impl Unet {
    pub fn load(loader: &Loader<'_>, config: UnetConfig) -> Loaded<Self> {
        let UnetConfig { groups, epsilon, time, time_scale_shift, output_scale_factor, .. } = config;
        let resnet_config =
            ResnetConfig { groups, epsilon, time: Some(time.width), time_scale_shift, output_scale_factor };
        let first = config.levels.first().map_or(0, |level| level.channels);
        let added = config.added.map(|added| TimeEmbedding::load(loader, "add_embedding", added.total, time.width));
        let guided = |width| linear(loader, "time_embedding.cond_proj", [width, time.sinusoid_dim], false);
        let [kernel_in, kernel_out] = config.kernels;
        Ok(Self {
            time: TimeEmbedding::load(loader, "time_embedding", time.sinusoid_dim, time.width)?,
            guidance: time.guidance.map(guided).transpose()?,
            added: added.transpose()?,
            conv_in: same_conv(loader, "conv_in", [config.in_channels, first], kernel_in)?,
            down: down(loader, &config, &resnet_config)?,
            mid: mid(loader, &config, &resnet_config)?,
            up: up(loader, &config, &resnet_config)?,
            norm_out: GroupNorm::load(loader, "conv_norm_out", first, groups, epsilon)?,
            conv_out: same_conv(loader, "conv_out", [first, config.out_channels], kernel_out)?,
            config,
        })
    }

    pub fn config(&self) -> &UnetConfig {
        &self.config
    }

    /// The model output for `x`, `[images, height, width, in_channels]`.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap, cond: &UnetConditioning<'_>) -> Result<FeatureMap> {
        let time = self.time_embedding(ctx, x.images, cond)?;
        let mut skips = vec![ctx.conv(&self.conv_in, x)?];
        for stage in &self.down {
            for (index, resnet) in stage.resnets.iter().enumerate() {
                let mut x = resnet.forward(ctx, last(&skips)?, Some(&time))?;
                if let Some(transformer) = stage.transformers.get(index) {
                    x = transformer.forward(ctx, x, cond.text)?;
                }
                skips.push(x);
            }
            if let Some(down) = &stage.down {
                let x = down.forward(ctx, last(&skips)?)?;
                skips.push(x);
            }
        }
        let (first, transformer, second) = &self.mid;
        let mut x = first.forward(ctx, last(&skips)?, Some(&time))?;
        x = transformer.forward(ctx, x, cond.text)?;
        x = second.forward(ctx, &x, Some(&time))?;
        for stage in &self.up {
            for (index, resnet) in stage.resnets.iter().enumerate() {
                let skip = skips
                    .pop()
                    .ok_or_else(|| ModelError::Compute("the up path is longer than the down path".into()))?;
                let both = ctx.concat(&x, &skip)?;
                drop((x, skip));
                x = resnet.forward(ctx, &both, Some(&time))?;
                if let Some(transformer) = stage.transformers.get(index) {
                    x = transformer.forward(ctx, x, cond.text)?;
                }
            }
            if let (Some(up), Some(next)) = (&stage.up, skips.last()) {
                x = up.forward(ctx, x, next.size)?;
            }
        }
        ctx.norm_conv(&self.norm_out, &x, None, &self.conv_out)
    }

    /// The timestep embedding with other conditioning, `[images, 1, 1, width]`, through SiLU.
    fn time_embedding(&self, ctx: &OpContext<'_>, images: usize, cond: &UnetConditioning<'_>) -> Result<FeatureMap> {
        let time = &self.config.time;
        let mut x = ctx.feature_map(
            &sinusoidal_embedding(cond.timestep, time.sinusoid_dim, time.cosines_first, time.shift),
            1,
            [1, 1],
            time.sinusoid_dim,
        )?;
        if let Some(weight) = &self.guidance {
            let width = time.guidance.unwrap_or(0);
            // Latent consistency models embed the guidance scale less one, times 1000.
            let scale = (cond.guidance.unwrap_or(1.) - 1.) * 1000.;
            let cond = ctx.feature_map(&sinusoidal_embedding(scale, width, false, 1.), 1, [1, 1], width)?;
            ctx.add(&mut x, &ctx.linear(weight, &cond)?)?;
        }
        let x = self.time.forward(ctx, &x)?;
        let mut all = ctx.alloc(images, [1, 1], x.channels);
        all.data_mut().chunks_exact_mut(x.channels).for_each(|to| to.copy_from_slice(x.data()));
        match (&self.added, cond.added) {
            (Some(embedding), Some(cond)) => ctx.add(&mut all, &self.micro_embedding(ctx, embedding, cond)?)?,
            (None, _) => {}
            (Some(_), None) => return Err(ModelError::Compute("the network has no micro-conditioning".to_owned())),
        }
        ctx.activate(Activation::Silu, &mut all)?;
        Ok(all)
    }

    fn micro_embedding(
        &self,
        ctx: &OpContext<'_>,
        embedding: &TimeEmbedding,
        cond: &MicroConditioning,
    ) -> Result<FeatureMap> {
        let time = &self.config.time;
        let (width, total) = self.config.added.map_or((0, 0), |added| (added.sinusoid_dim, added.total));
        let mut numbers = Vec::with_capacity(cond.pooled.len() * total);
        for (pooled, sizes) in cond.pooled.iter().zip(&cond.sizes) {
            numbers.extend_from_slice(pooled);
            sizes
                .iter()
                .for_each(|size| numbers.extend(sinusoidal_embedding(*size, width, time.cosines_first, time.shift)));
        }
        embedding.forward(ctx, &ctx.feature_map(&numbers, cond.pooled.len(), [1, 1], total)?)
    }
}

/// The current output of the down path.
fn last(skips: &[FeatureMap]) -> Result<&FeatureMap> {
    skips.last().ok_or_else(|| ModelError::Compute("the down path is empty".to_owned()))
}

fn sizes(level: &Level, layers: usize, groups: usize) -> TransformerSizes {
    let Level { channels, heads, context, only_cross, .. } = *level;
    TransformerSizes { layers, channels, heads, context, groups, only_cross }
}

fn down(loader: &Loader<'_>, config: &UnetConfig, resnet_config: &ResnetConfig) -> Loaded<Vec<Stage>> {
    let mut before = config.levels.first().map_or(0, |level| level.channels);
    let last = config.levels.len().saturating_sub(1);
    let mut stages = Vec::with_capacity(config.levels.len());
    for (index, level) in config.levels.iter().enumerate() {
        let stem = format!("down_blocks.{index}");
        let (mut resnets, mut transformers) = (Vec::new(), Vec::new());
        for at in 0..level.resnets {
            resnets.push(ResnetBlock::load(
                loader,
                &format!("{stem}.resnets.{at}"),
                [before, level.channels],
                resnet_config,
            )?);
            before = level.channels;
            if level.attends {
                let sizes = sizes(level, level.transformers.get(at).copied().unwrap_or(1), config.groups);
                transformers.push(Transformer::load(loader, &format!("{stem}.attentions.{at}"), &sizes)?);
            }
        }
        let halves = (index < last)
            .then(|| Downsample::load(loader, &stem, level.channels, [config.downsample_padding; 2]))
            .transpose()?;
        stages.push(Stage { resnets, transformers, down: halves, up: None });
    }
    Ok(stages)
}

fn mid(
    loader: &Loader<'_>,
    config: &UnetConfig,
    resnet_config: &ResnetConfig,
) -> Loaded<(ResnetBlock, Transformer, ResnetBlock)> {
    let Some(level) = config.last() else {
        return reject_config("the UNet has no blocks".to_owned());
    };
    let resnet_config = ResnetConfig { output_scale_factor: config.mid_scale_factor, ..*resnet_config };
    let resnet =
        |at: usize| ResnetBlock::load(loader, &format!("mid_block.resnets.{at}"), [level.channels; 2], &resnet_config);
    let layers = level.transformers.last().copied().unwrap_or(1);
    let sizes = TransformerSizes { only_cross: false, ..sizes(level, layers, config.groups) };
    Ok((resnet(0)?, Transformer::load(loader, "mid_block.attentions.0", &sizes)?, resnet(1)?))
}

fn up(loader: &Loader<'_>, config: &UnetConfig, resnet_config: &ResnetConfig) -> Loaded<Vec<Stage>> {
    let levels: Vec<&Level> = config.levels.iter().rev().collect();
    let mut before = levels.first().map_or(0, |level| level.channels);
    let mut stages = Vec::with_capacity(levels.len());
    for (index, level) in levels.iter().enumerate() {
        let stem = format!("up_blocks.{index}");
        let below = levels.get(index + 1).unwrap_or(level).channels;
        let layers = match &config.up_transformers {
            Some(all) => all.get(index).cloned().unwrap_or_default(),
            None => level.transformers.clone(),
        };
        let (mut resnets, mut transformers) = (Vec::new(), Vec::new());
        for at in 0..=level.resnets {
            let skip = if at == level.resnets { below } else { level.channels };
            let channels = [before + skip, level.channels];
            resnets.push(ResnetBlock::load(loader, &format!("{stem}.resnets.{at}"), channels, resnet_config)?);
            before = level.channels;
            if config.up_attends.get(index).is_some_and(|attends| *attends) {
                let sizes = sizes(level, layers.get(at).copied().unwrap_or(1), config.groups);
                transformers.push(Transformer::load(loader, &format!("{stem}.attentions.{at}"), &sizes)?);
            }
        }
        let doubles = (index + 1 < levels.len()).then(|| Upsample::load(loader, &stem, level.channels)).transpose()?;
        stages.push(Stage { resnets, transformers, down: None, up: doubles });
    }
    Ok(stages)
}
