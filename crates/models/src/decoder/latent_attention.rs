//! Multi-head latent attention (DeepSeek-AI 2024, <https://arxiv.org/abs/2405.04434>).
//!
//! All heads share one latent vector for each position. The cache holds that vector, and one key that is rotated. The projection from
//! the latent vector to the keys of a head is applied to its queries instead, and the projection to its values is applied to the sums.
//! The heads therefore have one common key-value head: its keys are the latent vector followed by the rotated key. The values are the
//! latent vector alone, so the end of each sum is dropped.

use std::ops::Range;

use super::attention::KvLayer;
use crate::backend::{Angles, AttentionShape, Candle, Norm, PagedAttention, RopeLayout, Tensor};
use crate::decoder_config::{AttentionConfig, DecoderConfig, LatentConfig};
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::{Candidate, Loader};

#[derive(Debug)]
pub(super) struct LatentAttention<B: PagedAttention> {
    /// The projection to the latent vector of queries, and its norm.
    query_latent: Option<(Linear<B>, Norm<B>)>,
    /// The projections to the parts of all queries that are not rotated, and to those that are.
    queries: [Linear<B>; 2],
    latent: Linear<B>,
    latent_norm: Norm<B>,
    /// The projection to the key that is rotated.
    rotated_key: Linear<B>,
    /// For each head: from the part of its query that is not rotated to the width of the latent vector.
    absorbed_keys: Vec<Linear<B>>,
    /// For each head: from the latent vector to its values.
    values: Vec<Linear<B>>,
    pub attn_output: Linear<B>,
    shape: AttentionShape,
    config: LatentConfig,
    rope: Option<usize>,
    rope_layout: RopeLayout,
}

impl<B: PagedAttention> LatentAttention<B> {
    pub fn load(
        loader: &Loader<'_, B>,
        decoder: &DecoderConfig,
        layer: usize,
        plan: &AttentionConfig,
        config: &LatentConfig,
    ) -> Result<Self> {
        let DecoderConfig { width, norm: spec, .. } = *decoder;
        let AttentionConfig { heads, biases, .. } = *plan;
        let LatentConfig { query_rank, rank, unrotated, rotated, value_width } = *config;
        let stem = |suffix: &str| format!("blk.{layer}.{suffix}");
        let query_latent = |rank| {
            let linear = loader.linear(&[Candidate::whole(stem("attn_q_a"), rank)], rank, width, biases)?;
            Ok::<_, crate::error::ModelError>((linear, Norm::load(loader, &stem("attn_q_a_norm"), rank, spec)?))
        };
        let (query_stem, query_inputs) = match query_rank {
            Some(rank) => (stem("attn_q_b"), rank),
            None => (stem("attn_q"), width),
        };
        // A head has the rows that are not rotated first.
        let query_width = unrotated + rotated;
        let queries = |part: Range<usize>| {
            let of_heads: Vec<_> =
                (0..heads).map(|head| head * query_width + part.start..head * query_width + part.end).collect();
            loader.gathered(&query_stem, &of_heads, [heads * query_width, query_inputs])
        };
        let key = |first: usize, rows: usize| {
            let fused = Candidate { stem: stem("attn_kv_a_mqa"), first, total: rank + rotated };
            loader.linear(&[fused], rows, width, biases)
        };
        let [absorbed_keys, values] = load_heads(loader, layer, heads, config)?;
        let output = [Candidate::whole(stem("attn_output"), width)];
        Ok(Self {
            query_latent: query_rank.map(query_latent).transpose()?,
            queries: [queries(0..unrotated)?, queries(unrotated..query_width)?],
            latent: key(0, rank)?,
            latent_norm: Norm::load(loader, &stem("attn_kv_a_norm"), rank, spec)?,
            rotated_key: key(rank, rotated)?,
            absorbed_keys,
            values,
            attn_output: loader.linear(&output, width, heads * value_width, false)?,
            shape: plan.shape(),
            config: *config,
            rope: plan.rope,
            rope_layout: plan.rope_layout,
        })
    }

    /// Writes the keys of the tokens to the KV cache, and returns the attention of the tokens.
    pub fn forward(
        &self,
        ctx: &Context<'_, B>,
        normed: Tensor<B>,
        angles: &[Angles<B>],
        KvLayer { arena, batch, layer }: KvLayer<'_, B>,
    ) -> Result<Tensor<B>> {
        let (q, k) = self.project(ctx, &normed, angles)?;
        drop(normed);
        ctx.write_kv(arena, layer, batch, [&k, &k])?;
        drop(k);
        self.project_values(ctx, ctx.kv_attention(arena, layer, batch, &self.shape, None, &q)?)
    }

    /// The queries, `[1, tokens, 1, heads · (rank + rotated)]`, and the keys, `[1, tokens, 1, rank + rotated]`.
    fn project(
        &self,
        ctx: &Context<'_, B>,
        normed: &Tensor<B>,
        angles: &[Angles<B>],
    ) -> Result<(Tensor<B>, Tensor<B>)> {
        let LatentConfig { rotated, .. } = self.config;
        let (tokens, heads) = (normed.rows(), self.shape.heads);
        let [latent, mut rotated_key] = Linear::forward_all(ctx, [&self.latent, &self.rotated_key], normed)?;
        let latent = ctx.norm(&self.latent_norm, &latent)?;
        let query_latent = match &self.query_latent {
            Some((linear, norm)) => Some(ctx.norm(norm, &linear.forward(ctx, normed)?)?),
            None => None,
        };
        let [unrotated, rotated_queries] = &self.queries;
        let [unrotated, mut rotated_queries] =
            Linear::forward_all(ctx, [unrotated, rotated_queries], query_latent.as_ref().unwrap_or(normed))?;
        if let Some(angles) = self.rope.and_then(|index| angles.get(index)) {
            ctx.rope(&mut rotated_key, 1, self.rope_layout, angles)?;
            ctx.rope(&mut rotated_queries, heads, self.rope_layout, angles)?;
        }
        let absorbed = self.for_each_head(ctx, &self.absorbed_keys, unrotated)?;
        let rotated_queries = ctx.reshape(rotated_queries, [1, tokens * heads, 1, rotated])?;
        let queries = ctx.concat_channels(&absorbed, &rotated_queries)?;
        let queries = ctx.reshape(queries, [1, tokens, 1, heads * self.shape.width])?;
        Ok((queries, ctx.concat_channels(&latent, &rotated_key)?))
    }

    /// Projects the sums of latent vectors, `[1, tokens, 1, heads · (rank + rotated)]`, to the values of the heads.
    fn project_values(&self, ctx: &Context<'_, B>, sums: Tensor<B>) -> Result<Tensor<B>> {
        let LatentConfig { rank, value_width, .. } = self.config;
        let (tokens, heads, width) = (sums.rows(), self.shape.heads, self.shape.width);
        // Only whole rows can be dropped.
        let run = greatest_common_divisor(rank, width);
        let runs = ctx.reshape(sums, [1, tokens * heads * width / run, 1, run])?;
        let kept: Vec<usize> =
            (0..tokens * heads).flat_map(|row| row * width / run..row * width / run + rank / run).collect();
        let latent = ctx.reshape(ctx.gather_rows(&runs, &kept)?, [1, tokens, 1, heads * rank])?;
        let values = self.for_each_head(ctx, &self.values, latent)?;
        ctx.reshape(values, [1, tokens, 1, heads * value_width])
    }

    /// Applies a projection to the part of each head in `x`, `[1, tokens, 1, heads · inputs]`. The result is `[1, tokens · heads, 1,
    /// outputs]`.
    fn for_each_head(&self, ctx: &Context<'_, B>, projections: &[Linear<B>], x: Tensor<B>) -> Result<Tensor<B>> {
        let (tokens, heads) = (x.rows(), projections.len());
        let inputs = x.channels / heads.max(1);
        let outputs = projections.first().map_or(0, Linear::rows);
        let parts = ctx.reshape(x, [1, tokens * heads, 1, inputs])?;
        let mut by_head = ctx.zeros([1, heads * tokens, 1, outputs])?;
        for (head, projection) in projections.iter().enumerate() {
            let rows: Vec<usize> = (0..tokens).map(|token| token * heads + head).collect();
            let y = projection.forward(ctx, &ctx.gather_rows(&parts, &rows)?)?;
            ctx.write_rows(&mut by_head, head * tokens, &y)?;
        }
        if tokens == 1 {
            return Ok(by_head);
        }
        let by_token = (0..tokens).flat_map(|token| (0..heads).map(move |head| head * tokens + token));
        ctx.gather_rows(&by_head, &by_token.collect::<Vec<_>>())
    }
}

impl LatentAttention<Candle> {
    /// The attention of whole texts, without a cache and with a graph of its operations.
    pub fn forward_texts(
        &self,
        ctx: &Context<'_, Candle>,
        normed: &Tensor<Candle>,
        texts: &[Range<usize>],
        angles: &[Angles<Candle>],
    ) -> Result<Tensor<Candle>> {
        let (q, k) = self.project(ctx, normed, angles)?;
        self.project_values(ctx, ctx.text_attention(texts, &self.shape, None, [&q, &k, &k])?)
    }
}

/// Loads the projections of each head to keys, transposed, and to values. GGUF files have them like this. Hugging Face's and old GGUF
/// files have one projection to the keys and values of all heads.
fn load_heads<B: PagedAttention>(
    loader: &Loader<'_, B>,
    layer: usize,
    heads: usize,
    config: &LatentConfig,
) -> Result<[Vec<Linear<B>>; 2]> {
    let LatentConfig { rank, unrotated, value_width, .. } = *config;
    let [keys, values, both] = ["attn_k_b", "attn_v_b", "attn_kv_b"].map(|suffix| format!("blk.{layer}.{suffix}"));
    let head_rows = unrotated + value_width;
    let is_split = loader.has(&keys);
    let absorbed_key = |head: usize| match is_split {
        true => {
            let part = Candidate { stem: keys.clone(), first: head * rank, total: heads * rank };
            loader.linear(&[part], rank, unrotated, false)
        }
        false => loader.transposed(&both, head * head_rows..head * head_rows + unrotated, [heads * head_rows, rank]),
    };
    let value = |head: usize| {
        let part = match is_split {
            true => Candidate { stem: values.clone(), first: head * value_width, total: heads * value_width },
            false => Candidate { stem: both.clone(), first: head * head_rows + unrotated, total: heads * head_rows },
        };
        loader.linear(&[part], value_width, rank, false)
    };
    Ok([(0..heads).map(absorbed_key).collect::<Result<_>>()?, (0..heads).map(value).collect::<Result<_>>()?])
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
