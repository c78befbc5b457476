//! The parts that layers of the encoder and of the decoder share.

use crate::backend::{Activation, AttentionShape, Backend, Norm, Tensor};
use crate::error::Result;
use crate::nn::{Context, Linear, Mlp};
use crate::weights::{Candidate, Loader};

/// As in PyTorch.
pub(super) const EPSILON: f32 = 1e-5;

/// The projections of an attention layer. The one of keys has no bias.
#[derive(Debug)]
pub(super) struct Attention<B: Backend> {
    pub q: Linear<B>,
    pub k: Linear<B>,
    pub v: Linear<B>,
    pub output: Linear<B>,
}

impl<B: Backend> Attention<B> {
    /// Loads the projections whose stems start with `stem`.
    pub fn load(loader: &Loader<'_, B>, stem: &str, width: usize) -> Result<Self> {
        let linear = |suffix: &str, biased: bool| {
            loader.linear(&[Candidate::whole(format!("{stem}_{suffix}"), width)], width, width, biased)
        };
        Ok(Self {
            q: linear("q", true)?,
            k: linear("k", false)?,
            v: linear("v", true)?,
            output: linear("output", true)?,
        })
    }
}

/// Loads the feed-forward network whose stems start with `stem`.
pub(super) fn load_mlp<B: Backend>(loader: &Loader<'_, B>, stem: &str, width: usize, inner: usize) -> Result<Mlp<B>> {
    let linear = |suffix: &str, rows, columns| {
        loader.linear(&[Candidate::whole(format!("{stem}_{suffix}"), rows)], rows, columns, true)
    };
    let (up, down) = (linear("up", inner, width)?, linear("down", width, inner)?);
    Ok(Mlp { gate: None, up, down, activation: Activation::Gelu })
}

/// Attention of all heads, without a window.
pub(super) fn attention_shape(width: usize, heads: usize, causal: bool) -> AttentionShape {
    let head_width = width / heads;
    let scale = (head_width as f32).sqrt().recip();
    AttentionShape { heads, kv_heads: heads, width: head_width, scale, causal, window: None, soft_cap: None }
}

/// The residual stream of a pre-norm network.
#[derive(Debug)]
pub(super) struct ResidualStream<B: Backend> {
    pub x: Tensor<B>,
    /// The last sublayer's output, which the next norm adds to `x`.
    pub y: Option<Tensor<B>>,
}

impl<B: Backend> ResidualStream<B> {
    /// Adds the last sublayer's output, and normalises the sum.
    pub fn norm(&mut self, ctx: &Context<'_, B>, norm: &Norm<B>) -> Result<Tensor<B>> {
        match self.y.take() {
            Some(y) => ctx.add_norm(norm, &mut self.x, &y),
            None => ctx.norm(norm, &self.x),
        }
    }
}
