//! A block with the same weights for patches and words.

use outpost_kernels::Activation;

use super::super::block::{BEFORE, GATE};
use super::super::modulation::Modulation;
use super::super::stream::{PICTURE, Stream, Widths};
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Linear, Loaded, linear};
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct Single {
    heads: usize,
    modulation: Modulation,
    stream: Stream,
    up: Linear,
    /// Of what is seen, and of what the feed-forward network makes.
    out: Linear,
}

impl Single {
    pub fn load(loader: &Loader<'_>, stem: &str, width: usize, heads: usize) -> Loaded<Self> {
        let inner = 4 * width;
        // The original has all projections of a position in one.
        let fused = (format!("{stem}.linear1"), 3 * width + inner);
        let up = [
            Candidate::whole(format!("{stem}.proj_mlp"), inner),
            Candidate { stem: fused.0.clone(), first: 3 * width, total: fused.1 },
        ];
        let widths = Widths { width, normed: Some(width / heads) };
        Ok(Self {
            heads,
            modulation: Modulation::load(loader, &format!("{stem}.norm.linear"), width, 3)?,
            stream: Stream::load_fused(loader, &format!("{stem}.attn"), &PICTURE, widths, &fused)?,
            up: loader.linear(&up, inner, width, true)?,
            out: linear(loader, &format!("{stem}.proj_out"), [width + inner, width], true)?,
        })
    }

    /// `x`: `[1, positions, 1, width]`; `turn` is done to queries and keys.
    pub fn forward(
        &self,
        ctx: &OpContext<'_>,
        x: &mut FeatureMap,
        told: &FeatureMap,
        turn: &dyn Fn(&mut FeatureMap) -> Result<()>,
    ) -> Result<()> {
        let vectors = self.modulation.forward(ctx, told)?;
        let y = vectors.norm(ctx, x, BEFORE)?;
        let [mut q, mut k, v] = self.stream.forward(ctx, &y)?;
        turn(&mut q)?;
        turn(&mut k)?;
        let seen = ctx.attention([&q, &k, &v], self.heads, false)?;
        drop((q, k, v));
        let mut inner = ctx.linear(&self.up, &y)?;
        drop(y);
        ctx.activate(Activation::GeluTanh, &mut inner)?;
        let both = ctx.concat(&seen, &inner)?;
        drop((seen, inner));
        vectors.add(ctx, x, &ctx.linear(&self.out, &both)?, GATE)
    }
}
