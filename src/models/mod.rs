//! What a network computes: loaders of weight files, one decoder for the families, the KV cache.
//!
//! Nothing here knows requests or tokens' text; `engine` drives it.

mod attention;
mod block;
pub mod diffusion;
pub mod encoder;
mod experts;
pub mod family;
mod feed_forward;
pub mod gguf;
pub mod hyper;
pub mod kv;
mod linear;
pub mod llama;
mod norm;
pub mod rope;
pub mod safetensors;
pub mod scratch;
mod table;
mod texts;
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
