//! The network of Stable Diffusion 3 and 3.5 (Esser et al. 2024, <https://arxiv.org/abs/2403.03206>).
//!
//! Names and order follow diffusers' `SD3Transformer2DModel`.

mod config;

pub use config::MmditConfig;

use super::DitConditioning;
use super::joint_block::{FINAL, JointBlock, JointBlockConfig};
use super::modulation::Modulation;
use super::patch_layout::{PatchLayout, PatchOrder};
use super::time_text_embedding::TimeTextEmbedding;
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Conv, Linear, Loaded, conv, linear};
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::embedding_table::EmbeddingTable;
use crate::models::error::ModelError;
use crate::models::weights::Loader;

#[derive(Debug)]
pub struct Mmdit {
    config: MmditConfig,
    patches: Conv,
    /// Position embeddings of a square of patches, `[positions², width]`; images use its centre.
    pos_embed: EmbeddingTable,
    context: Linear,
    embedding: TimeTextEmbedding,
    blocks: Vec<JointBlock>,
    norm_out: Modulation,
    proj_out: Linear,
}

impl Mmdit {
    pub fn load(loader: &Loader<'_>, config: MmditConfig) -> Loaded<Self> {
        let MmditConfig { patch, in_channels, out_channels, layers, heads, width, positions, qk_norm, .. } = config;
        let block = |(index, dual_attention): (usize, &bool)| {
            let last = index + 1 == layers;
            let sizes =
                JointBlockConfig { width, heads, qk_norm, dual_attention: *dual_attention, last, text_first: false };
            JointBlock::load(loader, &format!("transformer_blocks.{index}"), sizes)
        };
        Ok(Self {
            patches: conv(loader, "pos_embed.proj", [in_channels, width], patch, patch, [0; 2])?,
            pos_embed: loader.table("pos_embed.pos_embed", positions * positions, width)?,
            context: linear(loader, "context_embedder", [config.context, width], true)?,
            embedding: TimeTextEmbedding::load(loader, config.pooled, width, false)?,
            blocks: config.dual_attention.iter().enumerate().map(block).collect::<Loaded<_>>()?,
            norm_out: Modulation::load(loader, "norm_out.linear", width, 2)?,
            proj_out: linear(loader, "proj_out", [width, patch * patch * out_channels], true)?,
            config,
        })
    }

    /// The predicted flow, `[images, height, width, out_channels]`, of `x`, `[images, height, width, in_channels]`.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap, cond: &DitConditioning<'_>) -> Result<FeatureMap> {
        let MmditConfig { patch, out_channels, in_channels, .. } = self.config;
        let patches = PatchLayout { side: patch, channels: out_channels, order: PatchOrder::ChannelsLast };
        let grid = patches.grid(x.size).filter(|_| x.channels == in_channels && x.images == cond.text.images);
        let Some(grid) = grid else {
            return Err(ModelError::Compute(format!("{:?} of {} channels are not patches", x.size, x.channels)));
        };
        let mut x = ctx.conv(&self.patches, x)?;
        self.add_pos_embed(&mut x, grid)?;
        x.size = [grid[0] * grid[1], 1];
        let mut text = ctx.linear(&self.context, cond.text)?;
        let vector = self.embedding.forward(ctx, cond)?;
        for block in &self.blocks {
            block.forward(ctx, &mut x, &mut text, &vector, &|_| Ok(()))?;
        }
        let y = self.norm_out.forward(ctx, &vector)?.norm(ctx, &x, FINAL)?;
        drop(x);
        patches.unpack(ctx, &ctx.linear(&self.proj_out, &y)?, grid)
    }

    /// Adds position embeddings.
    fn add_pos_embed(&self, x: &mut FeatureMap, [rows, columns]: [usize; 2]) -> Result<()> {
        let side = self.config.positions;
        if rows > side || columns > side {
            return Err(ModelError::Compute(format!(
                "{rows} rows and {columns} columns of patches; {side} are allowed"
            )));
        }
        let (top, left) = ((side - rows) / 2, (side - columns) / 2);
        let place = |(row, column)| ((top + row) * side + left + column) as u32;
        let one = || (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)));
        let all = (0..x.images).flat_map(|_| one()).map(place);
        self.pos_embed.look_up(all, true, x.data_mut())
    }
}
