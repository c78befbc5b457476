//! A Kokoro network, without the type of its device.

use crate::error::{NOT_FINITE, are_finite};
use crate::precision::Precision;
use crate::runtime::Runtime;
use outpost_models::ModelError;
use outpost_models::backend::{Pause, RequestOptions, TimeConvolutions};
use outpost_models::kokoro::{KokoroConfig, KokoroModel};
use outpost_models::nn::Context;
use outpost_models::safetensors::ModelFolder;

/// A network on its device.
pub trait DeviceNetwork: Send + Sync {
    /// Speaks a part of a text. `None`: there is no memory for it.
    ///
    /// # Errors
    /// If the computation fails or is cancelled.
    fn speak(&self, input: PartInput<'_>) -> Result<Option<Vec<f32>>, ModelError>;
}

/// A part of a text.
pub struct PartInput<'a> {
    pub tokens: &'a [u32],
    pub style: &'a [f32],
    pub speed: f32,
    pub seed: u64,
    /// Called between chunks of work.
    pub pause: Pause,
    /// Leases memory.
    pub runtime: &'a Runtime,
}

/// Reads the weights of a network.
pub fn load<B: TimeConvolutions>(
    folder: &ModelFolder,
    config: KokoroConfig,
    precision: Precision,
    backend: &B,
) -> Result<Box<dyn DeviceNetwork>, ModelError> {
    let model = KokoroModel::load(folder, config, backend, precision.kind())?;
    Ok(Box::new(Network { _binding: backend.thread_binding(), model, backend: backend.clone() }))
}

struct Network<B: TimeConvolutions> {
    _binding: B::ThreadBinding,
    model: KokoroModel<B>,
    backend: B,
}

impl<B: TimeConvolutions> DeviceNetwork for Network<B> {
    fn speak(&self, input: PartInput<'_>) -> Result<Option<Vec<f32>>, ModelError> {
        let PartInput { tokens, style, speed, seed, pause, runtime } = input;
        let bytes = |frames| self.model.synthesis_bytes(&self.backend, tokens.len(), frames);
        let Some(lease) = runtime.lease_reclaiming(bytes(0)) else { return Ok(None) };
        let backend = self.backend.for_request(RequestOptions { pause, bf16_attention: false });
        let context = Context::new(&backend);
        let text = self.model.encode(&context, tokens, style, speed)?;
        drop(lease);
        let Some(_lease) = runtime.lease_reclaiming(bytes(text.frames())) else { return Ok(None) };
        let samples = self.model.decode(&context, text, style, seed)?.samples;
        match are_finite(&samples) {
            true => Ok(Some(samples)),
            false => Err(ModelError::Compute(NOT_FINITE.to_owned())),
        }
    }
}
