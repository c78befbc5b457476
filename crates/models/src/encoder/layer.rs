//! One encoder layer, post-norm (BERT) or pre-norm (ModernBERT).

use super::config::EncoderConfig;
use crate::backend::{Backend, Norm, Tensor};
use crate::error::Result;
use crate::nn::{Context, Linear, Mlp};
use crate::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct Layer<B: Backend> {
    norms: Norms<B>,
    attn_q: Linear<B>,
    attn_k: Linear<B>,
    attn_v: Linear<B>,
    attn_output: Linear<B>,
    mlp: Mlp<B>,
}

#[derive(Debug)]
enum Norms<B: Backend> {
    /// Normalize the sum of residual stream and sublayer output.
    Post { attention: Norm<B>, feed_forward: Norm<B> },
    /// Normalize a sublayer's input. ModernBERT's first layer has no attention norm.
    Pre { attention: Option<Norm<B>>, feed_forward: Norm<B> },
}

/// The residual stream between layers: `[1, tokens, 1, width]` each.
#[derive(Debug)]
pub(super) struct ResidualStream<B: Backend> {
    pub x: Tensor<B>,
    /// With pre-norm, the last sublayer's output, which the next norm adds.
    pub y: Option<Tensor<B>>,
}

impl<B: Backend> Layer<B> {
    pub fn load(loader: &Loader<'_, B>, config: &EncoderConfig, index: usize) -> Result<Self> {
        let EncoderConfig { width, inner, biases, epsilon, .. } = *config;
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        let norm = |suffix: &str| Norm::load_layer_norm(loader, &stem(suffix), width, epsilon);
        let norms = match config.pre_norm {
            false => Norms::Post { attention: norm("attn_output_norm")?, feed_forward: norm("layer_output_norm")? },
            true => Norms::Pre {
                attention: (index > 0).then(|| norm("attn_norm")).transpose()?,
                feed_forward: norm("ffn_norm")?,
            },
        };
        let projection = |suffix: &str, index: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first: index * width, total: 3 * width };
            loader.linear(&[Candidate::whole(stem(suffix), width), fused], width, width, biases)
        };
        // In a fused tensor, the gate comes before up.
        let half = |suffix: &str, first: usize| {
            let fused = Candidate { stem: stem("ffn_gate_up"), first, total: 2 * inner };
            loader.linear(&[Candidate::whole(stem(suffix), inner), fused], inner, width, biases)
        };
        let whole =
            |suffix: &str, rows, columns| loader.linear(&[Candidate::whole(stem(suffix), rows)], rows, columns, biases);
        Ok(Self {
            norms,
            attn_q: projection("attn_q", 0)?,
            attn_k: projection("attn_k", 1)?,
            attn_v: projection("attn_v", 2)?,
            attn_output: whole("attn_output", width, width)?,
            mlp: Mlp {
                gate: config.gated.then(|| half("ffn_gate", 0)).transpose()?,
                up: half("ffn_up", inner)?,
                down: whole("ffn_down", width, inner)?,
                activation: config.activation,
            },
        })
    }

    /// Computes queries, keys and values before RoPE.
    pub fn project(&self, ctx: &Context<'_, B>, stream: &mut ResidualStream<B>) -> Result<[Tensor<B>; 3]> {
        let layers = [&self.attn_q, &self.attn_k, &self.attn_v];
        let normed = match (&self.norms, stream.y.take()) {
            (Norms::Pre { attention: Some(norm), .. }, Some(y)) => ctx.add_norm(norm, &mut stream.x, &y)?,
            (Norms::Pre { attention: Some(norm), .. }, None) => ctx.norm(norm, &stream.x)?,
            _ => return Linear::forward_all(ctx, layers, &stream.x),
        };
        Linear::forward_all(ctx, layers, &normed)
    }

    /// Computes the rest of the layer after attention, whose output is `attention`.
    pub fn finish(&self, ctx: &Context<'_, B>, stream: &mut ResidualStream<B>, attention: &Tensor<B>) -> Result<()> {
        let y = self.attn_output.forward(ctx, attention)?;
        match &self.norms {
            Norms::Post { attention, feed_forward } => {
                stream.x = ctx.add_norm(attention, &mut stream.x, &y)?;
                drop(y);
                let y = self.mlp.forward(ctx, &stream.x)?;
                stream.x = ctx.add_norm(feed_forward, &mut stream.x, &y)?;
            }
            Norms::Pre { feed_forward, .. } => {
                let normed = ctx.add_norm(feed_forward, &mut stream.x, &y)?;
                drop(y);
                stream.y = Some(self.mlp.forward(ctx, &normed)?);
            }
        }
        Ok(())
    }
}
