//! Norms whose scale and shift are linear functions of a style. The host computes them, because there is one style for a
//! whole text.

use crate::backend::{Backend, GroupNorm, Tensor};
use crate::error::{ModelError, Result};
use crate::nn::Context;
use crate::weights::{Loader, Role};

/// The epsilon of instance norms and layer norms.
const EPSILON: f32 = 1e-5;
/// Products that are added side by side.
const LANES: usize = 16;

/// An instance norm: `norm(x) · (1 + γ) + β`, where γ and β depend on the style.
#[derive(Debug)]
pub(super) struct StyledNorm {
    factors: Factors,
    /// The weight and bias of the norm itself. Published checkpoints have none.
    affine: Option<[Vec<f32>; 2]>,
}

impl StyledNorm {
    pub fn load<B: Backend>(loader: &Loader<'_, B>, stem: &str, style: usize, channels: usize) -> Result<Self> {
        let norm = format!("{stem}.norm");
        let weight = loader.optional_vector(&norm, Role::Weight, channels)?;
        let affine = match weight {
            Some(weight) => Some([weight, loader.bias(&norm, channels)?]),
            None => None,
        };
        Ok(Self { factors: Factors::load(loader, stem, style, channels)?, affine })
    }

    /// The norm for a style, `[style]`.
    pub fn styled<B: Backend>(&self, ctx: &Context<'_, B>, style: &[f32]) -> Result<GroupNorm<B>> {
        let [gamma, mut bias] = self.factors.compute(style)?;
        let mut weight: Vec<f32> = gamma.iter().map(|gamma| 1. + gamma).collect();
        if let Some([inner_weight, inner_bias]) = &self.affine {
            let inner = inner_weight.iter().zip(inner_bias);
            for ((weight, bias), (inner_weight, inner_bias)) in weight.iter_mut().zip(&mut bias).zip(inner) {
                *bias += *weight * inner_bias;
                *weight *= inner_weight;
            }
        }
        let groups = weight.len();
        Ok(GroupNorm { groups, weight: ctx.vector(weight)?, bias: ctx.vector(bias)?, epsilon: EPSILON })
    }
}

/// A layer norm without weights, followed by a scale and a shift that depend on the style.
#[derive(Debug)]
pub(super) struct StyledLayerNorm(Factors);

impl StyledLayerNorm {
    pub fn load<B: Backend>(loader: &Loader<'_, B>, stem: &str, style: usize, channels: usize) -> Result<Self> {
        Factors::load(loader, stem, style, channels).map(Self)
    }

    /// The norm of one text for a style, `[style]`.
    pub fn forward<B: Backend>(&self, ctx: &Context<'_, B>, x: &Tensor<B>, style: &[f32]) -> Result<Tensor<B>> {
        let factors = self.0.compute(style)?.concat();
        let factors = ctx.tensor(&factors, [1, 1, 1, factors.len()])?;
        ctx.modulated_norm(EPSILON, x, &factors, [1, 0])
    }
}

/// The linear layer from a style to γ and β of each channel.
#[derive(Debug)]
struct Factors {
    style: usize,
    /// `[2 · channels, style]`
    weight: Vec<f32>,
    /// `[2 · channels]`
    bias: Vec<f32>,
}

impl Factors {
    fn load<B: Backend>(loader: &Loader<'_, B>, stem: &str, style: usize, channels: usize) -> Result<Self> {
        let stem = format!("{stem}.fc");
        let weight = loader.values(&stem, &[2 * channels, style])?;
        Ok(Self { style, weight, bias: loader.bias(&stem, 2 * channels)? })
    }

    /// γ and β, each `[channels]`.
    fn compute(&self, style: &[f32]) -> Result<[Vec<f32>; 2]> {
        if style.len() != self.style {
            return Err(ModelError::Compute(format!("a style of {} values does not fit {}", style.len(), self.style)));
        }
        let rows = self.weight.chunks_exact(self.style).zip(&self.bias);
        let mut gamma: Vec<f32> = rows.map(|(row, bias)| dot(row, style) + bias).collect();
        let beta = gamma.split_off(gamma.len() / 2);
        Ok([gamma, beta])
    }
}

fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.; LANES];
    let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for (x, y) in x.iter().zip(y) {
        sums.iter_mut().zip(x.iter().zip(y)).for_each(|(sum, (x, y))| *sum += x * y);
    }
    sums.iter().sum::<f32>() + x_rest.iter().zip(y_rest).map(|(x, y)| x * y).sum::<f32>()
}
