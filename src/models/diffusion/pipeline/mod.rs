//! A whole pipeline: texts become words, noise becomes latents step by step, and latents a picture.
//!
//! What is computed, and the order in which noise is drawn, is that of diffusers' pipelines, so that a seed means the
//! same picture.

mod memory;
mod source;
mod texts;

use std::sync::Arc;

use outpost_kernels::Kind;

use super::SchedulerName;
pub use super::adapters::{AdaptableLayers, Adapter, LoraDeltas, LoraFile};
use super::components::TextEncoderConfig;
pub use super::components::{Components, Family, MODEL_INDEX, TextComponent, referenced_models, sidecar_files};
pub use super::feature_map::FeatureMap;
use super::layers::Loaded;
use super::network::{Conditioning, Network, NetworkConfig};
use super::noise::Generator;
pub use super::op_context::{Interrupted, OpContext, Result};
use super::samplers::{Sampler, SamplingParams, SchedulerConfig};
use super::vae::Vae;
use crate::models::scratch::Cpu;
use crate::models::weights::Loader;
use source::{Kept, Start};
pub use source::{Mask, Pixels, Source};
use texts::TextEncoder;
pub use texts::Words;

/// A loaded pipeline; shared by all that is painted.
#[derive(Debug)]
pub struct Pipeline {
    family: Family,
    scheduler: SchedulerConfig,
    /// The network's sizes, and itself.
    config: NetworkConfig,
    network: Network,
    vae: Vae,
    texts: Vec<TextEncoder>,
    layers: AdaptableLayers,
    zero_empty_negative: bool,
    /// Words that a network is told, at most.
    words: usize,
    /// Tokens and numbers of the words that stand behind CLIP's (SD 3).
    t5_shape: [usize; 2],
    /// Bytes that the autoencoder may take; a picture for which that is too little is cut into tiles.
    roomy: u64,
}

/// What is to be painted, beside the words.
#[derive(Debug)]
pub struct Order<'a> {
    /// Height and width of the picture.
    pub size: [usize; 2],
    pub steps: usize,
    pub guidance: f32,
    /// `None`: the pipeline's own.
    pub scheduler: Option<SchedulerName>,
    pub source: Option<&'a Source>,
}

/// A picture on its way.
pub struct Progress<'a> {
    /// Steps that are done, and all.
    pub step: usize,
    pub steps: usize,
    /// The latents as they would be without the noise that is left.
    pub clean: &'a dyn Fn() -> Vec<f32>,
}

impl Pipeline {
    /// Reads all weights, floats rounded to `precision`; `cpu` computes with them. `roomy`: bytes that the autoencoder
    /// may take; a picture for which that is too little is cut into tiles.
    pub fn load(components: &Components, cpu: &Arc<Cpu>, precision: Option<Kind>, roomy: u64) -> Loaded<Self> {
        let threads = cpu.pool().threads();
        let ((config, tensors), (vae, vae_tensors)) = (&components.network, &components.vae);
        let (mut layers, mut texts) = (AdaptableLayers::default(), Vec::with_capacity(components.text_encoders.len()));
        for (at, text) in components.text_encoders.iter().enumerate() {
            let load = |loader: &Loader<'_>| TextEncoder::load(loader, &text.encoder, cpu);
            let (encoder, matrices) = text.tensors.read(threads, precision, load)?;
            texts.push(encoder);
            // Others are not computed with adapters.
            if let TextEncoderConfig::Clip(_) = text.encoder {
                layers.push_text(at, matrices);
            }
        }
        let (network, matrices) = tensors.read(threads, precision, |loader| Network::load(loader, config))?;
        layers.push_network(config, matrices);
        Ok(Self {
            family: components.family,
            scheduler: components.scheduler.clone(),
            network,
            config: config.clone(),
            vae: vae_tensors.read(threads, precision, |loader| Vae::load(loader, vae.clone()))?.0,
            texts,
            layers,
            zero_empty_negative: components.zero_empty_negative,
            words: components.t5_shape()[0]
                + components.text_encoders.iter().map(|text| text.tokens).max().unwrap_or(0),
            t5_shape: components.t5_shape(),
            roomy,
        })
    }

    /// The layers that adapters may be for.
    pub fn layers(&self) -> &AdaptableLayers {
        &self.layers
    }

    /// Whether nothing ever comes of a negative prompt.
    pub fn ignores_negative(&self) -> bool {
        self.family == Family::Flux
    }

    /// Whether the network is asked for the negative prompt, too.
    pub fn is_guided(&self, guidance: f32) -> bool {
        guidance > 1. && self.config.uses_cfg()
    }

    /// Whether the network fills in what a mask leaves out, and can nothing else.
    pub fn wants_mask(&self) -> bool {
        let [inputs, _] = self.config.channels();
        inputs > self.vae.config().latent_channels
    }

    /// The way that a picture takes, if there is such a way; else why not. `strength`: of a picture to begin with.
    pub fn sampler(&self, order: &Order<'_>, strength: Option<f32>) -> std::result::Result<Sampler, String> {
        let config = match order.scheduler {
            Some(name) => self.scheduler.with_scheduler(name)?,
            None => self.scheduler.clone(),
        };
        let [height, width] = self.latent_size(order.size);
        let patch = self.config.patch();
        let tokens = Some((height / patch) * (width / patch));
        let params = SamplingParams { steps: order.steps, strength, tokens, flux_sigmas: self.family == Family::Flux };
        Sampler::new(&config, params)
    }

    /// Height and width of the latents of a picture.
    pub fn latent_size(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        let factor = self.vae.config().factor();
        [height / factor, width / factor]
    }

    /// Paints a picture: its numbers from −1 to 1, `[height, width, 3]`.
    pub fn paint(
        &self,
        ctx: &OpContext<'_>,
        words: &Words,
        order: &Order<'_>,
        seed: u64,
        watch: &mut dyn FnMut(&Progress<'_>) -> Result<()>,
    ) -> Result<FeatureMap> {
        let strength = order.source.map(|source| source.strength);
        let mut sampler = self.sampler(order, strength).map_err(Interrupted::Failed)?;
        let size = self.latent_size(order.size);
        let mut noise = Noise { generator: Generator::new(seed), size, channels: self.vae.config().latent_channels };
        let Start { mut latents, kept } = self.start(ctx, order, &sampler, &mut noise)?;
        let steps = sampler.len();
        for step in 0..steps {
            let x = self.input(ctx, &latents, size, sampler.input_scale(), kept.as_ref())?;
            let guess = self.guess(ctx, words, order, sampler.timestep(step), &x)?;
            let told = Progress { step: step + 1, steps, clean: &|| sampler.clean(&guess, &latents) };
            watch(&told)?;
            sampler.step(&guess, &mut latents, |count| noise.draw(count));
            if let Some(kept) = &kept {
                kept.restore(&sampler, step + 1, &mut latents);
            }
            ctx.pause()?;
        }
        self.decode(ctx, &latents, size)
    }

    /// The picture of latents, `[height, width, 3]`.
    pub fn decode(&self, ctx: &OpContext<'_>, latents: &[f32], size: [usize; 2]) -> Result<FeatureMap> {
        let latents = ctx.feature_map(latents, 1, size, self.vae.config().latent_channels)?;
        let factor = self.vae.config().factor();
        self.vae.decode(ctx, latents, self.tiles(size.map(|side| side * factor)))
    }

    /// Latents as the network takes them: `[1, height, width, channels]`.
    fn input(
        &self,
        ctx: &OpContext<'_>,
        latents: &[f32],
        size: [usize; 2],
        scale: f32,
        kept: Option<&Kept>,
    ) -> Result<FeatureMap> {
        let channels = self.vae.config().latent_channels;
        let mut x = ctx.feature_map(latents, 1, size, channels)?;
        x.data_mut().iter_mut().for_each(|x| *x *= scale);
        if !self.wants_mask() {
            return Ok(x);
        }
        let beside = kept.and_then(|kept| kept.beside.as_ref());
        let beside = beside.ok_or_else(|| Interrupted::Failed("the network wants a picture and a mask".to_owned()))?;
        ctx.concat(&x, &ctx.feature_map(beside, 1, size, channels + 1)?)
    }

    /// What the network guesses of `x`, guided.
    fn guess(
        &self,
        ctx: &OpContext<'_>,
        words: &Words,
        order: &Order<'_>,
        timestep: f32,
        x: &FeatureMap,
    ) -> Result<Vec<f32>> {
        let guided = self.is_guided(order.guidance);
        let mut all = ctx.alloc(if guided { 2 } else { 1 }, x.size, x.channels);
        all.data_mut().chunks_exact_mut(x.len()).for_each(|to| to.copy_from_slice(x.data()));
        let text = words.text(ctx, guided)?;
        let Order { guidance, size, .. } = *order;
        let cond = Conditioning { timestep, text: &text, pooled: words.pooled(guided), guidance, size };
        let guess = self.network.forward(ctx, &all, &cond)?;
        let mut each = guess.per_image();
        let first = each.next().unwrap_or_default();
        Ok(match each.next() {
            Some(second) => first.iter().zip(second).map(|(away, to)| away + guidance * (to - away)).collect(),
            None => first.to_vec(),
        })
    }
}

/// Normal numbers in the order in which torch draws them, `[channels, height, width]`, as latents lie.
#[derive(Debug)]
struct Noise {
    generator: Generator,
    size: [usize; 2],
    channels: usize,
}

impl Noise {
    /// For latents, which have `count` numbers.
    fn draw(&mut self, count: usize) -> Vec<f32> {
        let drawn = self.generator.normal(count);
        let pixels = self.size[0] * self.size[1];
        let mut turned = vec![0.; count];
        for (channel, drawn) in drawn.chunks_exact(pixels.max(1)).enumerate() {
            let places = turned.iter_mut().skip(channel).step_by(self.channels.max(1));
            places.zip(drawn).for_each(|(to, from)| *to = *from);
        }
        turned
    }

    fn latents(&mut self) -> Vec<f32> {
        self.draw(self.size[0] * self.size[1] * self.channels)
    }
}
