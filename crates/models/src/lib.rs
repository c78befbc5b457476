//! Networks: readers of checkpoints, the decoder of all language model families, encoders, diffusion, and the KV cache.
//! Networks are made of the layers in [`nn`] and compute on a [`backend`].
//!
//! `engine` runs them; requests, tokenizers and text are unknown here.

pub mod backend;
pub mod block_arena;
pub mod causal_lm;
mod config_json;
pub mod decoder;
pub mod decoder_config;
pub mod decoder_family;
pub mod dense_decoder;
pub mod devices;
pub mod diffusion;
pub mod encoder;
mod error;
pub mod gguf;
pub mod kokoro;
pub mod kv;
pub mod model_files;
pub mod nn;
pub mod peft;
mod quantization_config;
pub mod safetensors;
pub mod sequence_state;
pub mod state_arenas;
pub mod state_layout;
pub mod step_memory;
mod text_batch;
pub mod training;
pub mod weights;
pub mod whisper;

use backend::Recurrent;
use causal_lm::CausalLm;
use decoder::Decoder;
pub use error::ModelError;
use weights::DecoderCheckpoint;

/// Reads the weights of a language model, which computes on `backend`.
///
/// # Errors
/// If the checkpoint is damaged or not supported.
pub fn load_causal_lm<B: Recurrent>(
    checkpoint: &dyn DecoderCheckpoint,
    backend: &B,
) -> Result<Box<dyn CausalLm>, ModelError> {
    Ok(Box::new(Decoder::load(checkpoint, backend)?))
}
