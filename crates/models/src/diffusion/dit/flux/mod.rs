//! The denoiser of FLUX.1 (Black Forest Labs 2024, <https://github.com/black-forest-labs/flux>): joint blocks with
//! separate weights for image patches and text tokens, then single blocks with shared weights and parallel attention
//! and feed-forward networks (Dehghani et al. 2023, <https://arxiv.org/abs/2302.05442>).
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
use super::time_text_embedding::TimeTextEmbedding;
use crate::backend::{Backend, RopeLayout, Tensor};
use crate::diffusion::layers::linear;
use crate::error::ModelError;
use crate::error::Result;
use crate::nn::{Context, Linear};
use crate::weights::Loader;
use single_block::SingleBlock;

/// Side of a patch in latent pixels.
pub const PATCH_SIZE: usize = 2;

#[derive(Debug)]
pub struct Flux<B: Backend> {
    config: FluxConfig,
    x_embedder: Linear<B>,
    context_embedder: Linear<B>,
    time_text_embed: TimeTextEmbedding<B>,
    blocks: Vec<JointBlock<B>>,
    single_blocks: Vec<SingleBlock<B>>,
    norm_out: (Modulation<B>, ShiftScale),
    proj_out: Linear<B>,
}

impl<B: Backend> Flux<B> {
    pub fn load(loader: &Loader<'_, B>, config: FluxConfig) -> Result<Self> {
        let FluxConfig { in_channels, out_channels, heads, width, context_width, .. } = config;
        let block_config =
            JointBlockConfig { width, heads, qk_norm: true, dual_attention: false, last: false, text_first: true };
        let block = |index: usize| JointBlock::load(loader, &format!("transformer_blocks.{index}"), block_config);
        let single =
            |index: usize| SingleBlock::load(loader, &format!("single_transformer_blocks.{index}"), width, heads);
        // The original checkpoint stores the shift first.
        let (name, shift_scale) = match loader.has(original_weights::FINAL_NORM_SHIFT_FIRST) {
            true => (original_weights::FINAL_NORM_SHIFT_FIRST, ShiftScale { shift: 0, scale: 1 }),
            false => ("norm_out.linear", FINAL),
        };
        Ok(Self {
            x_embedder: linear(loader, "x_embedder", [in_channels, width], true)?,
            context_embedder: linear(loader, "context_embedder", [context_width, width], true)?,
            time_text_embed: TimeTextEmbedding::load(loader, config.pooled_width, width, config.guidance_embeds)?,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            single_blocks: (0..config.single_layers).map(single).collect::<Result<_>>()?,
            norm_out: (Modulation::load(loader, name, width, 2)?, shift_scale),
            proj_out: linear(loader, "proj_out", [width, out_channels], true)?,
            config,
        })
    }

    pub fn config(&self) -> &FluxConfig {
        &self.config
    }

    /// The predicted flow, `[1, height, width, out_channels / 4]`, for the latents `x`, `[1, height, width, in_channels
    /// / 4]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>, cond: &DitConditioning<'_, B>) -> Result<Tensor<B>> {
        let channels = |elements: usize| elements / (PATCH_SIZE * PATCH_SIZE);
        let layout = PatchLayout {
            patch_size: PATCH_SIZE,
            channels: channels(self.config.in_channels),
            order: PatchOrder::ChannelsFirst,
        };
        let Some(grid) = layout.grid(x.size) else {
            return Err(ModelError::Compute(format!("latents of {:?} do not divide into patches", x.size)));
        };
        let flow = self.forward_patches(ctx, &layout.pack(ctx, x)?, grid, cond)?;
        PatchLayout { channels: channels(self.config.out_channels), ..layout }.unpack(ctx, &flow, grid)
    }

    /// The predicted flow for a grid of patches. Both are packed: `[1, patches, 1, in_channels or out_channels]`.
    pub(in crate::diffusion) fn forward_patches(
        &self,
        ctx: &Context<'_, B>,
        patches: &Tensor<B>,
        grid: [usize; 2],
        cond: &DitConditioning<'_, B>,
    ) -> Result<Tensor<B>> {
        let heads = self.config.heads;
        let text_tokens = cond.text.pixels();
        let angles = rope2d::angles(&**ctx, text_tokens, grid, self.config.rope_axes)?;
        let rope = |x: &mut Tensor<B>| ctx.rope(x, heads, RopeLayout::Interleaved, &angles);
        // The reference divides by 1000 and multiplies again; this reproduces its rounding.
        let cond = DitConditioning { timestep: cond.timestep / 1000. * 1000., ..*cond };
        let vector = self.time_text_embed.forward(ctx, &cond)?;
        let mut x = self.x_embedder.forward(ctx, patches)?;
        let mut text = self.context_embedder.forward(ctx, cond.text)?;
        for block in &self.blocks {
            block.forward(ctx, &mut x, &mut text, &vector, &rope)?;
        }
        let mut sequence = ctx.concat_tokens(&text, &x)?;
        drop((x, text));
        for single in &self.single_blocks {
            single.forward(ctx, &mut sequence, &vector, &rope)?;
        }
        let [_, x] = ctx.split_tokens(&sequence, text_tokens)?;
        let (norm, shift_scale) = &self.norm_out;
        let y = norm.forward(ctx, &vector)?.norm(ctx, &x, *shift_scale)?;
        self.proj_out.forward(ctx, &y)
    }
}
