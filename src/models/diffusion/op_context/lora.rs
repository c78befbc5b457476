//! Products with LoRA deltas.

use super::{OpContext, Result};
use crate::models::diffusion::adapters::{Down, LoraDelta};
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::error::ModelError;
use crate::models::linear::Linear;

/// Output rows of a convolution that are computed at once.
const ROWS: usize = 1024;

impl OpContext<'_> {
    /// Adds the delta for `m` rows.
    pub(super) fn add_lora(&self, delta: &LoraDelta, x: &[f32], m: usize, factor: f32, out: &mut [f32]) -> Result<()> {
        let Down::Linear(down) = &delta.down else {
            return Err(ModelError::Compute("a LoRA convolution for a projection".to_owned()));
        };
        let mut low = self.alloc(m, [1, 1], down.rows());
        down.forward(self.pool, x, m, low.data_mut())?;
        self.up_project(&delta.up, &mut low, factor, m, out)
    }

    /// Adds the delta of a convolution.
    pub(super) fn add_lora_conv(
        &self,
        delta: &LoraDelta,
        x: &FeatureMap,
        factor: f32,
        out: &mut FeatureMap,
    ) -> Result<()> {
        let Down::Conv(down) = &delta.down else {
            return Err(ModelError::Compute("a LoRA projection for a convolution".to_owned()));
        };
        let mut low = self.conv_without_lora(down, x, None)?;
        self.up_project(&delta.up, &mut low, factor, ROWS, out.data_mut())
    }

    /// Projects from the rank to the full width, `rows` rows at a time.
    fn up_project(&self, up: &Linear, low: &mut FeatureMap, factor: f32, rows: usize, out: &mut [f32]) -> Result<()> {
        let (rank, width) = (low.channels.max(1), up.rows());
        low.data_mut().iter_mut().for_each(|number| *number *= factor);
        let most = rows.min(low.rows());
        let mut high = self.alloc(1, [most, 1], width);
        for (low, out) in low.data().chunks(rows.max(1) * rank).zip(out.chunks_mut(rows.max(1) * width)) {
            let high = high.prefix_mut(out.len());
            up.forward(self.pool, low, low.len() / rank, high)?;
            outpost_kernels::add(self.pool, out, high);
            self.pause()?;
        }
        Ok(())
    }
}
