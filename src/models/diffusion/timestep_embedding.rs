//! Embeddings of timesteps and other scalars.

use outpost_kernels::Activation;

use super::feature_map::FeatureMap;
use super::layers::{Linear, Loaded, linear};
use super::op_context::{OpContext, Result};
use crate::models::weights::Loader;

/// Sinusoidal embedding of a number (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>): `width` elements, as
/// diffusers' `get_timestep_embedding` with `downscale_freq_shift` = `shift`.
pub(super) fn sinusoidal_embedding(number: f32, width: usize, cosines_first: bool, shift: f32) -> Vec<f32> {
    let half = width / 2;
    let angles = (0..half).map(|at| {
        let exponent = -(10_000f32.ln()) * at as f32 / (half as f32 - shift);
        number * exponent.exp()
    });
    let angles: Vec<f32> = angles.collect();
    let (sines, cosines) = (angles.iter().map(|x| x.sin()), angles.iter().map(|x| x.cos()));
    let mut all: Vec<f32> = match cosines_first {
        true => cosines.chain(sines).collect(),
        false => sines.chain(cosines).collect(),
    };
    all.resize(width, 0.);
    all
}

/// Two projections with SiLU between them.
#[derive(Debug)]
pub(super) struct TimeEmbedding {
    linear_1: Linear,
    linear_2: Linear,
}

impl TimeEmbedding {
    pub fn load(loader: &Loader<'_>, stem: &str, from: usize, width: usize) -> Loaded<Self> {
        Ok(Self {
            linear_1: linear(loader, &format!("{stem}.linear_1"), [from, width], true)?,
            linear_2: linear(loader, &format!("{stem}.linear_2"), [width; 2], true)?,
        })
    }

    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        let mut x = ctx.linear(&self.linear_1, x)?;
        ctx.activate(Activation::Silu, &mut x)?;
        ctx.linear(&self.linear_2, &x)
    }
}
