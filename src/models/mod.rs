//! Networks: readers of checkpoints, the decoder of all language model families, encoders, diffusion, the KV cache, and the
//! devices that compute them.
//!
//! `engine` runs them; requests, tokenizers and text are unknown here.

mod attention;
pub mod causal_lm;
mod config_json;
pub mod decoder;
pub mod decoder_config;
pub mod decoder_family;
mod decoder_layer;
pub mod devices;
pub mod diffusion;
mod embedding_table;
pub mod encoder;
mod error;
pub mod gguf;
pub mod kv;
mod linear;
mod mixture_of_experts;
mod mlp;
mod norm;
pub mod rope;
pub mod safetensors;
pub mod scratch_buffers;
mod text_batch;
pub mod weights;

use std::sync::Arc;

use causal_lm::CausalLm;
use decoder::Decoder;
pub use error::ModelError;
use scratch_buffers::Cpu;
use weights::DecoderCheckpoint;

/// Reads the weights of a language model, which computes on `cpu`.
///
/// # Errors
/// If the checkpoint is damaged or not supported.
pub fn load_causal_lm(checkpoint: &dyn DecoderCheckpoint, cpu: Arc<Cpu>) -> Result<Box<dyn CausalLm>, ModelError> {
    Ok(Box::new(Decoder::load(checkpoint, cpu)?))
}
