//! Attention with relative position bias. Texts have a few hundred tokens, so the score matrix of a head fits in
//! memory.

use std::sync::OnceLock;

use outpost_kernels::{self as kernels, DType, Pool};

use super::T5Config;
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::embedding_table::EmbeddingTable;
use crate::models::error::ModelError;
use crate::models::weights::Loader;

/// Heads of each thread in a chunk of work.
const HEADS_PER_THREAD: usize = 4;

/// The relative position bias.
#[derive(Debug)]
pub(super) struct RelativeBias {
    /// `[buckets, heads]`
    table: EmbeddingTable,
    heads: usize,
    buckets: usize,
    max_distance: usize,
}

impl RelativeBias {
    pub fn load(loader: &Loader<'_>, stem: &str, config: &T5Config) -> Result<Self> {
        let T5Config { heads, buckets, max_distance, .. } = *config;
        Ok(Self { table: loader.table(stem, buckets, heads)?, heads, buckets, max_distance })
    }

    /// The bias for texts of `tokens` tokens, `[heads, 2 · tokens − 1]`. Columns are relative positions from `1 −
    /// tokens` to `tokens − 1`.
    pub fn for_length(&self, tokens: usize) -> Result<Vec<f32>> {
        let distances = 2 * tokens - 1;
        let Self { buckets, max_distance, .. } = *self;
        let buckets = (0..distances)
            .map(|column| bucket(buckets, max_distance, column.abs_diff(tokens - 1), column >= tokens) as u32);
        let mut rows = vec![0.; distances * self.heads];
        self.table.look_up(buckets, false, &mut rows)?;
        let head_bias = |head: usize| rows.iter().skip(head).step_by(self.heads).copied();
        Ok((0..self.heads).flat_map(head_bias).collect())
    }
}

/// The bucket of a distance. Short distances have a bucket each; longer ones share buckets of logarithmically growing
/// size. `forward`: whether the key is after the query.
fn bucket(buckets: usize, max_distance: usize, distance: usize, forward: bool) -> usize {
    let half = buckets / 2;
    let exact = half / 2;
    let bucket = if distance < exact {
        distance
    } else {
        let (ratio, max_ratio) = (distance as f32 / exact as f32, max_distance as f64 / exact as f64);
        let fraction = ratio.ln() / max_ratio.ln() as f32;
        (exact + (fraction * (half - exact) as f32) as usize).min(half - 1)
    };
    if forward { half + bucket } else { bucket }
}

/// Attention of each text. `q`, `k`, `v` and the result are `[texts, tokens, 1, heads · head_dim]`; `bias` is from
/// [`RelativeBias::for_length`].
pub(super) fn attend(
    ctx: &OpContext<'_>,
    [q, k, v]: [&FeatureMap; 3],
    heads: usize,
    bias: &[f32],
) -> Result<FeatureMap> {
    let (tokens, row) = (q.pixels(), q.channels);
    let (head_dim, distances) = (row / heads.max(1), bias.len() / heads.max(1));
    if head_dim == 0 || distances + 1 != 2 * tokens || k.len() != q.len() || v.len() != q.len() {
        return Err(ModelError::Compute(format!(
            "{row} channels do not fit {heads} heads, or {distances} distances do not fit {tokens} tokens"
        )));
    }
    let mut out = ctx.alloc(q.images, q.size, row);
    let texts = q.per_image().zip(k.per_image().zip(v.per_image())).zip(out.data_mut().chunks_exact_mut(tokens * row));
    let biases: Vec<&[f32]> = bias.chunks_exact(distances).collect();
    for ((q, (k, v)), out) in texts {
        for (chunk, biases) in biases.chunks(HEADS_PER_THREAD * ctx.pool.threads()).enumerate() {
            let first_head = chunk * HEADS_PER_THREAD * ctx.pool.threads();
            let outputs: Vec<OnceLock<HeadOutput>> = biases.iter().map(|_| OnceLock::new()).collect();
            ctx.pool.run(biases.len(), |index| {
                if let (Some(slot), Some(bias)) = (outputs.get(index), biases.get(index)) {
                    let qkv = [q, k, v].map(|x| columns(x, row, (first_head + index) * head_dim, head_dim));
                    slot.get_or_init(|| attend_head(ctx.pool, qkv, head_dim, bias));
                }
            });
            for (index, output) in outputs.into_iter().enumerate() {
                let output = output.into_inner().unwrap_or_else(|| Ok(Vec::new()));
                let output = output.map_err(|error| ModelError::Compute(error.to_string()))?;
                for (dst, src) in out.chunks_exact_mut(row).zip(output.chunks_exact(head_dim)) {
                    dst.iter_mut().skip((first_head + index) * head_dim).zip(src).for_each(|(dst, src)| *dst = *src);
                }
            }
            ctx.pause()?;
        }
    }
    Ok(out)
}

/// The output of one head: `[tokens, head_dim]`.
type HeadOutput = std::result::Result<Vec<f32>, kernels::Error>;

/// `count` elements of each row, starting at `first`.
fn columns(x: &[f32], row: usize, first: usize, count: usize) -> Vec<f32> {
    x.chunks_exact(row).flat_map(|row| row.iter().skip(first).take(count).copied()).collect()
}

/// Attention of one head. Queries, keys, values and the result are `[tokens, head_dim]`.
fn attend_head(pool: &Pool, [q, k, v]: [Vec<f32>; 3], head_dim: usize, bias: &[f32]) -> HeadOutput {
    let tokens = q.len() / head_dim;
    let mut scores = vec![0.; tokens * tokens];
    pack_matrix(pool, tokens, head_dim, &k)?.forward(pool, &q, tokens, &mut scores);
    for (row, scores) in scores.chunks_exact_mut(tokens).enumerate() {
        biased_softmax(scores, bias.iter().skip(tokens - 1 - row));
    }
    let transposed_v: Vec<f32> =
        (0..head_dim).flat_map(|column| v.iter().skip(column).step_by(head_dim).copied()).collect();
    let mut output = vec![0.; tokens * head_dim];
    pack_matrix(pool, head_dim, tokens, &transposed_v)?.forward(pool, &scores, tokens, &mut output);
    Ok(output)
}

/// The softmax of scores plus bias, in place.
fn biased_softmax<'a>(scores: &mut [f32], bias: impl Iterator<Item = &'a f32>) {
    scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - max).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// Packs a matrix, `[rows, columns]`.
fn pack_matrix(
    pool: &Pool,
    rows: usize,
    columns: usize,
    elements: &[f32],
) -> std::result::Result<kernels::Linear, kernels::Error> {
    kernels::Linear::pack(pool, DType::F32, rows, columns, |first, bytes| {
        let dst = bytes.chunks_exact_mut(size_of::<f32>());
        for (dst, src) in dst.zip(elements.iter().skip(first * columns)) {
            dst.copy_from_slice(&src.to_le_bytes());
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn buckets_match_transformers() {
        let bucket_starts = |max_distance: usize| -> Vec<usize> {
            let bucket_at = |distance| bucket(32, max_distance, distance, false);
            (1..600).filter(|distance| bucket_at(*distance) != bucket_at(distance - 1)).collect()
        };
        assert_eq!(bucket_starts(128), [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert_eq!(bucket_starts(512), [1, 2, 3, 4, 5, 6, 7, 8, 14, 23, 39, 64, 108, 182, 305]);
        assert_eq!(bucket(32, 128, 5, true), 16 + 5);
    }
}
