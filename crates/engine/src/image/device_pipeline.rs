//! A pipeline on its device, with its adapters: generates the images of a request.

use super::adapters::Adapters;
use super::request::PromptIds;
use super::{Image, ImageRequest, InitImage};
use crate::error::{NOT_FINITE, are_finite};
use crate::precision::Precision;
use crate::runtime::Runtime;
use outpost_models::ModelError;
use outpost_models::backend::{Convolutions, Pause, Recurrent, RequestOptions};
use outpost_models::diffusion::pipeline::{
    self, Components, Context, GenerationParams, Pipeline, PromptEmbeds, StepProgress,
};

/// A pipeline, without the type of its device.
pub trait DevicePipeline: Send + Sync {
    /// Whether negative prompts have no effect.
    fn ignores_negative_prompt(&self) -> bool;

    /// True for denoisers that are trained for inpainting. They require a mask.
    fn takes_mask(&self) -> bool;

    /// Checks that the request's scheduler fits the model and can run its steps.
    fn check_sampler(&self, request: &ImageRequest) -> Result<(), ModelError>;

    /// Memory that an image of this height and width takes, in bytes.
    fn image_bytes(&self, size: [usize; 2]) -> u64;

    /// Checks the adapters; returns the bytes of memory that they take. May read file headers.
    fn check_adapters(&self, requested: &[(String, f32)]) -> Result<u64, String>;

    /// Evicts all adapters. `false` if there were none.
    fn evict_adapters(&self) -> bool;

    /// Generates one image. `None`: there is no memory for its adapters.
    fn generate(&self, input: ImageInput<'_>) -> Result<Option<Image>, ModelError>;
}

/// The input of one image.
pub struct ImageInput<'a> {
    pub request: &'a ImageRequest,
    pub prompts: &'a PromptIds,
    /// The encoded prompts, which the images of a request share.
    pub embeds: &'a mut Option<PromptEmbeds>,
    pub seed: u64,
    /// Called between chunks of work.
    pub pause: Pause,
    /// Leases the memory of adapters.
    pub runtime: &'a Runtime,
    /// Called after each step with its number and the number of steps, and with a preview when one is due.
    pub on_step: &'a mut dyn FnMut(usize, usize, Option<Image>),
}

/// Reads the weights of a pipeline. `vae_budget`: memory limit of the autoencoder in bytes.
pub fn load<B: Convolutions + Recurrent>(
    components: &Components,
    backend: &B,
    precision: Precision,
    vae_budget: u64,
) -> Result<Box<dyn DevicePipeline>, ModelError> {
    let pipeline = Pipeline::load(components, backend, precision.kind(), vae_budget)?;
    let (adapters, bf16) = (Adapters::new(&components.path), precision == Precision::Bf16);
    let (_binding, backend) = (backend.thread_binding(), backend.clone());
    Ok(Box::new(LoadedPipeline { _binding, pipeline, adapters, backend, bf16 }))
}

struct LoadedPipeline<B: Convolutions + Recurrent> {
    _binding: B::ThreadBinding,
    pipeline: Pipeline<B>,
    adapters: Adapters<B>,
    backend: B,
    /// Whether it computes in bf16.
    bf16: bool,
}

impl<B: Convolutions + Recurrent> DevicePipeline for LoadedPipeline<B> {
    fn ignores_negative_prompt(&self) -> bool {
        self.pipeline.ignores_negative_prompt()
    }

    fn takes_mask(&self) -> bool {
        self.pipeline.takes_mask()
    }

    fn check_sampler(&self, request: &ImageRequest) -> Result<(), ModelError> {
        let strength = request.init_image.as_ref().map(|source| source.strength);
        self.pipeline.sampler(&generation_params(request, None), strength).map(drop)
    }

    fn image_bytes(&self, size: [usize; 2]) -> u64 {
        self.pipeline.image_bytes(&self.backend, size)
    }

    fn check_adapters(&self, requested: &[(String, f32)]) -> Result<u64, String> {
        self.adapters.check(self.pipeline.adaptable_layers(), requested, &self.backend)
    }

    fn evict_adapters(&self) -> bool {
        self.adapters.evict_except(&[])
    }

    fn generate(&self, input: ImageInput<'_>) -> Result<Option<Image>, ModelError> {
        let ImageInput { request, prompts, embeds, seed, pause, runtime, on_step } = input;
        let backend = self.backend.for_request(RequestOptions { pause, bf16_attention: self.bf16 });
        let layers = self.pipeline.adaptable_layers();
        let Some(lora) = self.adapters.load(layers, &request.lora, &backend, runtime)? else { return Ok(None) };
        let ctx = &Context::new(&backend).with_lora(lora);
        let embeds = match embeds {
            Some(embeds) => embeds,
            None => embeds.insert(self.pipeline.encode_prompts(ctx, prompts, request.negative_prompt.is_none())?),
        };
        let source = request.init_image.as_ref().map(init_image);
        let params = generation_params(request, source.as_ref());
        let size = self.pipeline.latent_size(params.size);
        let mut report = |progress: &StepProgress<'_>| {
            let StepProgress { step, steps, clean } = *progress;
            let preview = match preview_due(request.previews, step, steps) {
                true => Some(to_image(&self.pipeline.decode(ctx, &clean(), size)?)),
                false => None,
            };
            on_step(step, steps, preview);
            Ok(())
        };
        let image = self.pipeline.generate(ctx, embeds, &params, seed, &mut report)?;
        let (held, claimed) = (backend.peak_bytes(), self.image_bytes(params.size));
        tracing::debug!(held, claimed, "an image is ready; bytes of memory beside the weights");
        match are_finite(&image.values) {
            true => Ok(Some(to_image(&image))),
            false => Err(ModelError::Compute(NOT_FINITE.to_owned())),
        }
    }
}

/// True if a preview is due after this step. Previews are spread evenly; the last step has none.
fn preview_due(previews: usize, step: usize, steps: usize) -> bool {
    let due = |step: usize| step * (previews + 1) / steps.max(1);
    step < steps && due(step) > due(step.saturating_sub(1))
}

fn generation_params<'a>(request: &ImageRequest, source: Option<&'a pipeline::InitImage>) -> GenerationParams<'a> {
    let [width, height] = request.size;
    let ImageRequest { steps, guidance, scheduler, .. } = *request;
    GenerationParams { size: [height, width], steps, guidance, scheduler, init_image: source }
}

/// Converts bytes to −1 to 1.
fn init_image(source: &InitImage) -> pipeline::InitImage {
    let image = source.image.rgb.iter().map(|byte| f32::from(*byte) / 255. * 2. - 1.).collect();
    let mask = source.mask.as_ref().map(|mask| mask.iter().map(|byte| *byte >= 128).collect());
    pipeline::InitImage { image, strength: source.strength, mask }
}

/// Converts −1 to 1 to bytes, rounding as diffusers does.
fn to_image(map: &pipeline::Raster) -> Image {
    let [height, width] = map.size;
    let byte = |x: &f32| ((x / 2. + 0.5).clamp(0., 1.) * 255.).round_ties_even() as u8;
    Image { width, height, rgb: map.values.iter().map(byte).collect() }
}

#[cfg(test)]
mod tests {
    use super::preview_due;

    #[test]
    fn previews_are_spread_over_the_steps() {
        let shown =
            |previews, steps| (1..=steps).filter(|step| preview_due(previews, *step, steps)).collect::<Vec<_>>();
        assert!(shown(0, 10).is_empty());
        assert_eq!(shown(1, 10), [5]);
        assert_eq!(shown(3, 20), [5, 10, 15]);
        assert_eq!(shown(3, 2), [1], "there are not so many");
        assert!(shown(2, 1).is_empty());
    }
}
