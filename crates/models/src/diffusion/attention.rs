//! Self-attention among the pixels of a feature map, and cross-attention from pixels to prompt tokens.

use super::layers::linear;
use crate::backend::{Backend, Tensor};
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::Loader;

/// Multi-head attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).
#[derive(Debug)]
pub(super) struct Attention<B: Backend> {
    heads: usize,
    to_q: Linear<B>,
    to_k: Linear<B>,
    to_v: Linear<B>,
    to_out: Linear<B>,
}

impl<B: Backend> Attention<B> {
    /// Queries are projected from `width` channels, keys and values from `context_width` channels.
    pub fn load(
        loader: &Loader<'_, B>,
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
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let [q, k, v] = Linear::forward_all(ctx, [&self.to_q, &self.to_k, &self.to_v], x)?;
        let attended = ctx.attention([&q, &k, &v], self.heads, false)?;
        drop((q, k, v));
        self.to_out.forward(ctx, &attended)
    }

    /// Cross-attention: queries from `x`, keys and values from `context`, `[images, tokens, 1, context_width]`.
    pub fn cross(&self, ctx: &Context<'_, B>, x: &Tensor<B>, context: &Tensor<B>) -> Result<Tensor<B>> {
        let q = self.to_q.forward(ctx, x)?;
        let [k, v] = Linear::forward_all(ctx, [&self.to_k, &self.to_v], context)?;
        let attended = ctx.attention([&q, &k, &v], self.heads, false)?;
        drop((q, k, v));
        self.to_out.forward(ctx, &attended)
    }
}
