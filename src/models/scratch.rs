//! Memory that a step computes in, beside weights, keys and values: what it is, and how much at most.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outpost_kernels::{Pool, attend_bytes};

use super::attention;
use super::decoder_config::{DecoderConfig, MoeConfig};
use super::kv::blocks_for;

/// What computes: threads, and memory that stays from one step to the next, for fresh pages would cost
/// more than some of the work. All models share one, since they compute one at a time.
#[derive(Debug)]
pub struct Cpu {
    pool: Pool,
    scratch: Mutex<Scratch>,
}

impl Cpu {
    pub fn new(threads: usize) -> Self {
        Self::of(Pool::new(threads))
    }

    pub fn of(pool: Pool) -> Self {
        Self { pool, scratch: Mutex::default() }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What goes through a block, by row of the step. Contents are of no meaning between steps.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// `[rows, width]`: the stream that blocks add to.
    pub x: Vec<f32>,
    /// `[rows, width]`: the stream as a sublayer takes it.
    pub normed: Vec<f32>,
    /// `[rows, heads * head_width]`
    pub q: Vec<f32>,
    /// `[rows, kv_heads * head_width]`
    pub k: Vec<f32>,
    pub v: Vec<f32>,
    /// What attention mixed, as much as `q`.
    pub mixed: Vec<f32>,
    /// `[rows, width]`: what a sublayer gives, until the next norm adds it.
    pub y: Vec<f32>,
    /// `[rows, inner]`
    pub gate: Vec<f32>,
    pub up: Vec<f32>,
    /// `[wanted rows, vocabulary]`
    pub logits: Vec<f32>,
}

/// The first `len` places of a buffer, which grows if it must.
pub(super) fn grow(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if let Some(more) = len.checked_sub(buffer.len()) {
        buffer.reserve_exact(more);
        buffer.resize(len, 0.);
    }
    &mut buffer[..len]
}

/// The most that a step may be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens of all rows together.
    pub tokens: usize,
    pub rows: usize,
    /// Distributions that are wanted.
    pub logits: usize,
    /// Threads that compute.
    pub threads: usize,
}

/// An upper bound of the bytes that a step takes: [`CausalLm::forward`], and choosing tokens from its logits.
///
/// Added up are the buffers of [`Scratch`] at their longest, the tables and states of attention, and what
/// choosing takes. What lives after each other is added too, for an allocator may keep what the one has
/// freed and have no use for it in the other.
///
/// [`CausalLm::forward`]: super::causal_lm::CausalLm::forward
pub fn scratch_bytes(config: &DecoderConfig, most: &StepLimits) -> u64 {
    let StepLimits { tokens, rows, logits, threads } = *most;
    let DecoderConfig { vocabulary, head_width, .. } = *config;
    // Cosines and sines of half a head each, in vectors that grew by doubling.
    let angles = 2 * head_width * config.ropes.len();
    // A thread that chooses lists all tokens with their weights, and once more for log-probabilities.
    let floats = tokens * (angles + floats_per_token(config)) + logits * vocabulary + threads * 4 * vocabulary;
    // Keys' and values' addresses, lengths and scales.
    let tables = rows * blocks_for(config.context) * 64;
    let attention = attend_bytes(threads, &attention::decoder_shape(config, None), tokens, config.context);
    (floats * size_of::<f32>() + tables + attention) as u64
}

/// Numbers of [`Scratch`] for each token, logits aside, and those made ready for products.
fn floats_per_token(config: &DecoderConfig) -> usize {
    let DecoderConfig { width, .. } = *config;
    let (queries, kv) = (config.heads * config.head_width, config.kv_heads * config.head_width);
    // Norms exchange buffers, so each of four becomes as long as the longest.
    let attention = width + 4 * width.max(queries) + queries + kv;
    let gated = |inner: usize| 2 * inner + packed_floats(width.max(queries).max(inner));
    // The router's scores, and who takes which; the tokens of an expert and its outputs.
    let sparse = |sizes: &MoeConfig| gated(sizes.inner) + sizes.count + 8 * sizes.experts_per_token + 2 * width;
    let dense = if config.layers.iter().all(|layer| layer.sparse) { 0 } else { gated(config.inner) };
    attention + dense.max(config.experts.as_ref().map_or(0, sparse))
}

/// Numbers' worth of memory of `count` numbers made ready for products: as bf16, and as bytes with 16 bytes
/// of facts for each 32.
fn packed_floats(count: usize) -> usize {
    count.div_ceil(2) + count.div_ceil(8) * 3
}

#[cfg(test)]
mod tests {
    use super::{StepLimits, scratch_bytes};
    use crate::models::decoder_config::{DecoderConfig, LayerConfig, MoeConfig};
    use crate::models::decoder_family::{Activation, FAMILIES};
    use crate::models::rope::RopeStyle;

    fn config() -> DecoderConfig {
        DecoderConfig {
            family: &FAMILIES[0],
            layer_count: 2,
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
            layers: vec![LayerConfig { rope: None, window: None, sparse: false }; 2],
            activation: Activation::Silu,
            embedding_scale: 1.,
            attention_scale: 0.25,
            attention_soft_cap: None,
            logit_soft_cap: None,
            experts: None,
            biases: false,
            norm_weight_offset: 0.,
            tied_embeddings: None,
        }
    }

    const STEP: StepLimits = StepLimits { tokens: 40, rows: 8, logits: 8, threads: 2 };

    #[test]
    fn what_lies_side_by_side_is_covered() {
        // In the feed-forward network of all tokens: the stream, what the heads mixed, the normed input, gate,
        // up, and the output; in the end the logits.
        let floats = STEP.tokens * (4 * 64 + 2 * 128) + STEP.logits * 1_000;
        let bytes = scratch_bytes(&config(), &STEP);
        assert!((4 * floats as u64..16 * floats as u64).contains(&bytes), "{bytes} for {floats} numbers");
    }

    #[test]
    fn every_size_counts() {
        let least = scratch_bytes(&config(), &STEP);
        let more = |step: StepLimits, least_more: usize| {
            let more = scratch_bytes(&config(), &step) - least;
            assert!(more >= 4 * least_more as u64, "{more} bytes more for {step:?}");
        };
        more(StepLimits { tokens: 41, ..STEP }, 4 * 64 + 2 * 128);
        more(StepLimits { logits: 9, ..STEP }, 1_000);
        more(StepLimits { threads: 3, ..STEP }, 2 * 1_000);
        more(StepLimits { rows: 9, ..STEP }, 512 / 16);
    }

    #[test]
    fn experts_count_by_their_own_width() {
        let sparse = |inner| {
            let layers = vec![LayerConfig { rope: None, window: None, sparse: true }; 2];
            let experts = Some(MoeConfig { count: 4, experts_per_token: 2, inner, normalise_weights: true });
            scratch_bytes(&DecoderConfig { experts, layers, inner: 1 << 20, ..config() }, &STEP)
        };
        assert!(sparse(256) - sparse(128) >= 4 * 40 * 2 * 128, "all tokens may choose the same expert");
        assert!(sparse(256) < 4 << 20, "no layer is dense");
    }
}
