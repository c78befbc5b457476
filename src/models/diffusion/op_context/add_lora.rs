//! Adds LoRA deltas to the outputs of projections and convolutions.

use super::{OpContext, Result};
use crate::models::diffusion::adapters::{DownProjection, LoraDelta};
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::error::ModelError;
use crate::models::linear::Linear;

/// Rows of a convolution's output that are projected up at once.
const CONV_ROWS: usize = 1024;

impl OpContext<'_> {
    /// Adds the delta of a projection. `x`: `[m, inputs]`; `out`: `[m, outputs]`.
    pub(super) fn add_lora(&self, delta: &LoraDelta, x: &[f32], m: usize, scale: f32, out: &mut [f32]) -> Result<()> {
        let DownProjection::Linear(down) = &delta.down else {
            return Err(ModelError::Compute("a LoRA convolution cannot be applied to a projection".to_owned()));
        };
        let mut low_rank = self.alloc(m, [1, 1], down.rows());
        down.forward(self.pool, x, m, low_rank.data_mut())?;
        self.up_project(&delta.up, &mut low_rank, scale, m, out)
    }

    /// Adds the delta of a convolution with input `x` to `out`.
    pub(super) fn add_lora_conv(
        &self,
        delta: &LoraDelta,
        x: &FeatureMap,
        scale: f32,
        out: &mut FeatureMap,
    ) -> Result<()> {
        let DownProjection::Conv(down) = &delta.down else {
            return Err(ModelError::Compute("a LoRA projection cannot be applied to a convolution".to_owned()));
        };
        let mut low_rank = self.conv_without_lora(down, x, None)?;
        self.up_project(&delta.up, &mut low_rank, scale, CONV_ROWS, out.data_mut())
    }

    /// Scales `low_rank`, projects it up and adds it to `out`, `chunk_rows` rows at a time.
    fn up_project(
        &self,
        up: &Linear,
        low_rank: &mut FeatureMap,
        scale: f32,
        chunk_rows: usize,
        out: &mut [f32],
    ) -> Result<()> {
        let (rank, width) = (low_rank.channels.max(1), up.rows());
        low_rank.data_mut().iter_mut().for_each(|x| *x *= scale);
        let chunk_rows = chunk_rows.max(1);
        let mut delta = self.alloc(1, [chunk_rows.min(low_rank.rows()), 1], width);
        for (low_rank, out) in low_rank.data().chunks(chunk_rows * rank).zip(out.chunks_mut(chunk_rows * width)) {
            let delta = delta.prefix_mut(out.len());
            up.forward(self.pool, low_rank, low_rank.len() / rank, delta)?;
            outpost_kernels::add(self.pool, out, delta);
            self.pause()?;
        }
        Ok(())
    }
}
