//! Pictures to begin with: painted over, or painted in part.

use super::{Interrupted, Noise, OpContext, Order, Pipeline, Result, Sampler};

/// A picture, `[height, width, 3]`, from −1 to 1.
pub type Pixels = Vec<f32>;

/// For each pixel whether it is painted anew, `[height, width]`.
pub type Mask = Vec<bool>;

/// A picture to begin with.
#[derive(Clone, Debug)]
pub struct Source {
    pub picture: Pixels,
    /// How much is painted anew, above 0 to 1.
    pub strength: f32,
    pub mask: Option<Mask>,
}

/// What the first step begins with.
pub(super) struct Start {
    pub latents: Vec<f32>,
    pub kept: Option<Kept>,
}

/// What of a picture stays.
pub(super) struct Kept {
    /// The picture's latents and the noise of the first step; for each latent pixel whether it is painted anew. Not of
    /// networks that are told.
    part: Option<(Vec<f32>, Vec<f32>, Vec<bool>)>,
    /// The mask and the latents of what stays, `[height, width, 1 + channels]`, for networks that are told.
    pub beside: Option<Vec<f32>>,
}

impl Kept {
    /// Puts what stays back in its place, with the noise of the step `next`.
    pub fn restore(&self, sampler: &Sampler, next: usize, latents: &mut [f32]) {
        let Some((clean, noise, mask)) = &self.part else { return };
        let mut noised = vec![0.; clean.len()];
        sampler.add_noise(clean, noise, next, &mut noised);
        let channels = clean.len() / mask.len().max(1);
        let pixels = latents.chunks_exact_mut(channels.max(1)).zip(noised.chunks_exact(channels.max(1)));
        for ((latent, noised), anew) in pixels.zip(mask) {
            if !anew {
                latent.copy_from_slice(noised);
            }
        }
    }
}

impl Pipeline {
    /// The first latents, and what is kept. Noise is drawn in the order of diffusers' pipelines.
    pub(super) fn start(
        &self,
        ctx: &OpContext<'_>,
        order: &Order<'_>,
        sampler: &Sampler,
        noise: &mut Noise,
    ) -> Result<Start> {
        let Some(source) = order.source else {
            let mut latents = noise.latents();
            latents.iter_mut().for_each(|latent| *latent *= sampler.init_noise_sigma());
            return Ok(Start { latents, kept: None });
        };
        match &source.mask {
            None => {
                let clean = self.encode(ctx, &source.picture, order.size, noise)?;
                let drawn = noise.latents();
                let mut latents = vec![0.; drawn.len()];
                sampler.add_noise(&clean, &drawn, 0, &mut latents);
                Ok(Start { latents, kept: None })
            }
            Some(mask) => self.start_masked(ctx, order, sampler, noise, (source, mask)),
        }
    }

    fn start_masked(
        &self,
        ctx: &OpContext<'_>,
        order: &Order<'_>,
        sampler: &Sampler,
        noise: &mut Noise,
        (source, mask): (&Source, &Mask),
    ) -> Result<Start> {
        let told = self.wants_mask();
        let whole = source.strength >= 1.;
        let clean = match told && whole {
            true => None,
            false => Some(self.encode(ctx, &source.picture, order.size, noise)?),
        };
        let drawn = noise.latents();
        let mut latents = drawn.clone();
        match &clean {
            Some(clean) if !whole => sampler.add_noise(clean, &drawn, 0, &mut latents),
            _ => latents.iter_mut().for_each(|latent| *latent *= sampler.init_noise_sigma()),
        }
        let pixels = source.picture.chunks_exact(3).zip(mask);
        let stays: Pixels =
            pixels.flat_map(|(pixel, anew)| pixel.iter().map(move |x| if *anew { 0. } else { *x })).collect();
        // Drawn even where the network is not told of it.
        let stays = self.encode(ctx, &stays, order.size, noise)?;
        let small = shrink(mask, order.size, self.latent_size(order.size));
        let beside = told.then(|| {
            let channels = self.vae.config().latent_channels;
            let pixels = small.iter().zip(stays.chunks_exact(channels));
            pixels.flat_map(|(anew, stays)| std::iter::once(f32::from(*anew)).chain(stays.iter().copied())).collect()
        });
        let part = clean.filter(|_| !told).map(|clean| (clean, drawn, small));
        Ok(Start { latents, kept: Some(Kept { part, beside }) })
    }

    /// Latents of a picture, drawn from what they may be.
    fn encode(&self, ctx: &OpContext<'_>, picture: &Pixels, size: [usize; 2], noise: &mut Noise) -> Result<Vec<f32>> {
        let posterior = self.vae.encode(ctx, ctx.feature_map(picture, 1, size, 3)?, self.tiles(size))?;
        if posterior.size != noise.size {
            return Err(Interrupted::Failed(format!("latents of {:?} for a picture of {size:?}", posterior.size)));
        }
        let drawn = noise.latents();
        let numbers = posterior.mean.iter().zip(&posterior.std).zip(&drawn);
        Ok(numbers.map(|((mean, deviation), drawn)| mean + deviation * drawn).collect())
    }
}

/// The mask of latents: each has its nearest pixel's.
fn shrink(mask: &Mask, from: [usize; 2], to: [usize; 2]) -> Vec<bool> {
    let place = |line: usize, column: usize| line * from[0] / to[0].max(1) * from[1] + column * from[1] / to[1].max(1);
    let all = (0..to[0]).flat_map(|line| (0..to[1]).map(move |column| (line, column)));
    all.map(|(line, column)| mask.get(place(line, column)).copied().unwrap_or(false)).collect()
}
