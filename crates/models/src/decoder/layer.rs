//! One decoder layer, except for attention itself, which needs the KV cache.

use super::feed_forward::FeedForward;
use crate::backend::{Backend, Norm, Tensor};
use crate::decoder_config::DecoderConfig;
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct DecoderLayer<B: Backend> {
    attn_norm: Norm<B>,
    attn_q: Linear<B>,
    attn_k: Linear<B>,
    attn_v: Linear<B>,
    attn_output: Linear<B>,
    /// Norms of each head's queries and keys.
    attn_q_norm: Option<Norm<B>>,
    attn_k_norm: Option<Norm<B>>,
    post_attention_norm: Option<Norm<B>>,
    ffn_norm: Norm<B>,
    feed_forward: FeedForward<B>,
    post_ffw_norm: Option<Norm<B>>,
}

impl<B: Backend> DecoderLayer<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize) -> Result<Self> {
        let DecoderConfig { width, head_width, family, epsilon, norm_weight_offset: offset, .. } = *config;
        let (queries, kv) = (config.heads * head_width, config.kv_heads * head_width);
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        // Queries, keys and values may be fused in one tensor, in this order.
        let projection = |suffix: &str, first: usize, rows: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first, total: queries + 2 * kv };
            loader.linear(&[Candidate::whole(stem(suffix), rows), fused], rows, width, config.biases)
        };
        let norm = |suffix: &str, width: usize| Norm::load_rms_norm(loader, &stem(suffix), width, epsilon, offset);
        let optional_norm =
            |present: bool, suffix: &str, width: usize| present.then(|| norm(suffix, width)).transpose();
        let sparse = config.layers.get(index).is_some_and(|layer| layer.sparse);
        Ok(Self {
            attn_norm: norm("attn_norm", width)?,
            attn_q: projection("attn_q", 0, queries)?,
            attn_k: projection("attn_k", queries, kv)?,
            attn_v: projection("attn_v", queries + kv, kv)?,
            attn_output: loader.linear(&[Candidate::whole(stem("attn_output"), width)], width, queries, false)?,
            attn_q_norm: optional_norm(family.qk_norms, "attn_q_norm", head_width)?,
            attn_k_norm: optional_norm(family.qk_norms, "attn_k_norm", head_width)?,
            post_attention_norm: optional_norm(family.post_norms, "post_attention_norm", width)?,
            ffn_norm: norm("ffn_norm", width)?,
            feed_forward: FeedForward::load(loader, config, index, sparse)?,
            post_ffw_norm: optional_norm(family.post_norms, "post_ffw_norm", width)?,
        })
    }

    /// Adds `y` to `x`, and computes queries, keys and values before RoPE.
    pub fn project(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>, y: &Tensor<B>) -> Result<[Tensor<B>; 3]> {
        let normed = ctx.add_norm(&self.attn_norm, x, y)?;
        let [mut q, mut k, v] = Linear::forward_all(ctx, [&self.attn_q, &self.attn_k, &self.attn_v], &normed)?;
        if let Some(norm) = &self.attn_q_norm {
            q = ctx.norm(norm, &q)?;
        }
        if let Some(norm) = &self.attn_k_norm {
            k = ctx.norm(norm, &k)?;
        }
        Ok([q, k, v])
    }

    /// Computes the rest of the layer after attention. Adds the attention output to `x`, and returns the output of the
    /// feed-forward network.
    pub fn finish(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>, attention: &Tensor<B>) -> Result<Tensor<B>> {
        let mut y = self.attn_output.forward(ctx, attention)?;
        if let Some(norm) = &self.post_attention_norm {
            y = ctx.norm(norm, &y)?;
        }
        let normed = ctx.add_norm(&self.ffn_norm, x, &y)?;
        drop(y);
        let y = self.feed_forward.forward(ctx, &normed)?;
        match &self.post_ffw_norm {
            Some(norm) => ctx.norm(norm, &y),
            None => Ok(y),
        }
    }
}
