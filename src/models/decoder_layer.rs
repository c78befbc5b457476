//! One decoder layer, except for attention itself, which needs the KV cache.

use outpost_kernels::Pool;

use super::decoder_config::DecoderConfig;
use super::error::Result;
use super::linear::Linear;
use super::mixture_of_experts::MixtureOfExperts;
use super::mlp::Mlp;
use super::norm::Norm;
use super::scratch_buffers::{ScratchBuffers, grow};
use super::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct DecoderLayer {
    attn_norm: Norm,
    attn_q: Linear,
    attn_k: Linear,
    attn_v: Linear,
    attn_output: Linear,
    /// Norms of each head's queries and keys.
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
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        // Queries, keys and values may be fused in one tensor, in this order.
        let projection = |suffix: &str, first: usize, rows: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first, total: queries + 2 * kv };
            loader.linear(&[Candidate::whole(stem(suffix), rows), fused], rows, width, config.biases)
        };
        let norm = |suffix: &str, width: usize| Norm::load(loader, config, &stem(suffix), width);
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

    /// Adds `y` to `x`, and computes queries, keys and values of `m` tokens in `q`, `k` and `v`, before RoPE.
    pub fn project(&self, pool: &Pool, m: usize, scratch: &mut ScratchBuffers) -> Result<()> {
        let ScratchBuffers { x, normed, q, k, v, y, .. } = scratch;
        let width = self.attn_output.rows();
        let [queries, keys] = [&self.attn_q, &self.attn_k].map(|weight| m * weight.rows());
        let normed = grow(normed, m * width);
        self.attn_norm.add_forward(pool, grow(x, m * width), grow(y, m * width), normed);
        let mut products =
            [(&self.attn_q, grow(q, queries)), (&self.attn_k, grow(k, keys)), (&self.attn_v, grow(v, keys))];
        Linear::forward_all(pool, normed, m, &mut products)?;
        if let Some(norm) = &self.attn_q_norm {
            norm.forward_in_place(pool, q, queries, y);
        }
        if let Some(norm) = &self.attn_k_norm {
            norm.forward_in_place(pool, k, keys, y);
        }
        Ok(())
    }

    /// Computes the rest of the layer after attention. The attention output is added to `x`, and the output of the
    /// feed-forward network is stored in `y`.
    pub fn finish(&self, pool: &Pool, m: usize, scratch: &mut ScratchBuffers) -> Result<()> {
        let ScratchBuffers { x, normed, attention, y, gate, up, .. } = scratch;
        let (len, queries) = (m * self.attn_output.rows(), m * self.attn_q.rows());
        let x = grow(x, len);
        self.attn_output.forward(pool, grow(attention, queries), m, grow(y, len))?;
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

/// The feed-forward network of a layer: dense, or a mixture of experts.
#[derive(Debug)]
enum FeedForward {
    Dense(Mlp),
    Sparse(MixtureOfExperts),
}

impl FeedForward {
    pub fn load(loader: &Loader<'_>, config: &DecoderConfig, layer: usize, sparse: bool) -> Result<Self> {
        match &config.experts {
            Some(sizes) if sparse => MixtureOfExperts::load(loader, config, sizes, layer).map(Self::Sparse),
            _ => Mlp::load_dense(loader, config, layer).map(Self::Dense),
        }
    }

    /// `x` and `out` are `[m, width]`; `buffers` are scratch space.
    pub fn forward(
        &self,
        pool: &Pool,
        x: &[f32],
        m: usize,
        buffers: [&mut Vec<f32>; 2],
        out: &mut [f32],
    ) -> Result<()> {
        match self {
            Self::Dense(mlp) => mlp.forward(pool, x, m, buffers, out),
            Self::Sparse(experts) => experts.forward(pool, x, m, buffers, out),
        }
    }
}
