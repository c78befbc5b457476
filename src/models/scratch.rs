//! How much memory a step takes beside weights, keys and values.

use outpost_kernels::attend_bytes;

use super::hyper::{ExpertSizes, Hyper};
use super::kv::blocks_for;

/// The most that a step may be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// Tokens of all rows together.
    pub tokens: usize,
    pub rows: usize,
    /// Distributions that are wanted.
    pub logits: usize,
    /// Threads that compute.
    pub threads: usize,
}

/// An upper bound of the bytes that a step takes: [`Llama::forward`], and choosing tokens from its logits.
///
/// Added up are the tokens' numbers at the widest moment of a block; the tables and states of attention;
/// and the distributions, as a matrix and as rows of their own. What lives after each other is added too,
/// for an allocator may keep what the one has freed and have no use for it in the other.
///
/// [`Llama::forward`]: super::llama::Llama::forward
pub fn scratch_bytes(hyper: &Hyper, most: &Largest) -> u64 {
    let Largest { tokens, rows, logits, threads } = *most;
    let Hyper { width, vocabulary, heads, kv_heads, head_width, .. } = *hyper;
    // Cosines and sines of half a head each, in vectors that grew by doubling.
    let angles = 2 * head_width * hyper.ropes.len();
    // A cap makes two more matrices, and lets go of the first.
    let copies = if hyper.output_cap.is_some() { 3 } else { 2 };
    let distribution = 2 * width + packed(width) + copies * vocabulary;
    // A thread that chooses lists all tokens with their weights, and once more for log-probabilities.
    let floats = tokens * (width + angles + block(hyper)) + logits * distribution + threads * 4 * vocabulary;
    // Keys' and values' addresses, lengths and scales.
    let tables = rows * blocks_for(hyper.context) * 64;
    let attention = attend_bytes(threads, [heads, kv_heads, head_width], tokens, hyper.context);
    (floats * size_of::<f32>() + tables + attention) as u64
}

/// Numbers that a token has in a block, beside those that come in: in attention or in what follows, whichever
/// are more.
fn block(hyper: &Hyper) -> usize {
    let Hyper { width, inner, .. } = *hyper;
    let (queries, kv) = (hyper.heads * hyper.head_width, hyper.kv_heads * hyper.head_width);
    // Queries once more: as they were before they were normed, then as what the heads mixed.
    let attention = width + packed(width) + 2 * queries + 2 * kv;
    // What the heads mixed, the normed input, the output twice (it is normed too); gate and up, and one of
    // them copied where only candle computes with the weights.
    let gated = |inner: usize| queries + 3 * width + 3 * inner + packed(width.max(inner));
    let sparse = |sizes: &ExpertSizes| {
        // The router's scores, their shares, and the shares sorted; the sum before and after an expert, the
        // tokens of an expert, and its outputs before they are weighted.
        gated(sizes.inner) + 5 * sizes.count + 4 * sizes.used + 4 * width
    };
    let dense = if hyper.layers.iter().all(|layer| layer.sparse) { 0 } else { gated(inner) };
    attention.max(dense).max(hyper.experts.as_ref().map_or(0, sparse))
}

/// Numbers' worth of memory of `count` numbers made ready for products: as floats in another order, and as
/// bytes with 16 bytes of facts for each 32.
fn packed(count: usize) -> usize {
    count + count.div_ceil(8) * 3
}

#[cfg(test)]
mod tests {
    use super::{Largest, scratch_bytes};
    use crate::models::family::{Activation, FAMILIES};
    use crate::models::hyper::{ExpertSizes, Hyper, Layer};
    use crate::models::rope::RopeStyle;

    fn hyper() -> Hyper {
        Hyper {
            family: &FAMILIES[0],
            blocks: 2,
            width: 64,
            heads: 4,
            kv_heads: 2,
            head_width: 16,
            inner: 128,
            vocabulary: 1_000,
            context: 512,
            epsilon: 1e-5,
            ropes: Vec::new(),
            rope_style: RopeStyle::Halves,
            layers: vec![Layer { rope: None, window: None, sparse: false }; 2],
            activation: Activation::Silu,
            embedding_scale: 1.,
            attention_scale: 0.25,
            attention_cap: None,
            output_cap: None,
            experts: None,
            biases: false,
            norm_shift: 0.,
            tied: None,
        }
    }

    const STEP: Largest = Largest { tokens: 40, rows: 8, logits: 8, threads: 2 };

    #[test]
    fn what_lies_side_by_side_is_covered() {
        // In the feed-forward network of all tokens: the stream, what the heads mixed, the normed input, gate,
        // up, and the output; in the end the logits as a matrix and as rows.
        let floats = STEP.tokens * (4 * 64 + 2 * 128) + 2 * STEP.logits * 1_000;
        let bytes = scratch_bytes(&hyper(), &STEP);
        assert!((4 * floats as u64..16 * floats as u64).contains(&bytes), "{bytes} for {floats} numbers");
    }

    #[test]
    fn every_size_counts() {
        let least = scratch_bytes(&hyper(), &STEP);
        let more = |step: Largest, least_more: usize| {
            let more = scratch_bytes(&hyper(), &step) - least;
            assert!(more >= 4 * least_more as u64, "{more} bytes more for {step:?}");
        };
        more(Largest { tokens: 41, ..STEP }, 4 * 64 + 2 * 128);
        more(Largest { logits: 9, ..STEP }, 2 * 1_000);
        more(Largest { threads: 3, ..STEP }, 2 * 1_000);
        more(Largest { rows: 9, ..STEP }, 512 / 16);
        let capped = Hyper { output_cap: Some(30.), ..hyper() };
        assert_eq!(scratch_bytes(&capped, &STEP) - least, 4 * 8 * 1_000);
    }

    #[test]
    fn experts_count_by_their_own_width() {
        let sparse = |inner| {
            let layers = vec![Layer { rope: None, window: None, sparse: true }; 2];
            let experts = Some(ExpertSizes { count: 4, used: 2, inner, normalised: true });
            scratch_bytes(&Hyper { experts, layers, inner: 1 << 20, ..hyper() }, &STEP)
        };
        assert!(sparse(256) - sparse(128) >= 4 * 40 * 2 * 128, "all tokens may choose the same expert");
        assert!(sparse(256) < 4 << 20, "no layer is dense");
    }
}
