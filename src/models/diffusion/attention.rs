//! Self-attention among the pixels of a feature map, and cross-attention from pixels to prompt tokens.

use super::feature_map::FeatureMap;
use super::layers::{Linear, linear};
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
    /// Queries are projected from `width` channels, keys and values from `context_width` channels.
    pub fn load(
        loader: &Loader<'_>,
        stem: &str,
        width: usize,
        context_width: usize,
        heads: usize,
        biased: bool,
    ) -> Result<Self> {
        let projection = |name: &str, inputs| linear(loader, &format!("{stem}.{name}"), [inputs, width], biased);
        Ok(Self {
            heads,
            to_q: projection("to_q", width)?,
            to_k: projection("to_k", context_width)?,
            to_v: projection("to_v", context_width)?,
            to_out: linear(loader, &format!("{stem}.to_out.0"), [width; 2], true)?,
        })
    }

    /// Self-attention: `x` and the result are `[images, height, width, channels]`.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap) -> Result<FeatureMap> {
        let [q, k, v] = ctx.linears([&self.to_q, &self.to_k, &self.to_v], x)?;
        let attended = ctx.attention([&q, &k, &v], self.heads, false)?;
        drop((q, k, v));
        ctx.linear(&self.to_out, &attended)
    }

    /// Cross-attention: queries from `x`, keys and values from `context`, `[images, tokens, 1, context_width]`.
    pub fn cross(&self, ctx: &OpContext<'_>, x: &FeatureMap, context: &FeatureMap) -> Result<FeatureMap> {
        let q = ctx.linear(&self.to_q, x)?;
        let [k, v] = ctx.linears([&self.to_k, &self.to_v], context)?;
        let attended = ctx.attention([&q, &k, &v], self.heads, false)?;
        drop((q, k, v));
        ctx.linear(&self.to_out, &attended)
    }
}
