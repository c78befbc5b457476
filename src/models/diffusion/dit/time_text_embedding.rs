//! The conditioning vector: timestep, pooled text and guidance scale.

use outpost_kernels::Activation;

use super::DitConditioning;
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::Loaded;
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::diffusion::timestep_embedding::{TimeEmbedding, sinusoidal_embedding};
use crate::models::error::ModelError;
use crate::models::weights::Loader;

/// Width of the sinusoidal embedding.
const SINUSOID_DIM: usize = 256;

#[derive(Debug)]
pub(super) struct TimeTextEmbedding {
    time: TimeEmbedding,
    guidance: Option<TimeEmbedding>,
    text: TimeEmbedding,
    pooled: usize,
    width: usize,
}

impl TimeTextEmbedding {
    /// `pooled`: width of the pooled embedding.
    pub fn load(loader: &Loader<'_>, pooled: usize, width: usize, guided: bool) -> Loaded<Self> {
        let part = |name: &str, from| TimeEmbedding::load(loader, &format!("time_text_embed.{name}"), from, width);
        Ok(Self {
            time: part("timestep_embedder", SINUSOID_DIM)?,
            guidance: guided.then(|| part("guidance_embedder", SINUSOID_DIM)).transpose()?,
            text: part("text_embedder", pooled)?,
            pooled,
            width,
        })
    }

    /// `[images, 1, 1, width]`, through SiLU, which every consumer applies.
    pub fn forward(&self, ctx: &OpContext<'_>, cond: &DitConditioning<'_>) -> Result<FeatureMap> {
        let pooled = cond.pooled.concat();
        if cond.pooled.len() != cond.text.images || cond.pooled.iter().any(|text| text.len() != self.pooled) {
            return Err(ModelError::Compute(format!("{} elements of pooled embeddings", pooled.len())));
        }
        let mut x = self.text.forward(ctx, &ctx.feature_map(&pooled, cond.pooled.len(), [1, 1], self.pooled)?)?;
        let number = |number: f32| {
            ctx.feature_map(&sinusoidal_embedding(number, SINUSOID_DIM, true, 0.), 1, [1, 1], SINUSOID_DIM)
        };
        let mut same = self.time.forward(ctx, &number(cond.timestep)?)?;
        match (&self.guidance, cond.guidance) {
            (Some(guidance), Some(strength)) => {
                ctx.add(&mut same, &guidance.forward(ctx, &number(strength * 1000.)?)?)?;
            }
            (None, None) => {}
            _ => {
                return Err(ModelError::Compute(
                    "a guidance scale that the network does not embed, or a missing one".to_owned(),
                ));
            }
        }
        for x in x.data_mut().chunks_exact_mut(self.width.max(1)) {
            x.iter_mut().zip(same.data()).for_each(|(x, same)| *x += same);
        }
        ctx.activate(Activation::Silu, &mut x)?;
        Ok(x)
    }
}
