//! Convolutions.

use std::sync::Arc;

use super::context::Context;
use super::lora::Projection;
use crate::backend::{ConvShape, Convolutions, GroupNorm, Tensor};
use crate::error::Result;
use crate::weights::Rows;

/// A convolution.
#[derive(Debug)]
pub(crate) struct Conv<B: Convolutions>(Arc<B::Conv>);

impl<B: Convolutions> Conv<B> {
    /// Reads the weights, `[outputs, inputs, height, width]`; `bias` is `[outputs]`.
    pub fn read(backend: &B, weight: &Rows<'_>, shape: ConvShape, bias: Option<&[f32]>) -> Result<Self> {
        Ok(Self(Arc::new(backend.read_conv(weight, shape, bias)?)))
    }

    /// Identifies the weights among all weights in memory.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let mut outs = [ctx.conv(&self.0, x)?];
        ctx.lora().add_to(ctx, [self.id()], x, &mut outs)?;
        let [out] = outs;
        Ok(out)
    }

    /// `conv(silu(norm(x + shift)))`; `shift`: `[images, 1, 1, channels]`.
    pub fn forward_normed(
        &self,
        ctx: &Context<'_, B>,
        norm: &GroupNorm<B>,
        x: &Tensor<B>,
        shift: Option<&Tensor<B>>,
    ) -> Result<Tensor<B>> {
        // LoRA deltas need the normalised input. Without them it may never be materialised.
        if ctx.lora().has(self.id()) {
            return self.forward(ctx, &ctx.group_norm(norm, x, shift, true)?);
        }
        ctx.norm_conv(norm, x, shift, &self.0)
    }
}

/// Without a bias, and without deltas of its own.
impl<B: Convolutions> Projection<B> for Conv<B> {
    fn project(&self, backend: &B, x: &Tensor<B>) -> Result<Tensor<B>> {
        backend.conv(&self.0, x)
    }
}
