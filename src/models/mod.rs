//! What a network computes: loaders of weight files, one decoder for the families, the KV cache.
//!
//! Nothing here knows requests or tokens' text; `engine` drives it.

mod attention;
pub mod causal_lm;
mod config_json;
pub mod decoder;
pub mod decoder_config;
pub mod decoder_family;
mod decoder_layer;
pub mod diffusion;
mod embedding_table;
pub mod encoder;
mod error;
mod feed_forward;
pub mod gguf;
mod gguf_config;
pub mod kv;
mod linear;
mod mixture_of_experts;
mod mlp;
mod norm;
pub mod rope;
pub mod safetensors;
pub mod scratch;
mod text_batch;
pub mod weights;

use std::sync::Arc;

use causal_lm::CausalLm;
use decoder::Decoder;
pub use error::ModelError;
use scratch::Cpu;
use weights::DecoderCheckpoint;

/// Reads the weights of a language model; `cpu` computes with them.
///
/// # Errors
/// A checkpoint that is damaged or not supported.
pub fn load_causal_lm(checkpoint: &dyn DecoderCheckpoint, cpu: Arc<Cpu>) -> Result<Box<dyn CausalLm>, ModelError> {
    Ok(Box::new(Decoder::load(checkpoint, cpu)?))
}
