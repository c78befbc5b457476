//! MMDiT, the denoiser of Stable Diffusion 3 and 3.5 (Esser et al. 2024, <https://arxiv.org/abs/2403.03206>).
//!
//! Names and order follow diffusers' `SD3Transformer2DModel`.

mod config;

pub use config::MmditConfig;

use super::DitConditioning;
use super::joint_block::{FINAL, JointBlock, JointBlockConfig};
use super::modulation::Modulation;
use super::patch_layout::{PatchLayout, PatchOrder};
use super::time_text_embedding::TimeTextEmbedding;
use crate::backend::{Convolutions, Tensor};
use crate::diffusion::layers::{conv, linear};
use crate::error::ModelError;
use crate::error::Result;
use crate::nn::{Context, Conv, EmbeddingTable, Linear};
use crate::weights::Loader;

#[derive(Debug)]
pub struct Mmdit<B: Convolutions> {
    config: MmditConfig,
    patch_embed: Conv<B>,
    /// Position embeddings of a square grid of patches, `[max_grid_side², width]`. Images use the centre of the grid.
    pos_embed: EmbeddingTable,
    context_embedder: Linear<B>,
    time_text_embed: TimeTextEmbedding<B>,
    blocks: Vec<JointBlock<B>>,
    norm_out: Modulation<B>,
    proj_out: Linear<B>,
}

impl<B: Convolutions> Mmdit<B> {
    pub fn load(loader: &Loader<'_, B>, config: MmditConfig) -> Result<Self> {
        let MmditConfig { patch_size, in_channels, out_channels, layers, heads, width, max_grid_side, qk_norm, .. } =
            config;
        let block = |(index, dual_attention): (usize, &bool)| {
            let last = index + 1 == layers;
            let block_config =
                JointBlockConfig { width, heads, qk_norm, dual_attention: *dual_attention, last, text_first: false };
            JointBlock::load(loader, &format!("transformer_blocks.{index}"), block_config)
        };
        Ok(Self {
            patch_embed: conv(loader, "pos_embed.proj", [in_channels, width], patch_size, patch_size, [0; 2])?,
            pos_embed: loader.table("pos_embed.pos_embed", max_grid_side * max_grid_side, width)?,
            context_embedder: linear(loader, "context_embedder", [config.context_width, width], true)?,
            time_text_embed: TimeTextEmbedding::load(loader, config.pooled_width, width, false)?,
            blocks: config.dual_attention.iter().enumerate().map(block).collect::<Result<_>>()?,
            norm_out: Modulation::load(loader, "norm_out.linear", width, 2)?,
            proj_out: linear(loader, "proj_out", [width, patch_size * patch_size * out_channels], true)?,
            config,
        })
    }

    /// The predicted flow, `[images, height, width, out_channels]`, for the latents `x`, `[images, height, width,
    /// in_channels]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, cond: &DitConditioning<'_, B>) -> Result<Tensor<B>> {
        let MmditConfig { patch_size, out_channels, in_channels, .. } = self.config;
        let layout = PatchLayout { patch_size, channels: out_channels, order: PatchOrder::ChannelsLast };
        let grid = layout.grid(x.size).filter(|_| x.channels == in_channels && x.images == cond.text.images);
        let Some(grid) = grid else {
            return Err(ModelError::Compute(format!(
                "latents of {:?} and {} channels do not divide into patches",
                x.size, x.channels
            )));
        };
        let mut x = self.patch_embed.forward(ctx, x)?;
        self.add_pos_embed(ctx, &mut x, grid)?;
        x.size = [grid[0] * grid[1], 1];
        let mut text = self.context_embedder.forward(ctx, cond.text)?;
        let vector = self.time_text_embed.forward(ctx, cond)?;
        for block in &self.blocks {
            block.forward(ctx, &mut x, &mut text, &vector, &|_| Ok(()))?;
        }
        let y = self.norm_out.forward(ctx, &vector)?.norm(ctx, &x, FINAL)?;
        drop(x);
        layout.unpack(ctx, &self.proj_out.forward(ctx, &y)?, grid)
    }

    /// Adds the position embeddings of the centre of the grid. `x`: `[images, rows, columns, width]`.
    fn add_pos_embed(&self, ctx: &Context<'_, B>, x: &mut Tensor<B>, [rows, columns]: [usize; 2]) -> Result<()> {
        let side = self.config.max_grid_side;
        if rows > side || columns > side {
            return Err(ModelError::Compute(format!(
                "a grid of {rows} × {columns} patches exceeds the maximum side of {side}"
            )));
        }
        let (top, left) = ((side - rows) / 2, (side - columns) / 2);
        let index = |(row, column)| ((top + row) * side + left + column) as u32;
        let patches = || (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)));
        let indices = || (0..x.images).flat_map(|_| patches()).map(index);
        let pos_embed = ctx.upload(x.shape(), &mut |out| self.pos_embed.look_up(indices(), false, out))?;
        ctx.add(x, &pos_embed)
    }
}
