//! The memory of a training.

use super::options::{TrainingData, TrainingOptions, example_lengths};
use outpost_models::decoder_config::{DecoderConfig, LayerConfig, MixerConfig};
use outpost_models::training::activation_bytes;

/// Copies of an adapter's parameters in f32: the parameters, their gradients, two moments of the optimizer, the variables on
/// the device, and two saved states with an adapter each that wait to be written.
const PARAMETER_COPIES: u64 = 5 + 2 * 4;

/// The memory of a training besides the base model's weights.
pub struct Memory<'a> {
    config: &'a DecoderConfig,
    /// An upper bound of the bytes of an adapter's parameters.
    adapter: u64,
    /// Tokens of the largest example and of the longest text.
    largest: usize,
    longest: usize,
    /// Max tokens of a batch.
    batch: usize,
}

impl<'a> Memory<'a> {
    pub fn new(config: &'a DecoderConfig, data: &TrainingData, options: &TrainingOptions) -> Self {
        let lengths = |texts| example_lengths(texts, options.method);
        let largest = lengths(&data.training).chain(lengths(&data.validation)).max().unwrap_or(0);
        let longest = data.training.iter().chain(&data.validation).map(|text| text.tokens.len()).max().unwrap_or(0);
        let bin = options.packed_length.map_or(largest, |length| largest.max(length as usize));
        let batch = (options.batch_size as usize).saturating_mul(bin);
        let adapter = adapter_bytes(config, options.rank as usize);
        Self { config, adapter, largest, longest, batch }
    }

    /// The ways to compute a batch, fastest first: the max tokens at once, and whether the graphs of all layers are kept.
    /// `fixed`: the max tokens, if they are given.
    pub fn choices(&self, fixed: Option<usize>) -> Vec<(usize, bool)> {
        let mut sizes = Vec::new();
        match fixed {
            Some(tokens) => sizes.push(tokens),
            None => {
                let mut tokens = self.batch;
                while tokens > self.largest {
                    sizes.push(tokens);
                    tokens /= 2;
                }
                sizes.push(self.largest);
            }
        }
        let kept = sizes.iter().map(|tokens| (*tokens, true));
        kept.chain(sizes.iter().map(|tokens| (*tokens, false))).collect()
    }

    /// An upper bound of the bytes.
    pub fn bytes(&self, tokens: usize, keep_graphs: bool) -> u64 {
        let tokens = tokens.max(self.largest);
        PARAMETER_COPIES * self.adapter + activation_bytes(self.config, tokens, self.longest, keep_graphs)
    }
}

/// An upper bound of the bytes of an adapter of all layers' linear modules in f32.
fn adapter_bytes(config: &DecoderConfig, rank: usize) -> u64 {
    let width = config.width;
    let of_layer = |LayerConfig { mixer, feed_forward, .. }: &LayerConfig| {
        let mixer = match mixer {
            None => 0,
            Some(MixerConfig::Attention(attention)) => {
                let gate = if attention.output_gate { attention.query_width() } else { 0 };
                gate + (width + attention.query_width()) * 2 + (width + attention.kv_width()) * 2
            }
            // One module for the three inputs, and one for the output.
            Some(MixerConfig::ShortConv(_)) => 4 * width + 2 * width,
            Some(MixerConfig::DeltaNet(net)) => {
                let outputs = net.shape.inputs_len() + net.shape.values_len() + 2 * net.shape.value_heads;
                5 * width + outputs + net.shape.values_len()
            }
            Some(MixerConfig::Mamba2(mamba)) => {
                2 * width + mamba.input_sizes().iter().sum::<usize>() + mamba.shape.values_len()
            }
        };
        let inner = match feed_forward {
            None => 0,
            Some(plan) => {
                // Of experts, only one that computes every token has adapters.
                let shared = plan.experts().and_then(|experts| experts.shared);
                shared.map_or(0, |shared| shared.inner) + plan.dense().map_or(0, |dense| dense.inner)
            }
        };
        let per_layer = config.per_layer.map_or(0, |plan| 2 * (width + plan.width));
        mixer + (width + inner) * 3 + per_layer
    };
    let sums: usize = config.layers.iter().map(of_layer).sum();
    (rank * sums * size_of::<f32>()) as u64
}

#[cfg(test)]
mod tests {
    use super::Memory;
    use outpost_models::decoder_config::{DecoderConfig, DecoderSizes};

    #[test]
    fn kept_graphs_and_large_batches_are_preferred() {
        let sizes =
            DecoderSizes { layers: 2, width: 64, inner: 128, heads: 4, kv_heads: 2, head_width: 16, vocabulary: 1_000 };
        let config = DecoderConfig::dense(&sizes, 512);
        let memory = Memory { config: &config, adapter: 1000, largest: 100, longest: 100, batch: 400 };
        let expected = [400, 200, 100].map(|tokens| (tokens, true));
        let choices = memory.choices(None);
        assert_eq!(choices[..3], expected);
        assert_eq!(choices[3..], expected.map(|(tokens, _)| (tokens, false)));
        let bytes: Vec<u64> = choices.iter().map(|(tokens, kept)| memory.bytes(*tokens, *kept)).collect();
        assert!(bytes[0] > bytes[2] && bytes[0] > bytes[3] && bytes[3] > bytes[5], "{bytes:?}");
        assert_eq!(memory.choices(Some(150)), [(150, true), (150, false)]);
    }
}
