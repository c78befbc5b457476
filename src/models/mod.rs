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

/// A model file cannot become a network.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    #[error(transparent)]
    Safetensors(#[from] safetensors::SafetensorsError),
    /// The header is sound but what it describes is not a model that can be computed.
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Weights(#[from] outpost_kernels::Error),
    #[error("the tensor library failed: {0}")]
    Tensor(#[from] candle_core::Error),
}

impl ModelError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}
