//! The denoising loop.

use super::init_image::{InitialLatents, InpaintState};
use super::prompt_embeds::PromptEmbeds;
use super::{FeatureMap, GenerationParams, Generator, LatentNoise, OpContext, Pipeline, Result, StepProgress};
use crate::models::diffusion::denoiser::Conditioning;
use crate::models::error::ModelError;

impl Pipeline {
    /// Generates an image, `[1, height, width, 3]`, with values from −1 to 1. `on_step` is called after each model
    /// output and can cancel the request with an error.
    pub fn generate(
        &self,
        ctx: &OpContext<'_>,
        embeds: &PromptEmbeds,
        params: &GenerationParams<'_>,
        seed: u64,
        on_step: &mut dyn FnMut(&StepProgress<'_>) -> Result<()>,
    ) -> Result<FeatureMap> {
        let strength = params.init_image.map(|init_image| init_image.strength);
        let mut sampler = self.sampler(params, strength)?;
        let latent_size = self.latent_size(params.size);
        let mut noise = LatentNoise {
            generator: Generator::new(seed),
            size: latent_size,
            channels: self.vae.config().latent_channels,
        };
        let InitialLatents { mut latents, inpaint } = self.initial_latents(ctx, params, &sampler, &mut noise)?;
        let steps = sampler.len();
        for step in 0..steps {
            let x = self.denoiser_input(ctx, &latents, latent_size, sampler.input_scale(), inpaint.as_ref())?;
            let model_output = self.guided_output(ctx, embeds, params, sampler.timestep(step), &x)?;
            let progress = StepProgress { step: step + 1, steps, clean: &|| sampler.clean(&model_output, &latents) };
            on_step(&progress)?;
            sampler.step(&model_output, &mut latents, |count| noise.draw(count));
            if let Some(inpaint) = &inpaint {
                inpaint.restore(&sampler, step + 1, &mut latents);
            }
            ctx.pause()?;
        }
        self.decode(ctx, &latents, latent_size)
    }

    /// The input of the denoiser: `[1, height, width, in_channels]`.
    fn denoiser_input(
        &self,
        ctx: &OpContext<'_>,
        latents: &[f32],
        size: [usize; 2],
        scale: f32,
        inpaint: Option<&InpaintState>,
    ) -> Result<FeatureMap> {
        let channels = self.vae.config().latent_channels;
        let mut x = ctx.feature_map(latents, 1, size, channels)?;
        x.data_mut().iter_mut().for_each(|x| *x *= scale);
        if !self.takes_mask() {
            return Ok(x);
        }
        let mask_channels = inpaint.and_then(|inpaint| inpaint.mask_channels.as_ref());
        let mask_channels =
            mask_channels.ok_or_else(|| ModelError::Compute("the denoiser requires an image and a mask".to_owned()))?;
        ctx.concat(&x, &ctx.feature_map(mask_channels, 1, size, channels + 1)?)
    }

    /// The model output for `x`, `[height, width, out_channels]`, with guidance: classifier-free guidance (Ho and
    /// Salimans 2022, <https://arxiv.org/abs/2207.12598>), or none if the denoiser embeds the guidance scale.
    fn guided_output(
        &self,
        ctx: &OpContext<'_>,
        embeds: &PromptEmbeds,
        params: &GenerationParams<'_>,
        timestep: f32,
        x: &FeatureMap,
    ) -> Result<Vec<f32>> {
        let cfg = self.uses_cfg(params.guidance);
        let mut batch = ctx.alloc(if cfg { 2 } else { 1 }, x.size, x.channels);
        batch.data_mut().chunks_exact_mut(x.len()).for_each(|image| image.copy_from_slice(x.data()));
        let text = embeds.text(ctx, cfg)?;
        let GenerationParams { guidance, size: image_size, .. } = *params;
        let cond = Conditioning { timestep, text: &text, pooled: embeds.pooled(cfg), guidance, image_size };
        let model_output = self.denoiser.forward(ctx, &batch, &cond)?;
        let model_output = model_output.data();
        if !cfg {
            return Ok(model_output.to_vec());
        }
        // Split by the length of the output: an inpainting denoiser returns fewer channels than it takes.
        let (unconditional, conditional) = model_output.split_at(model_output.len() / 2);
        let guide =
            |(unconditional, conditional): (&f32, &f32)| unconditional + guidance * (conditional - unconditional);
        Ok(unconditional.iter().zip(conditional).map(guide).collect())
    }
}
