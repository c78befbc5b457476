//! Factors of the channels of vectors.

use super::context::Context;
use crate::backend::{Backend, Tensor};
use crate::error::Result;

/// Multiplies each channel of a vector by a factor of its own.
#[derive(Debug)]
pub(crate) struct ChannelFactors<B: Backend>(
    /// Zeros and the factors minus one, as [`Backend::modulate`] takes them: `[1, 1, 1, 2 · channels]`.
    Tensor<B>,
);

impl<B: Backend> ChannelFactors<B> {
    pub fn new(backend: &B, factors: &[f32]) -> Result<Self> {
        let offsets = factors.iter().map(|factor| factor - 1.);
        let vectors: Vec<f32> = vec![0.; factors.len()].into_iter().chain(offsets).collect();
        backend.tensor(&vectors, [1, 1, 1, vectors.len()]).map(Self)
    }

    /// `x`: `[batch, tokens, 1, channels]`.
    pub fn multiply(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>) -> Result<()> {
        ctx.modulate(x, &self.0, [0, 1])
    }
}
