//! An upper bound of the memory that a step of a decoder needs besides weights and KV cache.

use super::backend::{AttentionShape, Recurrent, batch_rows};
use super::decoder_config::{DecoderConfig, LayerConfig, MixerConfig};
use super::kv::blocks_for;

/// The maximum size of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Tokens of all rows.
    pub tokens: usize,
    pub rows: usize,
    /// Tokens with logits.
    pub logits: usize,
}

/// An upper bound of the bytes that a step takes: [`CausalLm::forward`] and sampling from its logits.
///
/// It is the sum of the tensors of a step, the tables and states of attention, and the memory of sampling. Memory that is
/// not used at the same time is added too, because an allocator may not be able to reuse it.
///
/// [`CausalLm::forward`]: super::causal_lm::CausalLm::forward
pub fn scratch_bytes<B: Recurrent>(config: &DecoderConfig, backend: &B, limits: &StepLimits) -> u64 {
    let StepLimits { tokens, rows, logits } = *limits;
    let vocabulary = config.vocabulary;
    // A thread that samples has a list of all tokens with their weights, and another one for log probabilities.
    let sampling = backend.pool().threads() * 4 * vocabulary;
    let floats = expert_rows(config, tokens) * (angle_floats(config) + floats_per_token(config))
        + logits * vocabulary
        + sampling;
    // Addresses, lengths and scales of keys and values.
    let tables = rows * blocks_for(config.context) * 64;
    let attention =
        |shape| backend.kv_attention_bytes(&AttentionShape { window: None, ..shape }, tokens, config.context);
    let attention = config.attention().map(|layer| attention(layer.shape())).max().unwrap_or(0);
    let recurrences = config.recurrences().map(|shape| backend.recurrence_bytes(shape, tokens, rows));
    (floats * size_of::<f32>() + tables + attention.max(recurrences.max().unwrap_or(0))) as u64
}

/// The most rows that one operation computes, of `tokens` tokens: those of several experts, or all tokens.
fn expert_rows(config: &DecoderConfig, tokens: usize) -> usize {
    let experts = config.layers.iter().filter_map(|layer| layer.feed_forward.as_ref()?.experts());
    let used = experts.map(|experts| experts.routing.experts_per_token).max().unwrap_or(1);
    batch_rows(tokens).min(tokens * used.max(1))
}

/// Floats per token of the angles of rotary embeddings: a cosine and a sine of each rotated pair.
pub(super) fn angle_floats(config: &DecoderConfig) -> usize {
    config.ropes.iter().map(|rope| rope.rotated).sum()
}

/// An upper bound of the bytes that adapters add to a step of `tokens` tokens: the low-rank products of up to three layers
/// with the same input. `rank` is the largest rank of the adapters.
pub fn adapter_scratch_bytes(rank: usize, tokens: usize) -> u64 {
    (3 * tokens * rank.next_multiple_of(16) * size_of::<f32>()) as u64
}

/// Floats per token of the tensors of a layer without logits, and of quantised or rounded activations.
fn floats_per_token(config: &DecoderConfig) -> usize {
    // The buffers of tensors are reused for others, so each may be as large as the largest of them. At once, there are the
    // residual stream, the input and output of a sublayer, and two hidden layers, or queries, keys and values, or the inputs of
    // a convolution.
    let tensors = |queries: usize, inner: usize, count: usize| {
        let largest = config.width.max(queries).max(inner);
        count * largest + quantised_floats(largest)
    };
    let of_layer = |LayerConfig { mixer, feed_forward, parallel, .. }: &LayerConfig| {
        let queries = match mixer {
            // Queries and sums, each in two orders.
            Some(MixerConfig::Attention(attention)) if attention.latent.is_some() => 2 * attention.query_width(),
            Some(MixerConfig::Attention(attention)) if attention.output_gate => 2 * attention.query_width(),
            Some(MixerConfig::Attention(attention)) => attention.query_width(),
            Some(MixerConfig::ShortConv(_)) | None => config.width,
            Some(MixerConfig::DeltaNet(net)) => net.shape.inputs_len(),
            Some(MixerConfig::Mamba2(mamba)) => mamba.shape.inputs_len(),
        };
        // The input of a parallel feed-forward network is kept while attention computes.
        let shared = if *parallel { config.width } else { 0 };
        shared
            + match feed_forward {
                None => tensors(queries, 0, 5),
                Some(plan) => {
                    let dense = plan.dense().map_or(0, |dense| dense.inner);
                    // Beside experts, there are the normalized inputs of both, and the output of the dense network.
                    let both = if dense > 0 { 3 * config.width } else { 0 };
                    match plan.experts() {
                        None => tensors(queries, dense, 5),
                        // Also the scores of the router, selected experts, and the gathered inputs and outputs of an expert.
                        Some(experts) => {
                            let inner = dense.max(experts.inner).max(experts.shared.map_or(0, |shared| shared.inner));
                            both + tensors(queries, inner, 7) + experts.count + 8 * experts.routing.experts_per_token
                        }
                    }
                }
            }
    };
    // The parts of all layers, and copies of them while they are computed, in another order or of some tokens.
    let per_layer = config.per_layer.map_or(0, |plan| 4 * plan.width * config.layers.len());
    // The layer for multi-token prediction has inputs of the size of two embeddings, made of pairs of copies. The hidden states of all tokens
    // are kept meanwhile.
    let mtp = if config.mtp.is_some() { 12 * config.width } else { 0 };
    mtp + per_layer + config.layers.iter().map(of_layer).max().unwrap_or(0)
}

/// The memory, in floats, of `count` activations that are prepared for products: as bf16, and as 8-bit codes with 16 bytes
/// of statistics per block of 32.
fn quantised_floats(count: usize) -> usize {
    count.div_ceil(2) + count.div_ceil(8) * 3
}

#[cfg(test)]
mod tests {
    use super::StepLimits;
    use crate::backend::{Cpu, Routing};
    use crate::decoder_config::{DecoderConfig, FeedForwardConfig, MoeConfig, PerLayerConfig};
    use crate::decoder_family::Activation;

    fn scratch_bytes(config: &DecoderConfig, step: &StepLimits) -> u64 {
        super::scratch_bytes(config, &Cpu::new(2), step)
    }

    const STEP: StepLimits = StepLimits { tokens: 40, rows: 8, logits: 8 };

    #[test]
    fn buffers_that_are_used_together_are_covered() {
        // In the feed-forward network: residual stream, attention output, normalized input, gate, up and output of all
        // tokens; at the end, the logits.
        let floats = STEP.tokens * (4 * 64 + 2 * 128) + STEP.logits * 1_000;
        let bytes = scratch_bytes(&DecoderConfig::for_tests(), &STEP);
        assert!((4 * floats as u64..16 * floats as u64).contains(&bytes), "{bytes} bytes for {floats} floats");
    }

    #[test]
    fn every_limit_raises_the_bound() {
        let base = scratch_bytes(&DecoderConfig::for_tests(), &STEP);
        let check = |step: StepLimits, min_floats: usize| {
            let added = scratch_bytes(&DecoderConfig::for_tests(), &step) - base;
            assert!(added >= 4 * min_floats as u64, "{added} more bytes for {step:?}");
        };
        check(StepLimits { tokens: 41, ..STEP }, 4 * 64 + 2 * 128);
        check(StepLimits { logits: 9, ..STEP }, 1_000);
        check(StepLimits { rows: 9, ..STEP }, 512 / 16);
    }

    #[test]
    fn a_layer_for_multi_token_prediction_raises_the_bound() {
        let mut config = DecoderConfig::for_tests();
        config.mtp = Some(config.layers[0].clone());
        let added = scratch_bytes(&config, &STEP) - scratch_bytes(&DecoderConfig::for_tests(), &STEP);
        assert!(added >= 4 * 40 * 8 * 64, "hidden states, embeddings, both side by side, and the input of the layer");
    }

    #[test]
    fn a_parallel_feed_forward_network_raises_the_bound() {
        let mut config = DecoderConfig::for_tests();
        config.layers[1].parallel = true;
        let added = scratch_bytes(&config, &STEP) - scratch_bytes(&DecoderConfig::for_tests(), &STEP);
        assert_eq!(added, 4 * 40 * 64, "its input, while attention computes");
    }

    #[test]
    fn per_layer_embeddings_raise_the_bound() {
        let mut config = DecoderConfig::for_tests();
        config.per_layer = Some(PerLayerConfig { width: 32, activation: Activation::GeluTanh });
        let added = scratch_bytes(&config, &STEP) - scratch_bytes(&DecoderConfig::for_tests(), &STEP);
        assert!(added >= 4 * 40 * 3 * 2 * 32, "projections, embeddings, and both in the order of layers");
    }

    #[test]
    fn every_thread_raises_the_bound() {
        let bytes = |threads| super::scratch_bytes(&DecoderConfig::for_tests(), &Cpu::new(threads), &STEP);
        assert!(bytes(3) - bytes(2) >= 4 * 2 * 1_000, "each thread samples");
    }

    #[test]
    fn experts_are_counted_by_their_own_width() {
        let sparse = |inner| {
            let (activation, routing) = (Activation::Silu, Routing::softmax(2));
            let experts = MoeConfig {
                count: 4,
                inner,
                activation,
                gated: true,
                routing,
                selection_bias: false,
                biases: false,
                shared: None,
            };
            let mut config = DecoderConfig::for_tests();
            config.layers.iter_mut().for_each(|layer| layer.feed_forward = Some(FeedForwardConfig::Sparse(experts)));
            scratch_bytes(&config, &STEP)
        };
        assert!(sparse(256) - sparse(128) >= 4 * 40 * 2 * 128, "all tokens may select the same expert");
        assert!(sparse(256) < 4 << 20, "no layer is dense");
    }
}
