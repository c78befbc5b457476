//! Initial images: image-to-image and inpainting.

use super::{GenerationParams, LatentNoise, OpContext, Pipeline, Result, Sampler};
use crate::models::error::ModelError;

/// An image, `[height, width, 3]`, from −1 to 1.
pub type Pixels = Vec<f32>;

/// True for pixels to repaint, `[height, width]`.
pub type Mask = Vec<bool>;

/// An initial image.
#[derive(Clone, Debug)]
pub struct InitImage {
    pub image: Pixels,
    /// How much is repainted, above 0 to 1.
    pub strength: f32,
    pub mask: Option<Mask>,
}

/// The inputs of the first step.
pub(super) struct InitialLatents {
    pub latents: Vec<f32>,
    pub inpaint: Option<InpaintState>,
}

/// The kept part of an inpainted image.
pub(super) struct InpaintState {
    /// For networks without mask input: the image's latents, the noise of the first step, and for each latent pixel
    /// whether it is repainted.
    part: Option<(Vec<f32>, Vec<f32>, Vec<bool>)>,
    /// For networks with mask input: the mask and the latents of the masked image, `[height, width, 1 + channels]`.
    pub mask_channels: Option<Vec<f32>>,
}

impl InpaintState {
    /// Restores the kept part, noised to the level of step `next`.
    pub fn restore(&self, sampler: &Sampler, next: usize, latents: &mut [f32]) {
        let Some((clean, noise, mask)) = &self.part else { return };
        let mut noised = vec![0.; clean.len()];
        sampler.add_noise(clean, noise, next, &mut noised);
        let channels = clean.len() / mask.len().max(1);
        let pixels = latents.chunks_exact_mut(channels.max(1)).zip(noised.chunks_exact(channels.max(1)));
        for ((latent, noised), repaint) in pixels.zip(mask) {
            if !repaint {
                latent.copy_from_slice(noised);
            }
        }
    }
}

impl Pipeline {
    /// The initial latents and inpainting state. Noise is drawn in the order of diffusers' pipelines.
    pub(super) fn start(
        &self,
        ctx: &OpContext<'_>,
        params: &GenerationParams<'_>,
        sampler: &Sampler,
        noise: &mut LatentNoise,
    ) -> Result<InitialLatents> {
        let Some(init_image) = params.init_image else {
            let mut latents = noise.latents();
            latents.iter_mut().for_each(|latent| *latent *= sampler.init_noise_sigma());
            return Ok(InitialLatents { latents, inpaint: None });
        };
        match &init_image.mask {
            None => {
                let clean = self.encode(ctx, &init_image.image, params.size, noise)?;
                let drawn = noise.latents();
                let mut latents = vec![0.; drawn.len()];
                sampler.add_noise(&clean, &drawn, 0, &mut latents);
                Ok(InitialLatents { latents, inpaint: None })
            }
            Some(mask) => self.start_masked(ctx, params, sampler, noise, (init_image, mask)),
        }
    }

    fn start_masked(
        &self,
        ctx: &OpContext<'_>,
        params: &GenerationParams<'_>,
        sampler: &Sampler,
        noise: &mut LatentNoise,
        (init_image, mask): (&InitImage, &Mask),
    ) -> Result<InitialLatents> {
        let takes_mask = self.takes_mask();
        let full_strength = init_image.strength >= 1.;
        let clean = match takes_mask && full_strength {
            true => None,
            false => Some(self.encode(ctx, &init_image.image, params.size, noise)?),
        };
        let drawn = noise.latents();
        let mut latents = drawn.clone();
        match &clean {
            Some(clean) if !full_strength => sampler.add_noise(clean, &drawn, 0, &mut latents),
            _ => latents.iter_mut().for_each(|latent| *latent *= sampler.init_noise_sigma()),
        }
        let pixels = init_image.image.chunks_exact(3).zip(mask);
        let masked: Pixels =
            pixels.flat_map(|(pixel, repaint)| pixel.iter().map(move |x| if *repaint { 0. } else { *x })).collect();
        // Drawn even if the network has no mask input, to match diffusers' order of noise.
        let masked = self.encode(ctx, &masked, params.size, noise)?;
        let small = downscale_mask(mask, params.size, self.latent_size(params.size));
        let mask_channels = takes_mask.then(|| {
            let channels = self.vae.config().latent_channels;
            let pixels = small.iter().zip(masked.chunks_exact(channels));
            pixels
                .flat_map(|(repaint, masked)| std::iter::once(f32::from(*repaint)).chain(masked.iter().copied()))
                .collect()
        });
        let part = clean.filter(|_| !takes_mask).map(|clean| (clean, drawn, small));
        Ok(InitialLatents { latents, inpaint: Some(InpaintState { part, mask_channels }) })
    }

    /// Latents sampled from the autoencoder's distribution.
    fn encode(
        &self,
        ctx: &OpContext<'_>,
        image: &Pixels,
        size: [usize; 2],
        noise: &mut LatentNoise,
    ) -> Result<Vec<f32>> {
        let posterior = self.vae.encode(ctx, ctx.feature_map(image, 1, size, 3)?, self.uses_tiling(size))?;
        if posterior.size != noise.size {
            return Err(ModelError::Compute(format!("latents of {:?} for an image of {size:?}", posterior.size)));
        }
        let drawn = noise.latents();
        let numbers = posterior.mean.iter().zip(&posterior.std).zip(&drawn);
        Ok(numbers.map(|((mean, deviation), drawn)| mean + deviation * drawn).collect())
    }
}

/// Nearest-neighbour downscaling of a mask to latent size.
fn downscale_mask(mask: &Mask, from: [usize; 2], to: [usize; 2]) -> Vec<bool> {
    let place = |line: usize, column: usize| line * from[0] / to[0].max(1) * from[1] + column * from[1] / to[1].max(1);
    let all = (0..to[0]).flat_map(|line| (0..to[1]).map(move |column| (line, column)));
    all.map(|(line, column)| mask[place(line, column)]).collect()
}
