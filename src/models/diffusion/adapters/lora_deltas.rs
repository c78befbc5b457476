//! LoRA deltas that are added to the output of a layer: `y += scale · up(down(x))` (Hu et al. 2021,
//! <https://arxiv.org/abs/2106.09685>). Weights are not changed, so requests with different adapters share them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::models::diffusion::layers::{Conv, Linear};

/// A loaded LoRA file: its deltas, each with the ID of the weight that it applies to.
#[derive(Debug)]
pub struct Adapter {
    pub(super) deltas: Vec<(usize, Arc<LoraDelta>)>,
}

/// The delta of an adapter for one weight.
#[derive(Debug)]
pub struct LoraDelta {
    pub(in crate::models::diffusion) down: DownProjection,
    pub(in crate::models::diffusion) up: Linear,
    /// Alpha over rank.
    pub(super) scale: f32,
}

/// The projection to the rank.
#[derive(Clone, Debug)]
pub(in crate::models::diffusion) enum DownProjection {
    Linear(Linear),
    Conv(Conv),
}

/// The deltas of a request by weight ID, each with its scale.
#[derive(Debug, Default)]
pub struct LoraDeltas(HashMap<usize, Vec<(Arc<LoraDelta>, f32)>>);

impl LoraDeltas {
    /// Adds an adapter. `adapter_weight` is set by the request.
    pub fn push(&mut self, adapter: &Adapter, adapter_weight: f32) {
        for (id, delta) in &adapter.deltas {
            self.0.entry(*id).or_default().push((Arc::clone(delta), adapter_weight * delta.scale));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(in crate::models::diffusion) fn get(&self, id: usize) -> &[(Arc<LoraDelta>, f32)] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }
}
