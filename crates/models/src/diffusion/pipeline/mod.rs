//! The image pipeline: encode prompts, denoise latents step by step, decode the image.
//!
//! The computation and the order of random numbers follow diffusers' pipelines, so that a seed gives the same image.

mod denoise;
mod init_image;
mod memory;
mod prompt_embeds;
mod text_encoder;

use crate::backend::{Convolutions, DType, Recurrent};

use super::SchedulerName;
pub use super::adapters::{AdaptableLayers, LoraFile};
use super::components::TextEncoderConfig;
pub use super::components::{Components, Family, MODEL_INDEX, TextComponent, referenced_models, sidecar_files};
use super::denoiser::{Denoiser, DenoiserConfig};
use super::noise::Generator;
use super::samplers::{Sampler, SamplingParams, SchedulerConfig};
pub use super::vae::Raster;
use super::vae::Vae;
use crate::error::ModelError;
pub use crate::error::Result;
pub use crate::nn::{Adapter, Context, LoraDeltas};
use crate::weights::Loader;
pub use init_image::{InitImage, Mask, Pixels};
pub use prompt_embeds::PromptEmbeds;
use text_encoder::TextEncoder;

/// A loaded pipeline, shared by all requests.
#[derive(Debug)]
pub struct Pipeline<B: Convolutions + Recurrent> {
    family: Family,
    scheduler: SchedulerConfig,
    denoiser_config: DenoiserConfig,
    denoiser: Denoiser<B>,
    vae: Vae<B>,
    text_encoders: Vec<TextEncoder<B>>,
    adaptable_layers: AdaptableLayers,
    zero_empty_negative: bool,
    /// Maximum tokens of prompt embeddings, of all text encoders together.
    max_tokens: usize,
    /// Tokens and width of the T5 embeddings that are appended to those of CLIP (Stable Diffusion 3).
    t5_shape: [usize; 2],
    /// Memory limit of the autoencoder in bytes. Images that need more are processed in tiles.
    vae_budget: u64,
}

/// The parameters of an image besides the prompt.
#[derive(Debug)]
pub struct GenerationParams<'a> {
    /// Height and width of the image in pixels.
    pub size: [usize; 2],
    pub steps: usize,
    /// The guidance scale.
    pub guidance: f32,
    /// `None` selects the pipeline's own scheduler.
    pub scheduler: Option<SchedulerName>,
    pub init_image: Option<&'a InitImage>,
}

/// The progress of an image, reported after each step.
pub struct StepProgress<'a> {
    /// The step, counted from 1.
    pub step: usize,
    /// The number of steps.
    pub steps: usize,
    /// Computes the predicted clean latents, `[height, width, channels]`, for a preview.
    pub clean: &'a dyn Fn() -> Vec<f32>,
}

impl<B: Convolutions + Recurrent> Pipeline<B> {
    /// Reads all weights and rounds floats to `precision`. `vae_budget`: memory limit of the autoencoder in bytes;
    /// images that need more are processed in tiles.
    pub fn load(components: &Components, backend: &B, precision: Option<DType>, vae_budget: u64) -> Result<Self> {
        let ((denoiser_config, denoiser_tensors), (vae, vae_tensors)) = (&components.denoiser, &components.vae);
        let (mut adaptable_layers, mut text_encoders) =
            (AdaptableLayers::default(), Vec::with_capacity(components.text_encoders.len()));
        for (index, text) in components.text_encoders.iter().enumerate() {
            let load = |loader: &Loader<'_, B>| TextEncoder::load(loader, &text.encoder);
            let (encoder, matrices) = text.tensors.read(backend, precision, load)?;
            text_encoders.push(encoder);
            // LoRA files target only CLIP text encoders.
            if let TextEncoderConfig::Clip(_) = text.encoder {
                adaptable_layers.push_text_encoder(index, matrices);
            }
        }
        let load = |loader: &Loader<'_, B>| Denoiser::load(loader, denoiser_config);
        let (denoiser, matrices) = denoiser_tensors.read(backend, precision, load)?;
        adaptable_layers.push_denoiser(denoiser_config, matrices);
        Ok(Self {
            family: components.family,
            scheduler: components.scheduler.clone(),
            denoiser,
            denoiser_config: denoiser_config.clone(),
            vae: vae_tensors.read(backend, precision, |loader| Vae::load(loader, vae.clone()))?.0,
            text_encoders,
            adaptable_layers,
            zero_empty_negative: components.zero_empty_negative,
            max_tokens: components.t5_shape()[0]
                + components.text_encoders.iter().map(|text| text.tokens).max().unwrap_or(0),
            t5_shape: components.t5_shape(),
            vae_budget,
        })
    }

    /// The layers that LoRA adapters may target.
    pub fn adaptable_layers(&self) -> &AdaptableLayers {
        &self.adaptable_layers
    }

    /// Whether negative prompts have no effect.
    pub fn ignores_negative_prompt(&self) -> bool {
        self.family == Family::Flux
    }

    /// Whether each step also runs the negative prompt, for classifier-free guidance.
    pub fn uses_cfg(&self, guidance: f32) -> bool {
        guidance > 1. && self.denoiser_config.uses_cfg()
    }

    /// True for denoisers that are trained for inpainting. They require a mask.
    pub fn takes_mask(&self) -> bool {
        let [inputs, _] = self.denoiser_config.channels();
        inputs > self.vae.config().latent_channels
    }

    /// The sampler for an image. `strength`: of the initial image, if there is one.
    ///
    /// # Errors
    /// The scheduler does not fit the model, or it cannot run this number of steps.
    pub fn sampler(&self, params: &GenerationParams<'_>, strength: Option<f32>) -> Result<Sampler> {
        let config = match params.scheduler {
            Some(name) => self.scheduler.with_scheduler(name).map_err(ModelError::Parameters)?,
            None => self.scheduler.clone(),
        };
        let [height, width] = self.latent_size(params.size);
        let patch_size = self.denoiser_config.patch_size();
        let tokens = Some((height / patch_size) * (width / patch_size));
        let sampling =
            SamplingParams { steps: params.steps, strength, tokens, flux_sigmas: self.family == Family::Flux };
        Sampler::new(&config, sampling).map_err(ModelError::Parameters)
    }

    /// Height and width of the latents of an image.
    pub fn latent_size(&self, [height, width]: [usize; 2]) -> [usize; 2] {
        let factor = self.vae.config().factor();
        [height / factor, width / factor]
    }

    /// Decodes latents, `[height, width, channels]` with `size` as height and width, to an image, `[factor · height, factor
    /// · width, 3]`, with values from about −1 to 1.
    pub fn decode(&self, ctx: &Context<'_, B>, latents: &[f32], size: [usize; 2]) -> Result<Raster> {
        let latents = Raster { values: latents.to_vec(), size, channels: self.vae.config().latent_channels };
        let factor = self.vae.config().factor();
        self.vae.decode(ctx, latents, self.uses_tiling(size.map(|side| side * factor)))
    }
}

/// A source of normal noise for latents. It is drawn in torch's order, `[channels, height, width]`, and returned with
/// channels last.
#[derive(Debug)]
struct LatentNoise {
    generator: Generator,
    /// Height and width of the latents.
    size: [usize; 2],
    channels: usize,
}

impl LatentNoise {
    /// `count` normal values.
    fn draw(&mut self, count: usize) -> Vec<f32> {
        let channels_first = self.generator.normal(count);
        let pixels = self.size[0] * self.size[1];
        let mut channels_last = vec![0.; count];
        for (channel, src) in channels_first.chunks_exact(pixels.max(1)).enumerate() {
            let dst = channels_last.iter_mut().skip(channel).step_by(self.channels.max(1));
            dst.zip(src).for_each(|(dst, src)| *dst = *src);
        }
        channels_last
    }

    /// Noise for one image's latents: `[height, width, channels]`.
    fn sample(&mut self) -> Vec<f32> {
        self.draw(self.size[0] * self.size[1] * self.channels)
    }
}
