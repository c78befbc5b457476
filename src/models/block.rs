//! One block of the decoder: all of it but attention itself, which needs the cache.

use candle_core::{Result, Tensor};
use outpost_kernels::Pool;

use super::ModelError;
use super::feed_forward::FeedForward;
use super::hyper::Hyper;
use super::linear::Linear;
use super::ops::{add, rms_norm};
use super::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct Block {
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

/// Division by the root of the mean square (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>).
#[derive(Debug)]
pub(super) struct Norm {
    weight: Vec<f32>,
    epsilon: f32,
}

type Loaded<T> = std::result::Result<T, ModelError>;

impl Norm {
    pub fn load(loader: &Loader<'_>, hyper: &Hyper, stem: &str, width: usize) -> Loaded<Self> {
        let weight = (loader.vector(stem, width)? + f64::from(hyper.norm_shift))?;
        Ok(Self { weight: weight.to_vec1()?, epsilon: hyper.epsilon })
    }

    /// Over the last dimension.
    pub fn forward(&self, pool: &Pool, x: &Tensor) -> Result<Tensor> {
        rms_norm(pool, x, &self.weight, self.epsilon)
    }

    /// Over each of the heads that stand next to each other in `[rows, heads * head_width]`.
    fn heads(&self, pool: &Pool, x: Tensor) -> Result<Tensor> {
        self.forward(pool, &x.reshape(((), self.weight.len()))?)?.reshape(x.shape())
    }
}

impl Block {
    pub fn load(loader: &Loader<'_>, hyper: &Hyper, index: usize) -> Loaded<Self> {
        let Hyper { width, head_width, family, .. } = *hyper;
        let (queries, kv) = (hyper.heads * head_width, hyper.kv_heads * head_width);
        let stem = |part: &str| format!("blk.{index}.{part}");
        // Queries, keys and values may lie below each other in one tensor.
        let projection = |part: &str, first: usize, rows: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first, total: queries + 2 * kv };
            loader.linear(&[Candidate::whole(stem(part), rows), fused], rows, width, hyper.biases)
        };
        let norm = |part: &str, width: usize| Norm::load(loader, hyper, &stem(part), width);
        let only = |wanted: bool, part: &str, width: usize| wanted.then(|| norm(part, width)).transpose();
        let sparse = hyper.layers.get(index).is_some_and(|layer| layer.sparse);
        Ok(Self {
            attn_norm: norm("attn_norm", width)?,
            attn_q: projection("attn_q", 0, queries)?,
            attn_k: projection("attn_k", queries, kv)?,
            attn_v: projection("attn_v", queries + kv, kv)?,
            attn_output: loader.linear(&[Candidate::whole(stem("attn_output"), width)], width, queries, false)?,
            attn_q_norm: only(family.head_norms, "attn_q_norm", head_width)?,
            attn_k_norm: only(family.head_norms, "attn_k_norm", head_width)?,
            post_attention_norm: only(family.post_norms, "post_attention_norm", width)?,
            ffn_norm: norm("ffn_norm", width)?,
            feed_forward: FeedForward::load(loader, hyper, index, sparse)?,
            post_ffw_norm: only(family.post_norms, "post_ffw_norm", width)?,
        })
    }

    /// Queries, keys and values, not yet rotated: `[rows, heads * head_width]`, given `[rows, width]`.
    pub fn project(&self, pool: &Pool, x: &Tensor) -> Result<[Tensor; 3]> {
        let x = self.attn_norm.forward(pool, x)?;
        let all = Linear::together(pool, &x, &[&self.attn_q, &self.attn_k, &self.attn_v])?;
        let normed = |norm: &Option<Norm>, x: Tensor| match norm {
            Some(norm) => norm.heads(pool, x),
            None => Ok(x),
        };
        match <[Tensor; 3]>::try_from(all) {
            Ok([q, k, v]) => Ok([normed(&self.attn_q_norm, q)?, normed(&self.attn_k_norm, k)?, v]),
            Err(_) => candle_core::bail!("three projections gave another number of results"),
        }
    }

    /// What follows attention, given its input `x` (`[rows, width]`) and what the heads `mixed`
    /// (`[rows, heads * head_width]`).
    pub fn finish(&self, pool: &Pool, x: Tensor, mixed: &Tensor) -> Result<Tensor> {
        let normed = |norm: &Option<Norm>, x: Tensor| match norm {
            Some(norm) => norm.forward(pool, &x),
            None => Ok(x),
        };
        let x = add(pool, x, &normed(&self.post_attention_norm, self.attn_output.forward(pool, mixed)?)?)?;
        let y = self.feed_forward.forward(pool, &self.ffn_norm.forward(pool, &x)?)?;
        add(pool, x, &normed(&self.post_ffw_norm, y)?)
    }
}
