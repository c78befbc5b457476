//! Attention as the mixer of a decoder layer.

use std::ops::Range;

use crate::backend::{Activation, Angles, AttentionShape, Candle, Norm, PagedAttention, RopeLayout, Tensor};
use crate::decoder_config::{AttentionConfig, DecoderConfig};
use crate::decoder_family::QkNorms;
use crate::error::{ModelError, Result};
use crate::nn::{Context, GroupedNorm, Linear};
use crate::weights::{Candidate, Loader};

/// Where a layer keeps the keys and values of a step.
pub(super) struct KvLayer<'a, B: PagedAttention> {
    pub arena: &'a mut B::KvArena,
    /// The sequences, with the blocks of the arena.
    pub batch: &'a B::Batch,
    /// Index of the layer in the arena.
    pub layer: usize,
}

#[derive(Debug)]
pub(super) struct Attention<B: PagedAttention> {
    attn_q: Linear<B>,
    attn_k: Linear<B>,
    attn_v: Linear<B>,
    pub attn_output: Linear<B>,
    qk_norms: Option<[GroupedNorm<B>; 2]>,
    /// A score of each head that joins the sum of the softmax: `[heads]`.
    sinks: Option<B::Vector>,
    norms_after_rope: bool,
    shape: AttentionShape,
    /// Which of the decoder's rotary embeddings rotates queries and keys.
    rope: Option<usize>,
    rope_layout: RopeLayout,
    /// The rows of `attn_q` alternate between the queries of a head and its gate.
    output_gate: bool,
}

/// Queries, keys and values after RoPE, and the gate of the output if there is one.
struct Projected<B: PagedAttention> {
    q: Tensor<B>,
    k: Tensor<B>,
    v: Tensor<B>,
    gate: Option<Tensor<B>>,
}

impl<B: PagedAttention> Attention<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &AttentionConfig) -> Result<Self> {
        let width = config.width;
        let AttentionConfig { heads, kv_heads, head_width, rope, rope_layout, output_gate, .. } = *plan;
        let (queries, kv) = (plan.query_width(), plan.kv_width());
        let query_rows = if output_gate { 2 * queries } else { queries };
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        // Queries, keys and values may be fused in one tensor, in this order.
        let projection = |suffix: &str, first: usize, rows: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first, total: query_rows + 2 * kv };
            loader.linear(&[Candidate::whole(stem(suffix), rows), fused], rows, width, plan.biases)
        };
        let qk_norms = |kind| {
            let norm = |suffix, heads| match kind {
                QkNorms::EachHead | QkNorms::EachHeadAfterRope => {
                    Norm::load(loader, &stem(suffix), head_width, config.norm).map(GroupedNorm::shared)
                }
                QkNorms::AllHeads => {
                    Norm::load(loader, &stem(suffix), heads * head_width, config.norm).map(GroupedNorm::shared)
                }
                QkNorms::EachHeadOwnWeights => {
                    let weights = loader.values(&stem(suffix), &[heads, head_width])?;
                    GroupedNorm::new(loader.backend(), weights, heads, config.norm.kind, config.norm.epsilon)
                }
            };
            Ok::<_, ModelError>([norm("attn_q_norm", heads)?, norm("attn_k_norm", kv_heads)?])
        };
        Ok(Self {
            attn_q: projection("attn_q", 0, query_rows)?,
            attn_k: projection("attn_k", query_rows, kv)?,
            attn_v: projection("attn_v", query_rows + kv, kv)?,
            attn_output: loader.linear(&[Candidate::whole(stem("attn_output"), width)], width, queries, false)?,
            qk_norms: plan.qk_norms.map(qk_norms).transpose()?,
            sinks: plan
                .sinks
                .then(|| loader.backend().vector(loader.vector(&stem("attn_sinks"), heads)?))
                .transpose()?,
            norms_after_rope: plan.qk_norms == Some(QkNorms::EachHeadAfterRope),
            shape: plan.shape(),
            rope,
            rope_layout,
            output_gate,
        })
    }

    /// Writes the keys and values of the tokens to the KV cache, and returns the attention of the tokens.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        normed: Tensor<B>,
        angles: &[Angles<B>],
        KvLayer { arena, batch, layer }: KvLayer<'_, B>,
    ) -> Result<Tensor<B>> {
        let Projected { q, k, v, gate } = self.project(ctx, &normed, angles)?;
        drop(normed);
        ctx.write_kv(arena, layer, batch, [&k, &v])?;
        gated(ctx, ctx.kv_attention(arena, layer, batch, &self.shape, self.sinks.as_ref(), &q)?, gate)
    }

    /// Only writes the keys and values of the tokens.
    pub fn write_kv(
        &self,
        ctx: &Context<'_, B>,
        normed: &Tensor<B>,
        angles: &[Angles<B>],
        KvLayer { arena, batch, layer }: KvLayer<'_, B>,
    ) -> Result<()> {
        let [k, v] = Linear::forward_all(ctx, [&self.attn_k, &self.attn_v], normed)?;
        ctx.write_kv(arena, layer, batch, [&self.place_keys(ctx, k, angles)?, &v])
    }

    fn project(&self, ctx: &Context<'_, B>, normed: &Tensor<B>, angles: &[Angles<B>]) -> Result<Projected<B>> {
        let [mut q, k, v] = Linear::forward_all(ctx, [&self.attn_q, &self.attn_k, &self.attn_v], normed)?;
        let mut gate = None;
        if self.output_gate {
            let [queries, gates] = self.split_queries(ctx, q)?;
            (q, gate) = (queries, Some(gates));
        }
        let norm = self.qk_norms.as_ref().map(|[norm, _]| norm);
        let q = self.place(ctx, q, norm, self.shape.heads, angles)?;
        Ok(Projected { q, k: self.place_keys(ctx, k, angles)?, v, gate })
    }

    fn place_keys(&self, ctx: &Context<'_, B>, k: Tensor<B>, angles: &[Angles<B>]) -> Result<Tensor<B>> {
        let norm = self.qk_norms.as_ref().map(|[_, norm]| norm);
        self.place(ctx, k, norm, self.shape.kv_heads, angles)
    }

    /// Normalizes the queries or keys of `heads` heads, and rotates them to their positions.
    fn place(
        &self,
        ctx: &Context<'_, B>,
        mut x: Tensor<B>,
        norm: Option<&GroupedNorm<B>>,
        heads: usize,
        angles: &[Angles<B>],
    ) -> Result<Tensor<B>> {
        let (before, after) = if self.norms_after_rope { (None, norm) } else { (norm, None) };
        if let Some(norm) = before {
            x = norm.forward(ctx, &x)?;
        }
        if let Some(angles) = self.rope.and_then(|index| angles.get(index)) {
            ctx.rope(&mut x, heads, self.rope_layout, angles)?;
        }
        if let Some(norm) = after {
            x = norm.forward(ctx, &x)?;
        }
        Ok(x)
    }

    /// Splits the products of `attn_q` into queries and gates.
    fn split_queries(&self, ctx: &Context<'_, B>, products: Tensor<B>) -> Result<[Tensor<B>; 2]> {
        let AttentionShape { heads, width, .. } = self.shape;
        let tokens = products.rows();
        let parts = ctx.reshape(products, [1, 2 * tokens * heads, 1, width])?;
        let part = |first: usize| {
            let rows: Vec<usize> = (first..2 * tokens * heads).step_by(2).collect();
            ctx.reshape(ctx.gather_rows(&parts, &rows)?, [1, tokens, 1, heads * width])
        };
        Ok([part(0)?, part(1)?])
    }
}

/// `attention · sigmoid(gate)`
fn gated<B: PagedAttention>(ctx: &Context<'_, B>, attention: Tensor<B>, gate: Option<Tensor<B>>) -> Result<Tensor<B>> {
    let Some(mut gate) = gate else { return Ok(attention) };
    ctx.activate(Activation::Sigmoid, &mut gate, Some(&attention))?;
    Ok(gate)
}

impl Attention<Candle> {
    /// The attention of whole texts, without a cache and with a graph of its operations.
    pub fn forward_texts(
        &self,
        ctx: &Context<'_, Candle>,
        normed: &Tensor<Candle>,
        texts: &[Range<usize>],
        angles: &[Angles<Candle>],
    ) -> Result<Tensor<Candle>> {
        let Projected { q, k, v, gate } = self.project(ctx, normed, angles)?;
        gated(ctx, ctx.text_attention(texts, &self.shape, self.sinks.as_ref(), [&q, &k, &v])?, gate)
    }
}
