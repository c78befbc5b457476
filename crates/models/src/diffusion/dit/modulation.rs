//! Adaptive layer norm (adaLN-Zero): shifts, scales and gates that are computed from the conditioning vector (Peebles
//! and Xie 2022, <https://arxiv.org/abs/2212.09748>).

use crate::backend::{Backend, Tensor};
use crate::diffusion::layers::linear;
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::Loader;

const EPSILON: f32 = 1e-6;

/// Projects the conditioning vector to modulation vectors.
#[derive(Debug)]
pub(super) struct Modulation<B: Backend> {
    weight: Linear<B>,
}

/// The modulation vectors of each image.
#[derive(Debug)]
pub(super) struct ModulationVectors<B: Backend> {
    /// `[images, 1, 1, count · width]`
    vectors: Tensor<B>,
}

/// The indices of a shift and a scale among modulation vectors.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShiftScale {
    pub shift: usize,
    pub scale: usize,
}

impl<B: Backend> Modulation<B> {
    /// `count`: the number of modulation vectors.
    pub fn load(loader: &Loader<'_, B>, stem: &str, width: usize, count: usize) -> Result<Self> {
        Ok(Self { weight: linear(loader, stem, [width, count * width], true)? })
    }

    /// `cond`: `[images, 1, 1, width]`, from [`super::time_text_embedding::TimeTextEmbedding`].
    pub fn forward(&self, ctx: &Context<'_, B>, cond: &Tensor<B>) -> Result<ModulationVectors<B>> {
        Ok(ModulationVectors { vectors: self.weight.forward(ctx, cond)? })
    }
}

impl<B: Backend> ModulationVectors<B> {
    /// `norm(x) · (1 + scale) + shift`; the norm has no weights.
    pub fn norm(
        &self,
        ctx: &Context<'_, B>,
        x: &Tensor<B>,
        ShiftScale { shift, scale }: ShiftScale,
    ) -> Result<Tensor<B>> {
        ctx.modulated_norm(EPSILON, x, &self.vectors, [shift, scale])
    }

    /// `x += gate · y`
    pub fn add(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>, y: &Tensor<B>, gate: usize) -> Result<()> {
        ctx.add_gated(x, y, &self.vectors, gate)
    }
}
