//! Scratch buffers of a step, and an upper bound of the memory that a step needs besides weights and KV cache.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outpost_kernels::{Pool, attend_bytes};

use super::attention;
use super::decoder_config::{DecoderConfig, MoeConfig};
use super::kv::blocks_for;

/// The threads and scratch buffers with which models compute. All models share one, because they compute one at a time.
/// The buffers are kept between steps, because new pages cost more than some of the work.
#[derive(Debug)]
pub struct Cpu {
    pool: Pool,
    scratch: Mutex<ScratchBuffers>,
}

impl Cpu {
    pub fn new(threads: usize) -> Self {
        Self::with_pool(Pool::new(threads))
    }

    pub fn with_pool(pool: Pool) -> Self {
        Self { pool, scratch: Mutex::default() }
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn scratch(&self) -> MutexGuard<'_, ScratchBuffers> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The activations of a layer, by token. The contents are undefined between steps.
#[derive(Debug, Default)]
pub(super) struct ScratchBuffers {
    /// The residual stream: `[tokens, width]`.
    pub x: Vec<f32>,
    /// The normalized input of a sublayer: `[tokens, width]`.
    pub normed: Vec<f32>,
    /// `[tokens, heads * head_width]`
    pub q: Vec<f32>,
    /// `[tokens, kv_heads * head_width]`
    pub k: Vec<f32>,
    /// `[tokens, kv_heads * head_width]`
    pub v: Vec<f32>,
    /// Output of the attention heads: `[tokens, heads * head_width]`.
    pub attention: Vec<f32>,
    /// Output of a sublayer, which the next norm adds to `x`: `[tokens, width]`.
    pub y: Vec<f32>,
    /// `[tokens, inner]`
    pub gate: Vec<f32>,
    /// `[tokens, inner]`
    pub up: Vec<f32>,
    /// `[tokens with logits, vocabulary]`
    pub logits: Vec<f32>,
}

/// Returns the first `len` elements of a buffer and extends it if necessary.
pub(super) fn grow(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    if let Some(more) = len.checked_sub(buffer.len()) {
        buffer.reserve_exact(more);
        buffer.resize(len, 0.);
    }
    &mut buffer[..len]
}

/// The maximum size of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens of all rows.
    pub tokens: usize,
    pub rows: usize,
    /// Tokens with logits.
    pub logits: usize,
    pub threads: usize,
}

/// An upper bound of the bytes that a step takes: [`CausalLm::forward`] and sampling from its logits.
///
/// It is the sum of the [`ScratchBuffers`] at their maximum sizes, the tables and states of attention, and the memory of
/// sampling. Memory that is not used at the same time is added too, because an allocator may not be able to reuse it.
///
/// [`CausalLm::forward`]: super::causal_lm::CausalLm::forward
pub fn scratch_bytes(config: &DecoderConfig, limits: &StepLimits) -> u64 {
    let StepLimits { tokens, rows, logits, threads } = *limits;
    let DecoderConfig { vocabulary, head_width, .. } = *config;
    // Cosines and sines of half a head each, in vectors that grow by doubling.
    let angles = 2 * head_width * config.ropes.len();
    // A thread that samples has a list of all tokens with their weights, and another one for log probabilities.
    let floats = tokens * (angles + floats_per_token(config)) + logits * vocabulary + threads * 4 * vocabulary;
    // Addresses, lengths and scales of keys and values.
    let tables = rows * blocks_for(config.context) * 64;
    let attention = attend_bytes(threads, &attention::decoder_shape(config, None), tokens, config.context);
    (floats * size_of::<f32>() + tables + attention) as u64
}

/// Floats per token of [`ScratchBuffers`] without logits, and of quantised or rounded activations.
fn floats_per_token(config: &DecoderConfig) -> usize {
    let DecoderConfig { width, .. } = *config;
    let (queries, kv) = (config.heads * config.head_width, config.kv_heads * config.head_width);
    // Norms swap buffers, so each of four buffers reaches the length of the longest.
    let attention = width + 4 * width.max(queries) + queries + kv;
    let gated = |inner: usize| 2 * inner + quantised_floats(width.max(queries).max(inner));
    // Scores of the router, selected experts, and the gathered inputs and outputs of an expert.
    let sparse = |sizes: &MoeConfig| gated(sizes.inner) + sizes.count + 8 * sizes.experts_per_token + 2 * width;
    let dense = if config.layers.iter().all(|layer| layer.sparse) { 0 } else { gated(config.inner) };
    attention + dense.max(config.experts.as_ref().map_or(0, sparse))
}

/// The memory, in floats, of `count` activations that are prepared for products: as bf16, and as 8-bit codes with 16 bytes
/// of statistics per block of 32.
fn quantised_floats(count: usize) -> usize {
    count.div_ceil(2) + count.div_ceil(8) * 3
}

#[cfg(test)]
mod tests {
    use super::{StepLimits, scratch_bytes};
    use crate::models::decoder_config::{DecoderConfig, LayerConfig, MoeConfig};
    use crate::models::decoder_family::{Activation, FAMILIES};
    use outpost_kernels::RopeLayout;

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
            rope_layout: RopeLayout::Halves,
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
    fn buffers_that_are_used_together_are_covered() {
        // In the feed-forward network: residual stream, attention output, normalized input, gate, up and output of all
        // tokens; at the end, the logits.
        let floats = STEP.tokens * (4 * 64 + 2 * 128) + STEP.logits * 1_000;
        let bytes = scratch_bytes(&config(), &STEP);
        assert!((4 * floats as u64..16 * floats as u64).contains(&bytes), "{bytes} bytes for {floats} floats");
    }

    #[test]
    fn every_limit_raises_the_bound() {
        let base = scratch_bytes(&config(), &STEP);
        let check = |step: StepLimits, min_floats: usize| {
            let added = scratch_bytes(&config(), &step) - base;
            assert!(added >= 4 * min_floats as u64, "{added} more bytes for {step:?}");
        };
        check(StepLimits { tokens: 41, ..STEP }, 4 * 64 + 2 * 128);
        check(StepLimits { logits: 9, ..STEP }, 1_000);
        check(StepLimits { threads: 3, ..STEP }, 2 * 1_000);
        check(StepLimits { rows: 9, ..STEP }, 512 / 16);
    }

    #[test]
    fn experts_are_counted_by_their_own_width() {
        let sparse = |inner| {
            let layers = vec![LayerConfig { rope: None, window: None, sparse: true }; 2];
            let experts = Some(MoeConfig { count: 4, experts_per_token: 2, inner, normalise_weights: true });
            scratch_bytes(&DecoderConfig { experts, layers, inner: 1 << 20, ..config() }, &STEP)
        };
        assert!(sparse(256) - sparse(128) >= 4 * 40 * 2 * 128, "all tokens may select the same expert");
        assert!(sparse(256) < 4 << 20, "no layer is dense");
    }
}
