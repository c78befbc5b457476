//! A dense decoder of known sizes, of which no file is there: what it needs.

use super::backend::{DType, Recurrent};
use super::decoder_config::{DecoderConfig, DecoderSizes};
use super::error::ModelError;
use super::kv::{KvShape, KvType, blocks_for};
use super::step_memory::{StepLimits, scratch_bytes};
use super::weights::{Footprint, Role, Rows, Weights};

/// How the weights of a GGUF file are quantized, by the name that files have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantization {
    /// Mostly 4 bits; some of the matrices have 6.
    Q4KM,
    Q8,
    F16,
}

/// A decoder without experts.
#[derive(Clone, Copy, Debug)]
pub struct DenseDecoder {
    pub sizes: DecoderSizes,
    /// The token embeddings are also the output projection.
    pub tied_embeddings: bool,
    pub quantization: Quantization,
}

/// Bytes of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryNeed {
    pub weights: u64,
    /// Only while the model is loaded.
    pub loading: u64,
    /// Keys and values of one sequence that fills the context.
    pub kv: u64,
    /// Buffers of a step.
    pub scratch: u64,
}

impl MemoryNeed {
    /// Memory that must be free to load the model and fill one context.
    pub fn total(&self) -> u64 {
        self.weights + self.scratch + self.loading.max(self.kv)
    }
}

impl DenseDecoder {
    /// The memory of the decoder on a device for a context of this many tokens.
    pub fn memory<B: Recurrent>(
        &self,
        context: usize,
        kv_type: KvType,
        limits: &StepLimits,
        backend: &B,
    ) -> MemoryNeed {
        let Footprint { weights, loading } = Footprint::new(self, backend);
        let config = DecoderConfig::dense(&self.sizes, context);
        let scratch = scratch_bytes(&config, backend, limits);
        MemoryNeed { weights, loading, kv: self.kv_bytes(context, kv_type), scratch }
    }

    /// Bytes of the keys and values of this many positions.
    pub fn kv_bytes(&self, positions: usize, kv_type: KvType) -> u64 {
        let DecoderSizes { layers, kv_heads, head_width, .. } = self.sizes;
        blocks_for(positions) as u64 * KvShape { layers, kv_heads, head_width, kv_type }.block_bytes()
    }

    /// The bytes of the matrices that a step for one token reads, by their types.
    pub fn bytes_read_per_token<B: Recurrent>(&self, backend: &B) -> Vec<(DType, u64)> {
        let names = self.names();
        let read = names.iter().filter(|name| self.tied_embeddings || *name != EMBEDDING);
        let matrices = read.filter_map(|name| {
            let [rows, columns] = self.shape(name)?.try_into().ok()?;
            let dtype = self.dtype(name)?;
            Some((dtype, backend.linear_bytes(dtype, rows, columns) as u64))
        });
        let mut sums: Vec<(DType, u64)> = Vec::new();
        for (dtype, bytes) in matrices {
            match sums.iter_mut().find(|(known, _)| *known == dtype) {
                Some((_, sum)) => *sum += bytes,
                None => sums.push((dtype, bytes)),
            }
        }
        sums
    }

    /// Whether llama.cpp's recipe for Q4_K_M gives the values and the last projection of a layer 6 bits.
    fn has_more_bits(&self, layer: usize) -> bool {
        let eighth = self.sizes.layers / 8;
        layer < eighth || layer >= 7 * self.sizes.layers / 8 || (layer - eighth) % 3 == 2
    }
}

const EMBEDDING: &str = "token_embd";
const OUTPUT: &str = "output";
/// The matrices of a layer.
const LAYER: [&str; 7] = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];

/// The layer and the last part of a name such as `blk.3.attn_q`.
fn in_layer(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// The tensors have the names of a GGUF file.
impl Weights for DenseDecoder {
    fn name(&self, stem: &str, _: Role) -> Option<String> {
        Some(stem.to_owned())
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let DecoderSizes { width, inner, heads, kv_heads, head_width, vocabulary, .. } = self.sizes;
        let part = in_layer(name).map_or(name, |(_, part)| part);
        Some(match part {
            EMBEDDING | OUTPUT => vec![vocabulary, width],
            "attn_q" => vec![heads * head_width, width],
            "attn_k" | "attn_v" => vec![kv_heads * head_width, width],
            "attn_output" => vec![width, heads * head_width],
            "ffn_gate" | "ffn_up" => vec![inner, width],
            "ffn_down" => vec![width, inner],
            _ => return None,
        })
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Some(match (self.quantization, in_layer(name)) {
            (Quantization::Q4KM, Some((layer, "attn_v" | "ffn_down"))) if self.has_more_bits(layer) => DType::Q6K,
            (Quantization::Q4KM, None) if name == OUTPUT || self.tied_embeddings => DType::Q6K,
            (Quantization::Q4KM, _) => DType::Q4K,
            (Quantization::Q8, _) => DType::Q8_0,
            (Quantization::F16, _) => DType::F16,
        })
    }

    fn rows(&self, name: &str, _: usize, _: usize) -> Result<Rows<'_>, ModelError> {
        Err(ModelError::Checkpoint(format!("there is no file with the tensor {name}")))
    }

    fn names(&self) -> Vec<String> {
        let layers = (0..self.sizes.layers).flat_map(|layer| LAYER.map(|part| format!("blk.{layer}.{part}")));
        let output = (!self.tied_embeddings).then(|| OUTPUT.to_owned());
        std::iter::once(EMBEDDING.to_owned()).chain(layers).chain(output).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{DenseDecoder, Quantization};
    use crate::backend::{Backend as _, Cpu, DType};
    use crate::decoder_config::DecoderSizes;
    use crate::kv::KvType;
    use crate::step_memory::StepLimits;

    /// Llama 3.1 8B.
    fn eight_billion(quantization: Quantization) -> DenseDecoder {
        let sizes = DecoderSizes {
            layers: 32,
            width: 4096,
            inner: 14_336,
            heads: 32,
            kv_heads: 8,
            head_width: 128,
            vocabulary: 128_256,
        };
        DenseDecoder { sizes, tied_embeddings: false, quantization }
    }

    /// Sizes of the published GGUF files.
    #[test]
    fn weights_take_about_as_much_as_the_published_files() {
        let backend = Cpu::new(1);
        let limits = StepLimits { tokens: 256, rows: 32, logits: 32 };
        for (quantization, gigabytes) in
            [(Quantization::Q4KM, 4.92), (Quantization::Q8, 8.54), (Quantization::F16, 16.07)]
        {
            let need = eight_billion(quantization).memory(4096, KvType::F16, &limits, &backend);
            let ratio = need.weights as f64 / (gigabytes * 1e9);
            assert!((0.97..1.12).contains(&ratio), "{quantization:?}: {} bytes, {ratio}", need.weights);
            assert_eq!(need.kv, 4096 * 32 * 2 * 8 * 128 * 2);
            assert_eq!(need.total(), need.weights + need.scratch + need.loading.max(need.kv));
        }
    }

    #[test]
    fn a_token_reads_all_matrices_except_embeddings_that_are_not_the_output() {
        let backend = Cpu::new(1);
        let model = eight_billion(Quantization::F16);
        let read = model.bytes_read_per_token(&backend);
        let embedding = backend.linear_bytes(DType::F16, 128_256, 4096) as u64;
        let limits = StepLimits { tokens: 1, rows: 1, logits: 1 };
        let weights = model.memory(4096, KvType::F16, &limits, &backend).weights;
        assert_eq!(read, [(DType::F16, weights - embedding)]);
        let tied = DenseDecoder { tied_embeddings: true, ..model };
        assert_eq!(tied.bytes_read_per_token(&backend), read);
    }
}
