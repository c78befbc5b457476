//! Attention with relative position bias. Texts have a few hundred tokens, so a head's score matrix fits in memory.

use std::sync::OnceLock;

use outpost_kernels::{self as kernels, DType, Pool};

use super::T5Config;
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::embedding_table::EmbeddingTable;
use crate::models::error::ModelError;
use crate::models::weights::Loader;

/// Heads in a chunk of work, for each thread.
const HEADS: usize = 4;

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

    /// Bias for texts of `tokens` tokens, `[heads, 2 · tokens − 1]`, indexed by relative position from `1 − tokens` on.
    pub fn of(&self, tokens: usize) -> Result<Vec<f32>> {
        let span = 2 * tokens - 1;
        let Self { buckets, max_distance, .. } = *self;
        let buckets = (0..span).map(|at| bucket(buckets, max_distance, at.abs_diff(tokens - 1), at >= tokens) as u32);
        let mut rows = vec![0.; span * self.heads];
        self.table.look_up(buckets, false, &mut rows)?;
        let head = |head: usize| rows.iter().skip(head).step_by(self.heads).copied();
        Ok((0..self.heads).flat_map(head).collect())
    }
}

/// Near distances have a bucket each; farther ones share buckets of logarithmically growing size.
fn bucket(buckets: usize, max_distance: usize, distance: usize, behind: bool) -> usize {
    let half = buckets / 2;
    let near = half / 2;
    let bucket = if distance < near {
        distance
    } else {
        let (times, most) = (distance as f32 / near as f32, max_distance as f64 / near as f64);
        let share = times.ln() / most.ln() as f32;
        (near + (share * (half - near) as f32) as usize).min(half - 1)
    };
    if behind { half + bucket } else { bucket }
}

/// Attention of each text; `q`, `k` and `v` are `[texts, tokens, 1, heads · width]`, `bias` is [`RelativeBias::of`] the
/// token count.
pub(super) fn attend(
    ctx: &OpContext<'_>,
    [q, k, v]: [&FeatureMap; 3],
    heads: usize,
    bias: &[f32],
) -> Result<FeatureMap> {
    let (tokens, row) = (q.pixels(), q.channels);
    let (width, span) = (row / heads.max(1), bias.len() / heads.max(1));
    if width == 0 || span + 1 != 2 * tokens || k.len() != q.len() || v.len() != q.len() {
        return Err(ModelError::Compute(format!(
            "{heads} heads of {row} numbers, and {span} distances of {tokens} tokens"
        )));
    }
    let mut out = ctx.alloc(q.images, q.size, row);
    let texts = q.per_image().zip(k.per_image().zip(v.per_image())).zip(out.data_mut().chunks_exact_mut(tokens * row));
    let biases: Vec<&[f32]> = bias.chunks_exact(span).collect();
    for ((q, (k, v)), out) in texts {
        for (group, biases) in biases.chunks(HEADS * ctx.pool.threads()).enumerate() {
            let first = group * HEADS * ctx.pool.threads();
            let mixed: Vec<OnceLock<Mixed>> = biases.iter().map(|_| OnceLock::new()).collect();
            ctx.pool.run(biases.len(), |index| {
                if let (Some(slot), Some(bias)) = (mixed.get(index), biases.get(index)) {
                    let part = [q, k, v].map(|x| columns(x, row, (first + index) * width, width));
                    slot.get_or_init(|| head(ctx.pool, part, width, bias));
                }
            });
            for (index, mixed) in mixed.into_iter().enumerate() {
                let mixed = mixed.into_inner().unwrap_or_else(|| Ok(Vec::new()));
                let mixed = mixed.map_err(|error| ModelError::Compute(error.to_string()))?;
                for (out, mixed) in out.chunks_exact_mut(row).zip(mixed.chunks_exact(width)) {
                    out.iter_mut().skip((first + index) * width).zip(mixed).for_each(|(to, from)| *to = *from);
                }
            }
            ctx.pause()?;
        }
    }
    Ok(out)
}

type Mixed = std::result::Result<Vec<f32>, kernels::Error>;

/// `count` elements of each row, starting at `first`.
fn columns(x: &[f32], row: usize, first: usize, count: usize) -> Vec<f32> {
    x.chunks_exact(row).flat_map(|row| row.iter().skip(first).take(count).copied()).collect()
}

/// One head; queries, keys, values and the result are `[tokens, width]`.
fn head(pool: &Pool, [q, k, v]: [Vec<f32>; 3], width: usize, bias: &[f32]) -> Mixed {
    let tokens = q.len() / width;
    let mut scores = vec![0.; tokens * tokens];
    matrix(pool, tokens, width, &k)?.forward(pool, &q, tokens, &mut scores);
    for (row, scores) in scores.chunks_exact_mut(tokens).enumerate() {
        biased_softmax(scores, bias.iter().skip(tokens - 1 - row));
    }
    let transposed: Vec<f32> = (0..width).flat_map(|at| v.iter().skip(at).step_by(width).copied()).collect();
    let mut mixed = vec![0.; tokens * width];
    matrix(pool, width, tokens, &transposed)?.forward(pool, &scores, tokens, &mut mixed);
    Ok(mixed)
}

/// Softmax of scores plus bias.
fn biased_softmax<'a>(scores: &mut [f32], bias: impl Iterator<Item = &'a f32>) {
    scores.iter_mut().zip(bias).for_each(|(score, bias)| *score += bias);
    let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = (*score - most).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// A matrix of these elements, `[rows, columns]`.
fn matrix(
    pool: &Pool,
    rows: usize,
    columns: usize,
    numbers: &[f32],
) -> std::result::Result<kernels::Linear, kernels::Error> {
    kernels::Linear::pack(pool, DType::F32, rows, columns, |first, to| {
        let places = to.chunks_exact_mut(size_of::<f32>());
        for (to, number) in places.zip(numbers.iter().skip(first * columns)) {
            to.copy_from_slice(&number.to_le_bytes());
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn distances_share_buckets_as_transformers_has_it() {
        let begins = |max_distance: usize| -> Vec<usize> {
            let at = |distance| bucket(32, max_distance, distance, false);
            (1..600).filter(|distance| at(*distance) != at(distance - 1)).collect()
        };
        assert_eq!(begins(128), [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]);
        assert_eq!(begins(512), [1, 2, 3, 4, 5, 6, 7, 8, 14, 23, 39, 64, 108, 182, 305]);
        assert_eq!(bucket(32, 128, 5, true), 16 + 5);
    }
}
