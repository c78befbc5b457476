//! The denoising loop.

use super::init_image::{InitialLatents, InpaintState};
use super::prompt_embeds::PromptEmbeds;
use super::{Context, GenerationParams, Generator, LatentNoise, Pipeline, Raster, Result, StepProgress};
use crate::backend::{Convolutions, Recurrent, Tensor};
use crate::diffusion::denoiser::Conditioning;
use crate::error::ModelError;

impl<B: Convolutions + Recurrent> Pipeline<B> {
    /// Generates an image, `[height, width, 3]`, with values from −1 to 1. `on_step` is called after each model
    /// output and can cancel the request with an error.
    pub fn generate(
        &self,
        ctx: &Context<'_, B>,
        embeds: &PromptEmbeds,
        params: &GenerationParams<'_>,
        seed: u64,
        on_step: &mut dyn FnMut(&StepProgress<'_>) -> Result<()>,
    ) -> Result<Raster> {
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
        ctx: &Context<'_, B>,
        latents: &[f32],
        size: [usize; 2],
        scale: f32,
        inpaint: Option<&InpaintState>,
    ) -> Result<Tensor<B>> {
        let channels = self.vae.config().latent_channels;
        let [height, width] = size;
        let mut x = ctx.tensor(latents, [1, height, width, channels])?;
        ctx.multiply(&mut x, scale)?;
        if !self.takes_mask() {
            return Ok(x);
        }
        let mask_channels = inpaint.and_then(|inpaint| inpaint.mask_channels.as_ref());
        let mask_channels =
            mask_channels.ok_or_else(|| ModelError::Compute("the denoiser requires an image and a mask".to_owned()))?;
        ctx.concat_channels(&x, &ctx.tensor(mask_channels, [1, height, width, channels + 1])?)
    }

    /// The model output for `x`, `[height, width, out_channels]`, with guidance: classifier-free guidance (Ho and
    /// Salimans 2022, <https://arxiv.org/abs/2207.12598>), or none if the denoiser embeds the guidance scale.
    fn guided_output(
        &self,
        ctx: &Context<'_, B>,
        embeds: &PromptEmbeds,
        params: &GenerationParams<'_>,
        timestep: f32,
        x: &Tensor<B>,
    ) -> Result<Vec<f32>> {
        let cfg = self.uses_cfg(params.guidance);
        let batch = ctx.repeat(x, if cfg { 2 } else { 1 })?;
        let text = embeds.text(ctx, cfg)?;
        let GenerationParams { guidance, size: image_size, .. } = *params;
        let cond = Conditioning { timestep, text: &text, pooled: embeds.pooled(cfg), guidance, image_size };
        let model_output = ctx.to_vec(&self.denoiser.forward(ctx, &batch, &cond)?)?;
        if !cfg {
            return Ok(model_output);
        }
        // Split by the length of the output: an inpainting denoiser returns fewer channels than it takes.
        let (unconditional, conditional) = model_output.split_at(model_output.len() / 2);
        let guide =
            |(unconditional, conditional): (&f32, &f32)| unconditional + guidance * (conditional - unconditional);
        Ok(unconditional.iter().zip(conditional).map(guide).collect())
    }
}
