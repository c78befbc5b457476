//! The single block of FLUX: one sequence of text tokens and image patches, with shared weights.

use crate::backend::{Activation, Backend, Tensor};

use super::super::joint_block::{ATTENTION, ATTENTION_GATE};
use super::super::modulation::Modulation;
use super::super::qkv::{IMAGE, QkvDims, QkvProjection};
use crate::diffusion::layers::linear;
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct SingleBlock<B: Backend> {
    heads: usize,
    modulation: Modulation<B>,
    qkv: QkvProjection<B>,
    mlp_up: Linear<B>,
    /// Projects the attention output and the hidden layer of the feed-forward network together.
    out: Linear<B>,
}

impl<B: Backend> SingleBlock<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, width: usize, heads: usize) -> Result<Self> {
        let inner = 4 * width;
        // The original checkpoint stores all input projections in one matrix.
        let fused = (format!("{stem}.linear1"), 3 * width + inner);
        let mlp_up = [
            Candidate::whole(format!("{stem}.proj_mlp"), inner),
            Candidate { stem: fused.0.clone(), first: 3 * width, total: fused.1 },
        ];
        let dims = QkvDims { width, qk_norm: Some(width / heads) };
        Ok(Self {
            heads,
            modulation: Modulation::load(loader, &format!("{stem}.norm.linear"), width, 3)?,
            qkv: QkvProjection::load_fused(loader, &format!("{stem}.attn"), &IMAGE, dims, &fused)?,
            mlp_up: loader.linear(&mlp_up, inner, width, true)?,
            out: linear(loader, &format!("{stem}.proj_out"), [width + inner, width], true)?,
        })
    }

    /// `x`: `[1, positions, 1, width]`; `cond`: the conditioning vector, `[1, 1, 1, width]`; `rope` is applied to
    /// queries and keys.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        x: &mut Tensor<B>,
        cond: &Tensor<B>,
        rope: &dyn Fn(&mut Tensor<B>) -> Result<()>,
    ) -> Result<()> {
        let vectors = self.modulation.forward(ctx, cond)?;
        let y = vectors.norm(ctx, x, ATTENTION)?;
        let [mut q, mut k, v] = self.qkv.forward(ctx, &y)?;
        rope(&mut q)?;
        rope(&mut k)?;
        let attended = ctx.attention([&q, &k, &v], self.heads, false)?;
        drop((q, k, v));
        let mut hidden = self.mlp_up.forward(ctx, &y)?;
        drop(y);
        ctx.activate(Activation::GeluTanh, &mut hidden, None)?;
        let concatenated = ctx.concat_channels(&attended, &hidden)?;
        drop((attended, hidden));
        vectors.add(ctx, x, &self.out.forward(ctx, &concatenated)?, ATTENTION_GATE)
    }
}
