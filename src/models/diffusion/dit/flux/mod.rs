//! The network of FLUX.1 (Black Forest Labs 2024, <https://github.com/black-forest-labs/flux>): joint blocks with
//! separate weights for patches and text, then single blocks with shared weights and parallel attention and
//! feed-forward networks (Dehghani et al. 2023, <https://arxiv.org/abs/2302.05442>).
//!
//! Names and order follow diffusers' `FluxTransformer2DModel`.

mod config;
mod original_weights;
mod rope2d;
mod single_block;

pub use config::FluxConfig;
pub use original_weights::OriginalWeights;

use super::DitConditioning;
use super::joint_block::{FINAL, JointBlock, JointBlockConfig};
use super::modulation::{Modulation, ShiftScale};
use super::patch_layout::{PatchLayout, PatchOrder};
use super::sequence::{concat_tokens, split_tokens};
use super::time_text_embedding::TimeTextEmbedding;
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Linear, Loaded, linear};
use crate::models::diffusion::op_context::{OpContext, Result};
use crate::models::error::ModelError;
use crate::models::weights::Loader;
use rope2d::Rope2d;
use single_block::SingleBlock;

/// Pixels of a patch along a side.
pub const PATCH_SIZE: usize = 2;

#[derive(Debug)]
pub struct Flux {
    config: FluxConfig,
    patches: Linear,
    context: Linear,
    embedding: TimeTextEmbedding,
    blocks: Vec<JointBlock>,
    single_blocks: Vec<SingleBlock>,
    norm_out: (Modulation, ShiftScale),
    proj_out: Linear,
}

impl Flux {
    pub fn load(loader: &Loader<'_>, config: FluxConfig) -> Loaded<Self> {
        let FluxConfig { in_channels, out_channels, heads, width, context, .. } = config;
        let sizes =
            JointBlockConfig { width, heads, qk_norm: true, dual_attention: false, last: false, text_first: true };
        let block = |index: usize| JointBlock::load(loader, &format!("transformer_blocks.{index}"), sizes);
        let single =
            |index: usize| SingleBlock::load(loader, &format!("single_transformer_blocks.{index}"), width, heads);
        // The original checkpoint stores the shift first.
        let (name, shift_scale) = match loader.has(original_weights::SHIFT_FIRST) {
            true => (original_weights::SHIFT_FIRST, ShiftScale { shift: 0, scale: 1 }),
            false => ("norm_out.linear", FINAL),
        };
        Ok(Self {
            patches: linear(loader, "x_embedder", [in_channels, width], true)?,
            context: linear(loader, "context_embedder", [context, width], true)?,
            embedding: TimeTextEmbedding::load(loader, config.pooled, width, config.guided)?,
            blocks: (0..config.layers).map(block).collect::<Loaded<_>>()?,
            single_blocks: (0..config.single_layers).map(single).collect::<Loaded<_>>()?,
            norm_out: (Modulation::load(loader, name, width, 2)?, shift_scale),
            proj_out: linear(loader, "proj_out", [width, out_channels], true)?,
            config,
        })
    }

    pub fn config(&self) -> &FluxConfig {
        &self.config
    }

    /// The predicted flow of `x`, `[1, height, width, in_channels / 4]`, in the same shape.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap, cond: &DitConditioning<'_>) -> Result<FeatureMap> {
        let channels = |numbers: usize| numbers / (PATCH_SIZE * PATCH_SIZE);
        let patches = PatchLayout {
            side: PATCH_SIZE,
            channels: channels(self.config.in_channels),
            order: PatchOrder::ChannelsFirst,
        };
        let Some(grid) = patches.grid(x.size) else {
            return Err(ModelError::Compute(format!("{:?} cannot be cut into patches", x.size)));
        };
        let flow = self.forward_patches(ctx, &patches.pack(ctx, x)?, grid, cond)?;
        PatchLayout { channels: channels(self.config.out_channels), ..patches }.unpack(ctx, &flow, grid)
    }

    /// The same for patches, `[1, patches, 1, in_channels]`, in a grid.
    pub(in crate::models::diffusion) fn forward_patches(
        &self,
        ctx: &OpContext<'_>,
        patches: &FeatureMap,
        grid: [usize; 2],
        cond: &DitConditioning<'_>,
    ) -> Result<FeatureMap> {
        let heads = self.config.heads;
        let text_tokens = cond.text.pixels();
        let table = Rope2d::new(text_tokens, grid, self.config.axes);
        let rope = |x: &mut FeatureMap| table.apply(ctx, x, heads);
        // The reference divides by 1000 and multiplies again; this reproduces its rounding.
        let cond = DitConditioning { timestep: cond.timestep / 1000. * 1000., ..*cond };
        let vector = self.embedding.forward(ctx, &cond)?;
        let mut x = ctx.linear(&self.patches, patches)?;
        let mut text = ctx.linear(&self.context, cond.text)?;
        for block in &self.blocks {
            block.forward(ctx, &mut x, &mut text, &vector, &rope)?;
        }
        let mut all = concat_tokens(ctx, &text, &x)?;
        drop((x, text));
        for single in &self.single_blocks {
            single.forward(ctx, &mut all, &vector, &rope)?;
        }
        let [_, x] = split_tokens(ctx, &all, text_tokens)?;
        let (norm, shift_scale) = &self.norm_out;
        let y = norm.forward(ctx, &vector)?.norm(ctx, &x, *shift_scale)?;
        ctx.linear(&self.proj_out, &y)
    }
}
