//! LoRA deltas that are added to products: `y += factor · up(down(x))` (Hu et al. 2021,
//! <https://arxiv.org/abs/2106.09685>). Weights are not changed, so requests with different adapters share them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Conv, Linear};
use crate::models::diffusion::op_context::{Interrupted, OpContext, Result};

/// Output rows of a convolution that are computed at once.
const ROWS: usize = 1024;

/// An adapter's delta for one weight.
#[derive(Debug)]
pub struct LoraDelta {
    pub(super) down: Down,
    pub(super) up: Linear,
    pub(super) factor: f32,
}

#[derive(Clone, Debug)]
pub(super) enum Down {
    Linear(Linear),
    Conv(Conv),
}

/// Deltas by weight ID, each with its factor.
#[derive(Debug, Default)]
pub struct LoraDeltas(HashMap<usize, Vec<(Arc<LoraDelta>, f32)>>);

impl LoraDeltas {
    /// Adds an adapter with this weight.
    pub fn push(&mut self, adapter: &super::Adapter, weight: f32) {
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

impl LoraDelta {
    /// Adds the delta for `m` rows.
    pub(in crate::models::diffusion) fn add(
        &self,
        ctx: &OpContext<'_>,
        x: &[f32],
        m: usize,
        factor: f32,
        out: &mut [f32],
    ) -> Result<()> {
        let Down::Linear(down) = &self.down else {
            return Err(Interrupted::Failed("a LoRA convolution for a projection".to_owned()));
        };
        let mut low = ctx.alloc(m, [1, 1], down.rows());
        down.forward(ctx.pool, x, m, low.data_mut())?;
        self.up_project(ctx, &mut low, factor, m, out)
    }

    /// Adds the delta of a convolution.
    pub(in crate::models::diffusion) fn add_conv(
        &self,
        ctx: &OpContext<'_>,
        x: &FeatureMap,
        factor: f32,
        out: &mut FeatureMap,
    ) -> Result<()> {
        let Down::Conv(down) = &self.down else {
            return Err(Interrupted::Failed("a LoRA projection for a convolution".to_owned()));
        };
        let mut low = ctx.conv_without_lora(down, x, None)?;
        self.up_project(ctx, &mut low, factor, ROWS, out.data_mut())
    }

    /// Projects from the rank to the full width, `rows` rows at a time.
    fn up_project(
        &self,
        ctx: &OpContext<'_>,
        low: &mut FeatureMap,
        factor: f32,
        rows: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let (rank, width) = (low.channels.max(1), self.up.rows());
        low.data_mut().iter_mut().for_each(|number| *number *= factor);
        let most = rows.min(low.rows());
        let mut high = ctx.alloc(1, [most, 1], width);
        for (low, out) in low.data().chunks(rows.max(1) * rank).zip(out.chunks_mut(rows.max(1) * width)) {
            let high = high.prefix_mut(out.len());
            self.up.forward(ctx.pool, low, low.len() / rank, high)?;
            outpost_kernels::add(ctx.pool, out, high);
            ctx.pause()?;
        }
        Ok(())
    }
}
