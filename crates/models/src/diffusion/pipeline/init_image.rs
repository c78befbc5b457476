//! Initial images: image-to-image and inpainting.

use super::{Context, GenerationParams, LatentNoise, Pipeline, Raster, Result, Sampler};
use crate::backend::{Convolutions, Recurrent};
use crate::error::ModelError;

/// An image, `[height, width, 3]`, with values from −1 to 1.
pub type Pixels = Vec<f32>;

/// True for pixels to regenerate, `[height, width]`.
pub type Mask = Vec<bool>;

/// The image from which image-to-image generation or inpainting starts.
#[derive(Clone, Debug)]
pub struct InitImage {
    pub image: Pixels,
    /// The fraction of the noise schedule that is run, above 0 to 1. At 1 the image starts from pure noise.
    pub strength: f32,
    pub mask: Option<Mask>,
}

/// The input of the first step.
pub(super) struct InitialLatents {
    pub latents: Vec<f32>,
    pub inpaint: Option<InpaintState>,
}

/// The unmasked region of an inpainted image, which must not change.
pub(super) struct InpaintState {
    /// For denoisers without mask input.
    unmasked: Option<UnmaskedLatents>,
    /// For denoisers with mask input: the mask and the latents of the masked image, `[height, width, 1 + channels]`.
    pub mask_channels: Option<Vec<f32>>,
}

/// The latents from which the unmasked region is restored after each step.
struct UnmaskedLatents {
    /// Latents of the initial image, `[height, width, channels]`.
    clean: Vec<f32>,
    /// Noise of the first step, `[height, width, channels]`.
    noise: Vec<f32>,
    /// Mask at latent resolution, `[height, width]`; true for pixels to regenerate.
    mask: Vec<bool>,
}

impl InpaintState {
    /// Overwrites the unmasked region with the initial image, noised to the level at the start of `step`.
    pub fn restore(&self, sampler: &Sampler, step: usize, latents: &mut [f32]) {
        let Some(UnmaskedLatents { clean, noise, mask }) = &self.unmasked else { return };
        let mut noised = vec![0.; clean.len()];
        sampler.add_noise(clean, noise, step, &mut noised);
        let channels = clean.len() / mask.len().max(1);
        let pixels = latents.chunks_exact_mut(channels.max(1)).zip(noised.chunks_exact(channels.max(1)));
        for ((latent, noised), masked) in pixels.zip(mask) {
            if !masked {
                latent.copy_from_slice(noised);
            }
        }
    }
}

impl<B: Convolutions + Recurrent> Pipeline<B> {
    /// The initial latents and inpainting state. Noise is drawn in the order of diffusers' pipelines.
    pub(super) fn initial_latents(
        &self,
        ctx: &Context<'_, B>,
        params: &GenerationParams<'_>,
        sampler: &Sampler,
        noise: &mut LatentNoise,
    ) -> Result<InitialLatents> {
        let Some(init_image) = params.init_image else {
            let mut latents = noise.sample();
            latents.iter_mut().for_each(|latent| *latent *= sampler.init_noise_sigma());
            return Ok(InitialLatents { latents, inpaint: None });
        };
        match &init_image.mask {
            None => {
                let clean = self.encode(ctx, &init_image.image, params.size, noise)?;
                let noise = noise.sample();
                let mut latents = vec![0.; noise.len()];
                sampler.add_noise(&clean, &noise, 0, &mut latents);
                Ok(InitialLatents { latents, inpaint: None })
            }
            Some(mask) => self.inpaint_latents(ctx, params, sampler, noise, (init_image, mask)),
        }
    }

    fn inpaint_latents(
        &self,
        ctx: &Context<'_, B>,
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
        let initial_noise = noise.sample();
        let mut latents = initial_noise.clone();
        match &clean {
            Some(clean) if !full_strength => sampler.add_noise(clean, &initial_noise, 0, &mut latents),
            _ => latents.iter_mut().for_each(|latent| *latent *= sampler.init_noise_sigma()),
        }
        let pixels = init_image.image.chunks_exact(3).zip(mask);
        let masked_image: Pixels =
            pixels.flat_map(|(pixel, masked)| pixel.iter().map(move |x| if *masked { 0. } else { *x })).collect();
        // Encoded even if the denoiser has no mask input, to draw noise in the same order as diffusers.
        let masked_latents = self.encode(ctx, &masked_image, params.size, noise)?;
        let latent_mask = downscale_mask(mask, params.size, self.latent_size(params.size));
        let mask_channels = takes_mask.then(|| {
            let channels = self.vae.config().latent_channels;
            let pixels = latent_mask.iter().zip(masked_latents.chunks_exact(channels));
            pixels
                .flat_map(|(masked, latent)| std::iter::once(f32::from(*masked)).chain(latent.iter().copied()))
                .collect()
        });
        let unmasked = clean.filter(|_| !takes_mask).map(|clean| UnmaskedLatents {
            clean,
            noise: initial_noise,
            mask: latent_mask,
        });
        Ok(InitialLatents { latents, inpaint: Some(InpaintState { unmasked, mask_channels }) })
    }

    /// Latents of `image`, sampled from the posterior of the autoencoder, `[height, width, channels]`.
    fn encode(
        &self,
        ctx: &Context<'_, B>,
        image: &Pixels,
        size: [usize; 2],
        noise: &mut LatentNoise,
    ) -> Result<Vec<f32>> {
        let posterior =
            self.vae.encode(ctx, Raster { values: image.clone(), size, channels: 3 }, self.uses_tiling(size))?;
        if posterior.size != noise.size {
            return Err(ModelError::Compute(format!("latents of {:?} for an image of {size:?}", posterior.size)));
        }
        let noise = noise.sample();
        let moments = posterior.mean.iter().zip(&posterior.std);
        Ok(moments.zip(&noise).map(|((mean, std), noise)| mean + std * noise).collect())
    }
}

/// Nearest-neighbour downscaling of a mask from image size to latent size.
fn downscale_mask(mask: &Mask, size: [usize; 2], latent_size: [usize; 2]) -> Vec<bool> {
    let [rows, columns] = latent_size;
    let index = |row: usize, column: usize| row * size[0] / rows.max(1) * size[1] + column * size[1] / columns.max(1);
    let pixels = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    pixels.map(|(row, column)| mask[index(row, column)]).collect()
}
