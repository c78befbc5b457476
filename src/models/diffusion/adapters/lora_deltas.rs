//! LoRA deltas that are added to products: `y += factor · up(down(x))` (Hu et al. 2021,
//! <https://arxiv.org/abs/2106.09685>). Weights are not changed, so requests with different adapters share them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::models::diffusion::layers::{Conv, Linear};

/// A loaded file: deltas with the ID of the weight that each is for.
#[derive(Debug)]
pub struct Adapter {
    pub(super) deltas: Vec<(usize, Arc<LoraDelta>)>,
}

/// An adapter's delta for one weight.
#[derive(Debug)]
pub struct LoraDelta {
    pub(in crate::models::diffusion) down: Down,
    pub(in crate::models::diffusion) up: Linear,
    pub(super) factor: f32,
}

#[derive(Clone, Debug)]
pub(in crate::models::diffusion) enum Down {
    Linear(Linear),
    Conv(Conv),
}

/// Deltas by weight ID, each with its factor.
#[derive(Debug, Default)]
pub struct LoraDeltas(HashMap<usize, Vec<(Arc<LoraDelta>, f32)>>);

impl LoraDeltas {
    /// Adds an adapter with this weight.
    pub fn push(&mut self, adapter: &Adapter, weight: f32) {
        for (id, delta) in &adapter.deltas {
            self.0.entry(*id).or_default().push((Arc::clone(delta), weight * delta.factor));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::models::diffusion) fn of(&self, id: usize) -> &[(Arc<LoraDelta>, f32)] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }
}
