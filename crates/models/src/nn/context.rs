//! What a network computes with.

use std::ops::Deref;

use super::lora::LoraDeltas;
use crate::backend::Backend;

/// A backend, and the LoRA deltas that layers add to their outputs. Its methods are the operations of the backend.
#[derive(Debug)]
pub struct Context<'a, B: Backend> {
    backend: &'a B,
    lora: LoraDeltas<B>,
}

impl<'a, B: Backend> Context<'a, B> {
    pub fn new(backend: &'a B) -> Self {
        Self { backend, lora: LoraDeltas::default() }
    }

    /// Sets the LoRA deltas.
    pub fn with_lora(self, lora: LoraDeltas<B>) -> Self {
        Self { lora, ..self }
    }

    /// A context for only the rows `selected` of the computation, in ascending order.
    pub(crate) fn for_rows(&self, selected: &[usize]) -> Self {
        Self { backend: self.backend, lora: self.lora.for_rows(selected) }
    }

    pub(super) fn lora(&self) -> &LoraDeltas<B> {
        &self.lora
    }
}

impl<B: Backend> Deref for Context<'_, B> {
    type Target = B;

    fn deref(&self) -> &B {
        self.backend
    }
}
