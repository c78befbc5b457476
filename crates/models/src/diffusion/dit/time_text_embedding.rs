//! The conditioning vector: the sum of the embeddings of timestep, pooled prompt embedding and guidance scale.

use crate::backend::{Activation, Backend, Tensor};

use super::DitConditioning;
use crate::diffusion::timestep_embedding::{TimestepEmbedding, sinusoidal_embedding};
use crate::error::ModelError;
use crate::error::Result;
use crate::nn::Context;
use crate::weights::Loader;

/// Width of the sinusoidal embedding.
const SINUSOID_DIM: usize = 256;

#[derive(Debug)]
pub(super) struct TimeTextEmbedding<B: Backend> {
    time: TimestepEmbedding<B>,
    guidance: Option<TimestepEmbedding<B>>,
    text: TimestepEmbedding<B>,
    pooled_width: usize,
}

impl<B: Backend> TimeTextEmbedding<B> {
    /// `guidance_embeds`: whether the guidance scale is embedded.
    pub fn load(loader: &Loader<'_, B>, pooled_width: usize, width: usize, guidance_embeds: bool) -> Result<Self> {
        let embedder =
            |name: &str, inputs| TimestepEmbedding::load(loader, &format!("time_text_embed.{name}"), inputs, width);
        Ok(Self {
            time: embedder("timestep_embedder", SINUSOID_DIM)?,
            guidance: guidance_embeds.then(|| embedder("guidance_embedder", SINUSOID_DIM)).transpose()?,
            text: embedder("text_embedder", pooled_width)?,
            pooled_width,
        })
    }

    /// `[images, 1, 1, width]`, after SiLU, which every modulation applies first.
    pub fn forward(&self, ctx: &Context<'_, B>, cond: &DitConditioning<'_, B>) -> Result<Tensor<B>> {
        let pooled = cond.pooled.concat();
        if cond.pooled.len() != cond.text.images || cond.pooled.iter().any(|text| text.len() != self.pooled_width) {
            return Err(ModelError::Compute(format!(
                "{} elements of pooled embeddings do not fit the transformer",
                pooled.len()
            )));
        }
        let mut x = self.text.forward(ctx, &ctx.tensor(&pooled, [cond.pooled.len(), 1, 1, self.pooled_width])?)?;
        let sinusoid =
            |value: f32| ctx.tensor(&sinusoidal_embedding(value, SINUSOID_DIM, true, 0.), [1, 1, 1, SINUSOID_DIM]);
        // The embedding that all images of the batch share.
        let mut shared = self.time.forward(ctx, &sinusoid(cond.timestep)?)?;
        match (&self.guidance, cond.guidance) {
            (Some(guidance), Some(scale)) => {
                ctx.add(&mut shared, &guidance.forward(ctx, &sinusoid(scale * 1000.)?)?)?;
            }
            (None, None) => {}
            _ => {
                return Err(ModelError::Compute(
                    "the guidance scale is missing, or the transformer does not embed it".to_owned(),
                ));
            }
        }
        ctx.add(&mut x, &ctx.repeat(&shared, cond.pooled.len())?)?;
        ctx.activate(Activation::Silu, &mut x, None)?;
        Ok(x)
    }
}
