//! Norms whose scale and shift are linear functions of a style.

use crate::models::backend::{Backend, GroupNorm, Tensor};
use crate::models::error::{ModelError, Result};
use crate::models::nn::{Context, Linear};
use crate::models::weights::{Candidate, Loader, Role};

/// The epsilon of instance norms and layer norms.
const EPSILON: f32 = 1e-5;

/// An instance norm: `norm(x) · (1 + γ) + β`, where γ and β depend on the style.
#[derive(Debug)]
pub(super) struct StyledNorm<B: Backend> {
    channels: usize,
    /// From the style to γ and β.
    factors: Linear<B>,
    /// The weight and bias of the norm itself. Published checkpoints have none.
    affine: Option<[Vec<f32>; 2]>,
}

impl<B: Backend> StyledNorm<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, style: usize, channels: usize) -> Result<Self> {
        let norm = format!("{stem}.norm");
        let weight = loader.optional_vector(&norm, Role::Weight, channels)?;
        let affine = match weight {
            Some(weight) => Some([weight, loader.bias(&norm, channels)?]),
            None => None,
        };
        Ok(Self { channels, factors: load_factors(loader, stem, style, channels)?, affine })
    }

    /// The norm for a style: `[1, 1, 1, style]`.
    pub fn styled(&self, ctx: &Context<'_, B>, style: &Tensor<B>) -> Result<GroupNorm<B>> {
        let channels = self.channels;
        let factors = ctx.to_vec(&self.factors.forward(ctx, style)?)?;
        let Some((gamma, beta)) = factors.split_at_checked(channels) else {
            return Err(ModelError::Compute(format!("{} factors do not fit {channels} channels", factors.len())));
        };
        let (mut weight, mut bias) = (gamma.iter().map(|gamma| 1. + gamma).collect::<Vec<_>>(), beta.to_vec());
        if let Some([inner_weight, inner_bias]) = &self.affine {
            for ((weight, bias), (inner_weight, inner_bias)) in
                weight.iter_mut().zip(&mut bias).zip(inner_weight.iter().zip(inner_bias))
            {
                *bias += *weight * inner_bias;
                *weight *= inner_weight;
            }
        }
        Ok(GroupNorm { groups: channels, weight: ctx.vector(weight)?, bias: ctx.vector(bias)?, epsilon: EPSILON })
    }
}

/// A layer norm without weights, followed by a scale and a shift that depend on the style.
#[derive(Debug)]
pub(super) struct StyledLayerNorm<B: Backend>(Linear<B>);

impl<B: Backend> StyledLayerNorm<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, style: usize, channels: usize) -> Result<Self> {
        load_factors(loader, stem, style, channels).map(Self)
    }

    /// The norm of one text for a style: `[1, 1, 1, style]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, style: &Tensor<B>) -> Result<Tensor<B>> {
        let factors = self.0.forward(ctx, style)?;
        ctx.modulated_norm(EPSILON, x, &factors, [1, 0])
    }
}

/// The linear layer from a style to a scale and a shift of each channel.
fn load_factors<B: Backend>(loader: &Loader<'_, B>, stem: &str, style: usize, channels: usize) -> Result<Linear<B>> {
    let weight = Candidate::whole(format!("{stem}.fc"), 2 * channels);
    loader.linear(&[weight], 2 * channels, style, true)
}
