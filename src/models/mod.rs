//! What a network computes: loaders of weight files, one decoder for the families, the KV cache.
//!
//! Nothing here knows requests or tokens' text; `engine` drives it.

mod attention;
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

pub use error::ModelError;
