//! An upper bound of the memory that training takes for activations.

use crate::backend::RecurrenceShape;
use crate::decoder_config::{DecoderConfig, LayerConfig, MixerConfig};

/// Bytes of the logits of the output projection that are computed at once, with their gradient and copies.
const HEAD_BYTES: u64 = 6 * (4 << 20) * size_of::<f32>() as u64;

/// An upper bound of the bytes for computing `tokens` tokens at once, forward and backward, in texts of up to `longest`
/// tokens.
pub fn activation_bytes(config: &DecoderConfig, tokens: usize, longest: usize, keep_graphs: bool) -> u64 {
    let (width, layer_count) = (config.width, config.layers.len());
    // The graph of a layer: the intermediate results of norms, projections with their low-rank products, RoPE, attention
    // with its scores, and the feed-forward network.
    let of_layer = |LayerConfig { mixer, feed_forward, .. }: &LayerConfig| {
        let inner = match feed_forward {
            None => 0,
            Some(plan) => {
                let experts = plan.experts().map_or(0, |experts| {
                    let shared = experts.shared.map_or(0, |shared| shared.inner);
                    experts.inner * experts.routing.experts_per_token + shared
                });
                experts + plan.dense().map_or(0, |dense| dense.inner)
            }
        };
        let mixer = match mixer {
            None => 0,
            Some(MixerConfig::Attention(attention)) => {
                let gates = if attention.output_gate { 2 } else { 1 };
                let projections = gates * attention.query_width() + 2 * attention.kv_width();
                6 * projections + 4 * attention.heads * longest.min(tokens)
            }
            // The projections, their products, and a product for each step of the kernel.
            Some(MixerConfig::ShortConv(conv)) => 6 * 3 * width + (2 * conv.kernel + 4) * width,
            Some(MixerConfig::Mamba2(mamba)) => recurrence_floats(&mamba.shape, mamba.kernel),
            Some(MixerConfig::DeltaNet(net)) => recurrence_floats(&net.shape, net.kernel),
        };
        16 * width + mixer + 6 * inner
    };
    let graph = config.layers.iter().map(of_layer).max().unwrap_or(0);
    // The gates of per-layer embeddings, and the parts of all layers.
    let (gates, parts) =
        config.per_layer.map_or((0, 0), |plan| (6 * plan.width + 6 * width, 4 * plan.width * layer_count));
    let graph = graph + gates;
    // Keys and values that other layers read, and their gradients.
    let sources = (0..layer_count).filter(|layer| config.is_kv_source(*layer));
    let shared: usize = sources.filter_map(|layer| Some(4 * config.layers.get(layer)?.attention()?.kv_width())).sum();
    // The backward pass has a gradient for each of them.
    let layers = if keep_graphs { layer_count + 1 } else { 2 };
    let floats = tokens * (layers * graph + (layer_count + 4) * width + parts + shared);
    (floats * size_of::<f32>()) as u64 + HEAD_BYTES
}

/// Floats per token of the graph of a recurrence and its convolution: the projections, their products, a product for each step of
/// the kernel, and for each head of values the matrices of a chunk of 64 tokens, their products, and the states. Most texts have at
/// least 16 tokens.
fn recurrence_floats(shape: &RecurrenceShape, kernel: usize) -> usize {
    let (inputs, values) = (shape.inputs_len(), shape.values_len());
    let chunk = shape.value_heads * 64 * 24 + 12 * values + 6 * shape.state_len() / 16;
    (2 * kernel + 16) * inputs + 8 * values + chunk
}
