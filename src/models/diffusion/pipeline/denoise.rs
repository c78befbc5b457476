//! The denoising loop.

use super::init_image::{InitialLatents, InpaintState};
use super::prompt_embeds::PromptEmbeds;
use super::{FeatureMap, GenerationParams, Generator, LatentNoise, OpContext, Pipeline, Result, StepProgress};
use crate::models::diffusion::network::Conditioning;
use crate::models::error::ModelError;

impl Pipeline {
    /// Generates an image, `[height, width, 3]`, from −1 to 1.
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
        let size = self.latent_size(params.size);
        let mut noise =
            LatentNoise { generator: Generator::new(seed), size, channels: self.vae.config().latent_channels };
        let InitialLatents { mut latents, inpaint } = self.start(ctx, params, &sampler, &mut noise)?;
        let steps = sampler.len();
        for step in 0..steps {
            let x = self.input(ctx, &latents, size, sampler.input_scale(), inpaint.as_ref())?;
            let model_output = self.predict(ctx, embeds, params, sampler.timestep(step), &x)?;
            let progress = StepProgress { step: step + 1, steps, clean: &|| sampler.clean(&model_output, &latents) };
            on_step(&progress)?;
            sampler.step(&model_output, &mut latents, |count| noise.draw(count));
            if let Some(inpaint) = &inpaint {
                inpaint.restore(&sampler, step + 1, &mut latents);
            }
            ctx.pause()?;
        }
        self.decode(ctx, &latents, size)
    }

    /// The network's input: `[1, height, width, channels]`.
    fn input(
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
            mask_channels.ok_or_else(|| ModelError::Compute("the network requires an image and a mask".to_owned()))?;
        ctx.concat(&x, &ctx.feature_map(mask_channels, 1, size, channels + 1)?)
    }

    /// The model output for `x`, with guidance.
    fn predict(
        &self,
        ctx: &OpContext<'_>,
        embeds: &PromptEmbeds,
        params: &GenerationParams<'_>,
        timestep: f32,
        x: &FeatureMap,
    ) -> Result<Vec<f32>> {
        let cfg = self.uses_cfg(params.guidance);
        let mut all = ctx.alloc(if cfg { 2 } else { 1 }, x.size, x.channels);
        all.data_mut().chunks_exact_mut(x.len()).for_each(|to| to.copy_from_slice(x.data()));
        let text = embeds.text(ctx, cfg)?;
        let GenerationParams { guidance, size, .. } = *params;
        let cond = Conditioning { timestep, text: &text, pooled: embeds.pooled(cfg), guidance, size };
        let model_output = self.network.forward(ctx, &all, &cond)?;
        let model_output = model_output.data();
        if !cfg {
            return Ok(model_output.to_vec());
        }
        // Half of the output each: an inpainting network returns fewer channels than it takes.
        let (negative, positive) = model_output.split_at(model_output.len() / 2);
        Ok(negative.iter().zip(positive).map(|(away, to)| away + guidance * (to - away)).collect())
    }
}
