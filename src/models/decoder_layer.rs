//! One block of the decoder: all of it but attention itself, which needs the cache.

use outpost_kernels::Pool;

use super::decoder_config::DecoderConfig;
use super::error::Result;
use super::feed_forward::FeedForward;
use super::linear::Linear;
use super::norm::Norm;
use super::scratch::{Scratch, grow};
use super::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct DecoderLayer {
    attn_norm: Norm,
    attn_q: Linear,
    attn_k: Linear,
    attn_v: Linear,
    attn_output: Linear,
    /// Over each head's numbers.
    attn_q_norm: Option<Norm>,
    attn_k_norm: Option<Norm>,
    post_attention_norm: Option<Norm>,
    ffn_norm: Norm,
    feed_forward: FeedForward,
    post_ffw_norm: Option<Norm>,
}

impl DecoderLayer {
    pub fn load(loader: &Loader<'_>, config: &DecoderConfig, index: usize) -> Result<Self> {
        let DecoderConfig { width, head_width, family, .. } = *config;
        let (queries, kv) = (config.heads * head_width, config.kv_heads * head_width);
        let stem = |part: &str| format!("blk.{index}.{part}");
        // Queries, keys and values may lie below each other in one tensor.
        let projection = |part: &str, first: usize, rows: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first, total: queries + 2 * kv };
            loader.linear(&[Candidate::whole(stem(part), rows), fused], rows, width, config.biases)
        };
        let norm = |part: &str, width: usize| Norm::load(loader, config, &stem(part), width);
        let only = |wanted: bool, part: &str, width: usize| wanted.then(|| norm(part, width)).transpose();
        let sparse = config.layers.get(index).is_some_and(|layer| layer.sparse);
        Ok(Self {
            attn_norm: norm("attn_norm", width)?,
            attn_q: projection("attn_q", 0, queries)?,
            attn_k: projection("attn_k", queries, kv)?,
            attn_v: projection("attn_v", queries + kv, kv)?,
            attn_output: loader.linear(&[Candidate::whole(stem("attn_output"), width)], width, queries, false)?,
            attn_q_norm: only(family.qk_norms, "attn_q_norm", head_width)?,
            attn_k_norm: only(family.qk_norms, "attn_k_norm", head_width)?,
            post_attention_norm: only(family.post_norms, "post_attention_norm", width)?,
            ffn_norm: norm("ffn_norm", width)?,
            feed_forward: FeedForward::load(loader, config, index, sparse)?,
            post_ffw_norm: only(family.post_norms, "post_ffw_norm", width)?,
        })
    }

    /// Queries, keys and values of `m` rows, not yet rotated: from `x`, to which `y` is added first, to `q`, `k`
    /// and `v`.
    pub fn project(&self, pool: &Pool, m: usize, scratch: &mut Scratch) -> Result<()> {
        let Scratch { x, normed, q, k, v, y, .. } = scratch;
        let width = self.attn_output.rows();
        let [queries, keys] = [&self.attn_q, &self.attn_k].map(|one| m * one.rows());
        let normed = grow(normed, m * width);
        self.attn_norm.add_forward(pool, grow(x, m * width), grow(y, m * width), normed);
        let mut all = [(&self.attn_q, grow(q, queries)), (&self.attn_k, grow(k, keys)), (&self.attn_v, grow(v, keys))];
        Linear::forward_all(pool, normed, m, &mut all)?;
        if let Some(norm) = &self.attn_q_norm {
            norm.forward_in_place(pool, q, queries, y);
        }
        if let Some(norm) = &self.attn_k_norm {
            norm.forward_in_place(pool, k, keys, y);
        }
        Ok(())
    }

    /// What follows attention: what the heads `mixed` is added to `x`, and what the feed-forward network makes of
    /// that is left in `y`.
    pub fn finish(&self, pool: &Pool, m: usize, scratch: &mut Scratch) -> Result<()> {
        let Scratch { x, normed, mixed, y, gate, up, .. } = scratch;
        let (len, queries) = (m * self.attn_output.rows(), m * self.attn_q.rows());
        let x = grow(x, len);
        self.attn_output.forward(pool, grow(mixed, queries), m, grow(y, len))?;
        if let Some(norm) = &self.post_attention_norm {
            norm.forward_in_place(pool, y, len, normed);
        }
        let normed_x = grow(normed, len);
        self.ffn_norm.add_forward(pool, x, grow(y, len), normed_x);
        self.feed_forward.forward(pool, normed_x, m, [gate, up], grow(y, len))?;
        if let Some(norm) = &self.post_ffw_norm {
            norm.forward_in_place(pool, y, len, normed);
        }
        Ok(())
    }
}
