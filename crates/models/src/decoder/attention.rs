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
    /// `None`: the layer reads the keys and values of another one.
    kv: Option<KeysAndValues<B>>,
    pub attn_output: Linear<B>,
    q_norm: Option<GroupedNorm<B>>,
    /// A score of each head that joins the sum of the softmax: `[heads]`.
    sinks: Option<B::Vector>,
    norms_after_rope: bool,
    shape: AttentionShape,
    /// Which of the decoder's rotary embeddings rotates queries, and which one keys.
    ropes: [Option<usize>; 2],
    rope_layout: RopeLayout,
    /// The rows of `attn_q` alternate between the queries of a head and its gate.
    output_gate: bool,
}

/// What computes the keys and values of a layer.
#[derive(Debug)]
struct KeysAndValues<B: PagedAttention> {
    attn_k: Linear<B>,
    /// `None`: see [`AttentionConfig::keys_as_values`].
    attn_v: Option<Linear<B>>,
    k_norm: Option<GroupedNorm<B>>,
    /// See [`AttentionConfig::value_norms`].
    v_norm: Option<Norm<B>>,
}

/// Queries, keys and values after RoPE, and the gate of the output if there is one.
struct Projected<B: PagedAttention> {
    q: Tensor<B>,
    /// `None`: they are those of another layer.
    kv: Option<[Tensor<B>; 2]>,
    gate: Option<Tensor<B>>,
}

impl<B: PagedAttention> Attention<B> {
    pub fn load(loader: &Loader<'_, B>, config: &DecoderConfig, index: usize, plan: &AttentionConfig) -> Result<Self> {
        let width = config.width;
        let AttentionConfig { heads, kv_heads, head_width, rope, query_rope, rope_layout, output_gate, .. } = *plan;
        let (queries, kv) = (plan.query_width(), plan.kv_width());
        let query_rows = if output_gate { 2 * queries } else { queries };
        let stem = |suffix: &str| format!("blk.{index}.{suffix}");
        // Queries, keys and values may be fused in one tensor, in this order.
        let projection = |suffix: &str, first: usize, rows: usize| {
            let fused = Candidate { stem: stem("attn_qkv"), first, total: query_rows + 2 * kv };
            loader.linear(&[Candidate::whole(stem(suffix), rows), fused], rows, width, plan.biases)
        };
        let norm = |suffix, heads| {
            let norm = |kind| match kind {
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
            plan.qk_norms.map(norm).transpose()
        };
        let attn_q = projection("attn_q", 0, query_rows)?;
        let kv = match plan.kv_layer {
            Some(_) => {
                // Checkpoints have them nevertheless.
                ["attn_k", "attn_v", "attn_k_norm"].iter().for_each(|suffix| loader.ignore(&stem(suffix)));
                None
            }
            None => Some(KeysAndValues {
                attn_k: projection("attn_k", query_rows, kv)?,
                attn_v: (!plan.keys_as_values).then(|| projection("attn_v", query_rows + kv, kv)).transpose()?,
                k_norm: norm("attn_k_norm", kv_heads)?,
                v_norm: plan.value_norms.then(|| value_norm(loader, config, head_width)).transpose()?,
            }),
        };
        Ok(Self {
            attn_q,
            kv,
            attn_output: loader.linear(&[Candidate::whole(stem("attn_output"), width)], width, queries, false)?,
            q_norm: norm("attn_q_norm", heads)?,
            sinks: plan
                .sinks
                .then(|| loader.backend().vector(loader.vector(&stem("attn_sinks"), heads)?))
                .transpose()?,
            norms_after_rope: plan.qk_norms == Some(QkNorms::EachHeadAfterRope),
            shape: plan.shape(),
            ropes: [rope.and(query_rope).or(rope), rope],
            rope_layout,
            output_gate,
        })
    }

    /// Writes the keys and values of the tokens to the KV cache, unless they are those of another layer, and returns the attention of the
    /// tokens.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        normed: Tensor<B>,
        angles: &[Angles<B>],
        KvLayer { arena, batch, layer }: KvLayer<'_, B>,
    ) -> Result<Tensor<B>> {
        let Projected { q, kv, gate } = self.project(ctx, &normed, angles)?;
        drop(normed);
        if let Some([k, v]) = kv {
            ctx.write_kv(arena, layer, batch, [&k, &v])?;
        }
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
        let Some(own) = &self.kv else { return Ok(()) };
        let [k, v] = match &own.attn_v {
            Some(attn_v) => Linear::forward_all(ctx, [&own.attn_k, attn_v], normed)?,
            None => with_copy(ctx, own.attn_k.forward(ctx, normed)?)?,
        };
        let [k, v] = self.place_kv(ctx, own, [k, v], angles)?;
        ctx.write_kv(arena, layer, batch, [&k, &v])
    }

    fn project(&self, ctx: &Context<'_, B>, normed: &Tensor<B>, angles: &[Angles<B>]) -> Result<Projected<B>> {
        let (mut q, kv) = match &self.kv {
            None => (self.attn_q.forward(ctx, normed)?, None),
            Some(own @ KeysAndValues { attn_k, attn_v: Some(attn_v), .. }) => {
                let [q, k, v] = Linear::forward_all(ctx, [&self.attn_q, attn_k, attn_v], normed)?;
                (q, Some((own, [k, v])))
            }
            Some(own @ KeysAndValues { attn_k, attn_v: None, .. }) => {
                let [q, k] = Linear::forward_all(ctx, [&self.attn_q, attn_k], normed)?;
                (q, Some((own, with_copy(ctx, k)?)))
            }
        };
        let mut gate = None;
        if self.output_gate {
            let [queries, gates] = self.split_queries(ctx, q)?;
            (q, gate) = (queries, Some(gates));
        }
        let q = self.place(
            ctx,
            q,
            self.q_norm.as_ref(),
            self.shape.heads,
            self.ropes[0].and_then(|index| angles.get(index)),
        )?;
        let kv = kv.map(|(own, kv)| self.place_kv(ctx, own, kv, angles)).transpose()?;
        Ok(Projected { q, kv, gate })
    }

    /// Normalizes keys and values, and rotates the keys to their positions.
    fn place_kv(
        &self,
        ctx: &Context<'_, B>,
        own: &KeysAndValues<B>,
        [k, v]: [Tensor<B>; 2],
        angles: &[Angles<B>],
    ) -> Result<[Tensor<B>; 2]> {
        let v = match &own.v_norm {
            Some(norm) => ctx.norm(norm, &v)?,
            None => v,
        };
        Ok([
            self.place(
                ctx,
                k,
                own.k_norm.as_ref(),
                self.shape.kv_heads,
                self.ropes[1].and_then(|index| angles.get(index)),
            )?,
            v,
        ])
    }

    /// Normalizes the queries or keys of `heads` heads, and rotates them to their positions.
    fn place(
        &self,
        ctx: &Context<'_, B>,
        mut x: Tensor<B>,
        norm: Option<&GroupedNorm<B>>,
        heads: usize,
        angles: Option<&Angles<B>>,
    ) -> Result<Tensor<B>> {
        let (before, after) = if self.norms_after_rope { (None, norm) } else { (norm, None) };
        if let Some(norm) = before {
            x = norm.forward(ctx, &x)?;
        }
        if let Some(angles) = angles {
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

/// The norm of each head of values, which has no weights.
fn value_norm<B: PagedAttention>(loader: &Loader<'_, B>, config: &DecoderConfig, head_width: usize) -> Result<Norm<B>> {
    let weight = loader.backend().vector(vec![1.; head_width])?;
    Ok(Norm { kind: config.norm.kind, weight, bias: None, epsilon: config.norm.epsilon })
}

/// Products that are keys and values.
fn with_copy<B: PagedAttention>(ctx: &Context<'_, B>, k: Tensor<B>) -> Result<[Tensor<B>; 2]> {
    let v = ctx.copy(&k)?;
    Ok([k, v])
}

/// `attention · sigmoid(gate)`
fn gated<B: PagedAttention>(ctx: &Context<'_, B>, attention: Tensor<B>, gate: Option<Tensor<B>>) -> Result<Tensor<B>> {
    let Some(mut gate) = gate else { return Ok(attention) };
    ctx.activate(Activation::Sigmoid, &mut gate, Some(&attention))?;
    Ok(gate)
}

impl Attention<Candle> {
    /// The attention of whole texts, without a cache and with a graph of its operations, and their keys and values. `shared`: those of the
    /// layer that this one reads.
    pub fn forward_texts(
        &self,
        ctx: &Context<'_, Candle>,
        normed: &Tensor<Candle>,
        texts: &[Range<usize>],
        angles: &[Angles<Candle>],
        shared: Option<[Tensor<Candle>; 2]>,
    ) -> Result<(Tensor<Candle>, [Tensor<Candle>; 2])> {
        let Projected { q, kv, gate } = self.project(ctx, normed, angles)?;
        let missing = || ModelError::Compute("a layer has no keys and values".to_owned());
        let [k, v] = kv.or(shared).ok_or_else(missing)?;
        let mixed = gated(ctx, ctx.text_attention(texts, &self.shape, self.sinks.as_ref(), [&q, &k, &v])?, gate)?;
        Ok((mixed, [k, v]))
    }
}
