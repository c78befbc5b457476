//! LoRA deltas that are added to the output of a layer: `y += scale · up(down(x))` (Hu et al. 2021,
//! <https://arxiv.org/abs/2106.09685>). Weights are not changed, so requests with different adapters share them.
//!
//! An adapter applies to all rows of a computation (an image), or to some of them (the tokens of sequences in a batch).

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::backend::{Backend, LowRankUpdate, Tensor};
use crate::error::{ModelError, Result};

/// A loaded LoRA file: its deltas by the ID of the weight that they apply to.
#[derive(Debug)]
pub struct Adapter<B: Backend> {
    _binding: B::ThreadBinding,
    by_weight: HashMap<usize, Vec<LoraDelta<B>>>,
}

/// A delta of an adapter for one weight.
#[derive(Debug)]
pub struct LoraDelta<B: Backend> {
    pub(crate) down: Arc<DownProjection<B>>,
    pub(crate) up: B::Linear,
    /// Alpha over rank, or over its square root.
    pub(crate) scale: f32,
}

/// The projection to the rank.
#[derive(Debug)]
pub(crate) enum DownProjection<B: Backend> {
    Linear(B::Linear),
    /// A convolution. Its type is erased, because devices without convolutions have adapters, too.
    Conv(Box<dyn Projection<B>>),
}

/// A projection that is not a matrix.
pub(crate) trait Projection<B: Backend>: fmt::Debug + Send + Sync {
    fn project(&self, backend: &B, x: &Tensor<B>) -> Result<Tensor<B>>;
}

/// The adapters of a computation.
#[derive(Clone, Debug)]
pub struct LoraDeltas<B: Backend>(Vec<AppliedAdapter<B>>);

#[derive(Clone, Debug)]
struct AppliedAdapter<B: Backend> {
    adapter: Arc<Adapter<B>>,
    /// Set by the request.
    weight: f32,
    /// The rows that it applies to; `None`: all.
    rows: Option<Range<usize>>,
}

impl<B: Backend> Adapter<B> {
    /// Deltas on a backend, each with the ID of its weight.
    pub(crate) fn new(backend: &B, deltas: impl IntoIterator<Item = (usize, LoraDelta<B>)>) -> Self {
        let mut by_weight: HashMap<usize, Vec<LoraDelta<B>>> = HashMap::new();
        for (id, delta) in deltas {
            by_weight.entry(id).or_default().push(delta);
        }
        Self { _binding: backend.thread_binding(), by_weight }
    }

    fn deltas(&self, id: usize) -> &[LoraDelta<B>] {
        self.by_weight.get(&id).map_or(&[], Vec::as_slice)
    }
}

impl<B: Backend> Default for LoraDeltas<B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<B: Backend> LoraDeltas<B> {
    /// Applies an adapter to all rows. `weight` is set by the request.
    pub fn push(&mut self, adapter: &Arc<Adapter<B>>, weight: f32) {
        self.0.push(AppliedAdapter { adapter: Arc::clone(adapter), weight, rows: None });
    }

    /// Applies an adapter to rows that follow those of the adapters before.
    pub(crate) fn push_rows(&mut self, adapter: &Arc<Adapter<B>>, rows: Range<usize>) {
        match self.0.last_mut() {
            Some(AppliedAdapter { adapter: last, rows: Some(last_rows), .. })
                if Arc::ptr_eq(last, adapter) && last_rows.end == rows.start =>
            {
                last_rows.end = rows.end;
            }
            _ => self.0.push(AppliedAdapter { adapter: Arc::clone(adapter), weight: 1., rows: Some(rows) }),
        }
    }

    /// The deltas of only the rows `selected`, in ascending order.
    pub(crate) fn for_rows(&self, selected: &[usize]) -> Self {
        let position = |row: usize| selected.partition_point(|one| *one < row);
        let applied = self.0.iter().map(|AppliedAdapter { adapter, weight, rows }| AppliedAdapter {
            adapter: Arc::clone(adapter),
            weight: *weight,
            rows: rows.as_ref().map(|rows| position(rows.start)..position(rows.end)),
        });
        Self(applied.filter(|applied| applied.rows.as_ref().is_none_or(|rows| !rows.is_empty())).collect())
    }

    /// Whether there are deltas for a weight.
    pub(super) fn has(&self, id: usize) -> bool {
        self.0.iter().any(|applied| !applied.adapter.deltas(id).is_empty())
    }

    /// Whether an adapter applies to only some rows.
    pub(super) fn are_by_row(&self) -> bool {
        self.0.iter().any(|applied| applied.rows.is_some())
    }

    /// The updates of only some rows by the deltas of weights.
    pub(super) fn updates<const N: usize>(&self, ids: [usize; N]) -> Result<SmallVec<[LowRankUpdate<'_, B>; 32]>> {
        let mut updates = SmallVec::new();
        for AppliedAdapter { adapter, weight, rows } in &self.0 {
            let Some(rows) = rows else { continue };
            for (output, id) in ids.into_iter().enumerate() {
                for delta in adapter.deltas(id) {
                    updates.push(delta.update(output, rows.clone(), weight * delta.scale)?);
                }
            }
        }
        Ok(updates)
    }

    /// Adds the deltas that apply to all rows to the outputs of layers, which have the same input `x`.
    pub(super) fn add_to<const N: usize>(
        &self,
        backend: &B,
        ids: [usize; N],
        x: &Tensor<B>,
        outs: &mut [Tensor<B>; N],
    ) -> Result<()> {
        for AppliedAdapter { adapter, weight, .. } in self.0.iter().filter(|applied| applied.rows.is_none()) {
            for (output, id) in ids.into_iter().enumerate() {
                for delta in adapter.deltas(id) {
                    delta.add_to(backend, weight * delta.scale, x, &mut outs[output])?;
                }
            }
        }
        Ok(())
    }
}

impl<B: Backend> LoraDelta<B> {
    /// The delta of some rows.
    fn update(&self, output: usize, rows: Range<usize>, scale: f32) -> Result<LowRankUpdate<'_, B>> {
        match &*self.down {
            DownProjection::Linear(down) => Ok(LowRankUpdate { output, rows, down, up: &self.up, scale }),
            DownProjection::Conv(_) => {
                Err(ModelError::Compute("a LoRA delta of a convolution cannot apply to some rows".to_owned()))
            }
        }
    }

    /// Adds the delta to all rows.
    fn add_to(&self, backend: &B, scale: f32, x: &Tensor<B>, out: &mut Tensor<B>) -> Result<()> {
        let mut low_rank = match &*self.down {
            DownProjection::Linear(down) => {
                let [low_rank] = backend.linears([down], x)?;
                low_rank
            }
            DownProjection::Conv(down) => down.project(backend, x)?,
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
