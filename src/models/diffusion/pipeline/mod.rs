//! The image pipeline: encode prompts, denoise latents step by step, decode the image.
//!
//! Computation and the order of noise follow diffusers' pipelines, so that a seed gives the same image.

mod denoise;
mod init_image;
mod memory;
mod prompt_embeds;
mod text_encoder;

use std::sync::Arc;

use outpost_kernels::DType;

use super::SchedulerName;
pub use super::adapters::{AdaptableLayers, Adapter, LoraDeltas, LoraFile};
use super::components::TextEncoderConfig;
pub use super::components::{Components, Family, MODEL_INDEX, TextComponent, referenced_models, sidecar_files};
pub use super::feature_map::FeatureMap;
use super::layers::Loaded;
use super::network::{Network, NetworkConfig};
use super::noise::Generator;
pub use super::op_context::{OpContext, Result};
use super::samplers::{Sampler, SamplingParams, SchedulerConfig};
use super::vae::Vae;
use crate::models::error::ModelError;
use crate::models::scratch_buffers::Cpu;
use crate::models::weights::Loader;
pub use init_image::{InitImage, Mask, Pixels};
pub use prompt_embeds::PromptEmbeds;
use text_encoder::TextEncoder;

/// A loaded pipeline, shared by all requests.
#[derive(Debug)]
pub struct Pipeline {
    family: Family,
    scheduler: SchedulerConfig,
    /// The network's configuration, and the network.
    config: NetworkConfig,
    network: Network,
    vae: Vae,
    text_encoders: Vec<TextEncoder>,
    layers: AdaptableLayers,
    zero_empty_negative: bool,
    /// Maximum tokens of prompt embeddings.
    max_tokens: usize,
    /// Tokens and width of the T5 embeddings that follow CLIP's (SD 3).
    t5_shape: [usize; 2],
    /// Bytes that the autoencoder may take; larger images are decoded in tiles.
    vae_budget: u64,
}

/// The parameters of an image, beyond the prompt.
#[derive(Debug)]
pub struct GenerationParams<'a> {
    /// Height and width of the image.
    pub size: [usize; 2],
    pub steps: usize,
    pub guidance: f32,
    /// `None`: the pipeline's own.
    pub scheduler: Option<SchedulerName>,
    pub init_image: Option<&'a InitImage>,
}

/// Progress of an image.
pub struct StepProgress<'a> {
    /// Finished steps, and all.
    pub step: usize,
    pub steps: usize,
    /// The predicted clean latents.
    pub clean: &'a dyn Fn() -> Vec<f32>,
}

impl Pipeline {
    /// Reads all weights, with floats rounded to `precision`. `vae_budget`: bytes that the autoencoder may take; larger
    /// images are decoded in tiles.
    pub fn load(components: &Components, cpu: &Arc<Cpu>, precision: Option<DType>, vae_budget: u64) -> Loaded<Self> {
        let threads = cpu.pool().threads();
        let ((config, tensors), (vae, vae_tensors)) = (&components.network, &components.vae);
        let (mut layers, mut text_encoders) =
            (AdaptableLayers::default(), Vec::with_capacity(components.text_encoders.len()));
        for (at, text) in components.text_encoders.iter().enumerate() {
            let load = |loader: &Loader<'_>| TextEncoder::load(loader, &text.encoder, cpu);
            let (encoder, matrices) = text.tensors.read(threads, precision, load)?;
            text_encoders.push(encoder);
            // Other encoders do not support adapters.
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
            text_encoders,
            layers,
            zero_empty_negative: components.zero_empty_negative,
            max_tokens: components.t5_shape()[0]
                + components.text_encoders.iter().map(|text| text.tokens).max().unwrap_or(0),
            t5_shape: components.t5_shape(),
            vae_budget,
        })
    }

    /// The layers that LoRA adapters may target.
    pub fn layers(&self) -> &AdaptableLayers {
        &self.layers
    }

    /// Whether negative prompts have no effect.
    pub fn ignores_negative_prompt(&self) -> bool {
        self.family == Family::Flux
    }

    /// Whether a step runs the negative prompt, too.
    pub fn uses_cfg(&self, guidance: f32) -> bool {
        guidance > 1. && self.config.uses_cfg()
    }

    /// Whether the network is an inpainting network, which requires a mask.
    pub fn takes_mask(&self) -> bool {
        let [inputs, _] = self.config.channels();
        inputs > self.vae.config().latent_channels
    }

    /// The sampler for an image, or why there is none. `strength`: for an initial image.
    pub fn sampler(&self, params: &GenerationParams<'_>, strength: Option<f32>) -> Result<Sampler> {
        let config = match params.scheduler {
            Some(name) => self.scheduler.with_scheduler(name).map_err(ModelError::Parameters)?,
            None => self.scheduler.clone(),
        };
        let [height, width] = self.latent_size(params.size);
        let patch = self.config.patch();
        let tokens = Some((height / patch) * (width / patch));
        let sampling =
            SamplingParams { steps: params.steps, strength, tokens, flux_sigmas: self.family == Family::Flux };
        Sampler::new(&config, sampling).map_err(ModelError::Parameters)
    }

    /// Height and width of an image's latents.
    pub fn latent_size(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        let factor = self.vae.config().factor();
        [height / factor, width / factor]
    }

    /// Decodes latents to an image, `[height, width, 3]`.
    pub fn decode(&self, ctx: &OpContext<'_>, latents: &[f32], size: [usize; 2]) -> Result<FeatureMap> {
        let latents = ctx.feature_map(latents, 1, size, self.vae.config().latent_channels)?;
        let factor = self.vae.config().factor();
        self.vae.decode(ctx, latents, self.uses_tiling(size.map(|side| side * factor)))
    }
}

/// Normal noise, drawn in torch's order, `[channels, height, width]`, and returned with channels last.
#[derive(Debug)]
struct LatentNoise {
    generator: Generator,
    size: [usize; 2],
    channels: usize,
}

impl LatentNoise {
    /// Noise for latents of `count` elements.
    fn draw(&mut self, count: usize) -> Vec<f32> {
        let drawn = self.generator.normal(count);
        let pixels = self.size[0] * self.size[1];
        let mut transposed = vec![0.; count];
        for (channel, drawn) in drawn.chunks_exact(pixels.max(1)).enumerate() {
            let places = transposed.iter_mut().skip(channel).step_by(self.channels.max(1));
            places.zip(drawn).for_each(|(to, from)| *to = *from);
        }
        transposed
    }

    fn latents(&mut self) -> Vec<f32> {
        self.draw(self.size[0] * self.size[1] * self.channels)
    }
}
