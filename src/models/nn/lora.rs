//! LoRA deltas that are added to the output of a layer: `y += scale · up(down(x))` (Hu et al. 2021,
//! <https://arxiv.org/abs/2106.09685>). Weights are not changed, so requests with different adapters share them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::models::backend::{Backend, Tensor};
use crate::models::error::{ModelError, Result};

/// A loaded LoRA file: its deltas, each with the ID of the weight that it applies to.
#[derive(Debug)]
pub struct Adapter<B: Backend> {
    pub(in crate::models) deltas: Vec<(usize, Arc<LoraDelta<B>>)>,
}

/// The delta of an adapter for one weight.
#[derive(Debug)]
pub struct LoraDelta<B: Backend> {
    pub(in crate::models) down: Arc<DownProjection<B>>,
    pub(in crate::models) up: B::Linear,
    /// Alpha over rank.
    pub(in crate::models) scale: f32,
}

/// The projection to the rank.
#[derive(Debug)]
pub(in crate::models) enum DownProjection<B: Backend> {
    Linear(B::Linear),
    Conv(B::Conv),
}

/// The deltas of a request by weight ID.
#[derive(Debug)]
pub struct LoraDeltas<B: Backend>(HashMap<usize, Vec<ScaledDelta<B>>>);

#[derive(Debug)]
struct ScaledDelta<B: Backend> {
    delta: Arc<LoraDelta<B>>,
    scale: f32,
}

impl<B: Backend> Default for LoraDeltas<B> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<B: Backend> LoraDeltas<B> {
    /// Adds an adapter. `adapter_weight` is set by the request.
    pub fn push(&mut self, adapter: &Adapter<B>, adapter_weight: f32) {
        for (id, delta) in &adapter.deltas {
            self.0
                .entry(*id)
                .or_default()
                .push(ScaledDelta { delta: Arc::clone(delta), scale: adapter_weight * delta.scale });
        }
    }

    /// Whether there are deltas for a weight.
    pub(super) fn has(&self, id: usize) -> bool {
        self.0.contains_key(&id)
    }

    /// Adds the deltas of a weight to `out`, the output of its layer for the input `x`.
    pub(super) fn add_to(&self, backend: &B, id: usize, x: &Tensor<B>, out: &mut Tensor<B>) -> Result<()> {
        for ScaledDelta { delta, scale } in self.0.get(&id).into_iter().flatten() {
            delta.add_to(backend, *scale, x, out)?;
        }
        Ok(())
    }
}

impl<B: Backend> LoraDelta<B> {
    fn add_to(&self, backend: &B, scale: f32, x: &Tensor<B>, out: &mut Tensor<B>) -> Result<()> {
        let mut low_rank = match &*self.down {
            DownProjection::Linear(down) => {
                let [low_rank] = backend.linears([down], x)?;
                low_rank
            }
            DownProjection::Conv(down) => backend.conv(down, x)?,
        };
        backend.multiply(&mut low_rank, scale)?;
        let (rows, chunk) = (low_rank.rows(), B::LORA_ROWS);
        if rows != out.rows() {
            return Err(ModelError::Compute("a LoRA delta does not fit its layer".to_owned()));
        }
        if rows <= chunk {
            let [delta] = backend.linears([&self.up], &low_rank)?;
            return backend.add(out, &delta);
        }
        for first in (0..rows).step_by(chunk) {
            let low_rank = backend.rows(&low_rank, first..rows.min(first + chunk))?;
            let [delta] = backend.linears([&self.up], &low_rank)?;
            backend.add_rows(out, first, &delta)?;
        }
        Ok(())
    }
}
