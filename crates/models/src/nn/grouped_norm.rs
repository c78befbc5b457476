//! A norm of the parts of a vector.

use super::channel_factors::ChannelFactors;
use super::context::Context;
use crate::backend::{Backend, Norm, NormKind, Tensor};
use crate::error::Result;

/// Normalizes equal parts of each vector by themselves. All parts share the weights of the norm, or each has its own.
#[derive(Debug)]
pub(crate) struct GroupedNorm<B: Backend> {
    norm: Norm<B>,
    /// The weights of all parts, if each has its own.
    own_weights: Option<ChannelFactors<B>>,
}

impl<B: Backend> GroupedNorm<B> {
    /// `norm`: that of each part.
    pub fn shared(norm: Norm<B>) -> Self {
        Self { norm, own_weights: None }
    }

    /// A norm without bias of `groups` parts. `weights`: those of all parts, one after the other.
    pub fn new(backend: &B, weights: Vec<f32>, groups: usize, kind: NormKind, epsilon: f32) -> Result<Self> {
        let norm = |weights| Ok(Norm { kind, weight: backend.vector(weights)?, bias: None, epsilon });
        if groups == 1 {
            return norm(weights).map(Self::shared);
        }
        let own_weights = Some(ChannelFactors::new(backend, &weights)?);
        Ok(Self { norm: norm(vec![1.; weights.len() / groups])?, own_weights })
    }

    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let mut normed = ctx.norm(&self.norm, x)?;
        if let Some(weights) = &self.own_weights {
            weights.multiply(ctx, &mut normed)?;
        }
        Ok(normed)
    }
}
