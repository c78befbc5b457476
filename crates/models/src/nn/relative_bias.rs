//! The bias of attention scores by relative position, as in T5 (Raffel et al. 2020, <https://arxiv.org/abs/1910.10683>).

use crate::backend::{Backend, EmbeddingTable, Tensor};
use crate::error::Result;
use crate::weights::Loader;

/// The relative position bias.
#[derive(Debug)]
pub(crate) struct RelativeBias {
    /// `[buckets, heads]`
    table: EmbeddingTable,
    heads: usize,
    buckets: usize,
    max_distance: usize,
}

impl RelativeBias {
    /// Reads the table of this stem, `[buckets, heads]`. Distances from `max_distance` on share a bucket.
    pub fn load<B: Backend>(
        loader: &Loader<'_, B>,
        stem: &str,
        [buckets, heads]: [usize; 2],
        max_distance: usize,
    ) -> Result<Self> {
        Ok(Self { table: loader.table(stem, buckets, heads)?, heads, buckets, max_distance })
    }

    /// The bias for texts of `tokens` tokens, `[1, heads, 1, 2 · tokens − 1]`. Columns are relative positions from `1 −
    /// tokens` to `tokens − 1`.
    pub fn for_length<B: Backend>(&self, backend: &B, tokens: usize) -> Result<Tensor<B>> {
        let distances = 2 * tokens - 1;
        let Self { buckets, max_distance, heads, .. } = *self;
        let buckets = (0..distances)
            .map(|column| bucket(buckets, max_distance, column.abs_diff(tokens - 1), column >= tokens) as u32);
        let mut rows = vec![0.; distances * heads];
        self.table.look_up(buckets, false, &mut rows)?;
        let head_bias = |head: usize| rows.iter().skip(head).step_by(heads).copied();
        let bias: Vec<f32> = (0..heads).flat_map(head_bias).collect();
        backend.tensor(&bias, [1, heads, 1, distances])
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
