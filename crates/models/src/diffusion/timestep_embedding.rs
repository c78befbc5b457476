//! Embeddings of timesteps, guidance scales and sizes.

use crate::backend::{Activation, Backend, Tensor};

use super::layers::linear;
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::Loader;

/// Sinusoidal embedding of a scalar (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>): `width` elements.
///
/// Follows diffusers' `get_timestep_embedding` with `downscale_freq_shift = freq_shift`.
pub(super) fn sinusoidal_embedding(value: f32, width: usize, cosines_first: bool, freq_shift: f32) -> Vec<f32> {
    let half = width / 2;
    let angles = (0..half).map(|index| {
        let exponent = -(10_000f32.ln()) * index as f32 / (half as f32 - freq_shift);
        value * exponent.exp()
    });
    let angles: Vec<f32> = angles.collect();
    let (sines, cosines) = (angles.iter().map(|x| x.sin()), angles.iter().map(|x| x.cos()));
    let mut embedding: Vec<f32> = match cosines_first {
        true => cosines.chain(sines).collect(),
        false => sines.chain(cosines).collect(),
    };
    embedding.resize(width, 0.);
    embedding
}

/// Two projections with SiLU between them, as diffusers' `TimestepEmbedding`.
#[derive(Debug)]
pub(super) struct TimestepEmbedding<B: Backend> {
    linear_1: Linear<B>,
    linear_2: Linear<B>,
}

impl<B: Backend> TimestepEmbedding<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, inputs: usize, width: usize) -> Result<Self> {
        Ok(Self {
            linear_1: linear(loader, &format!("{stem}.linear_1"), [inputs, width], true)?,
            linear_2: linear(loader, &format!("{stem}.linear_2"), [width; 2], true)?,
        })
    }

    /// `x`: `[images, 1, 1, inputs]`. Returns `[images, 1, 1, width]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let mut x = self.linear_1.forward(ctx, x)?;
        ctx.activate(Activation::Silu, &mut x, None)?;
        self.linear_2.forward(ctx, &x)
    }
}
