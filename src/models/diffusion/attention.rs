//! Self-attention of an image's pixels, and cross-attention to a text's tokens.

use super::feature_map::FeatureMap;
use super::layers::{Linear, Loaded, linear};
use super::op_context::{OpContext, Result};
use crate::models::weights::Loader;

/// Multi-head attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).
#[derive(Debug)]
pub(super) struct Attention {
    heads: usize,
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    to_out: Linear,
}

impl Attention {
    /// Queries come from `width` channels, keys and values from `context` channels.
    pub fn load(
        loader: &Loader<'_>,
        stem: &str,
        width: usize,
        context: usize,
        heads: usize,
        biased: bool,
    ) -> Loaded<Self> {
        let projection = |name: &str, from| linear(loader, &format!("{stem}.{name}"), [from, width], biased);
        Ok(Self {
            heads,
            to_q: projection("to_q", width)?,
            to_k: projection("to_k", context)?,
            to_v: projection("to_v", context)?,
            to_out: linear(loader, &format!("{stem}.to_out.0"), [width; 2], true)?,
        })
    }

    /// Self-attention.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        let [q, k, v] = ctx.linears([&self.to_q, &self.to_k, &self.to_v], x)?;
        let mixed = ctx.attention([&q, &k, &v], self.heads, false)?;
        drop((q, k, v));
        ctx.linear(&self.to_out, &mixed)
    }

    /// Cross-attention.
    pub fn cross(&self, ctx: &OpContext<'_>, x: &FeatureMap, context: &FeatureMap) -> Result<FeatureMap> {
        let q = ctx.linear(&self.to_q, x)?;
        let [k, v] = ctx.linears([&self.to_k, &self.to_v], context)?;
        let mixed = ctx.attention([&q, &k, &v], self.heads, false)?;
        drop((q, k, v));
        ctx.linear(&self.to_out, &mixed)
    }
}
