//! The network of FLUX.1 (Black Forest Labs 2024, <https://github.com/black-forest-labs/flux>): first blocks in which
//! patches and words have weights of their own, then blocks with the same for both, whose attention and feed-forward
//! network work side by side (Dehghani et al. 2023, <https://arxiv.org/abs/2302.05442>).
//!
//! Names and order are those of diffusers' `FluxTransformer2DModel`.

mod config;
mod names;
mod single;
mod turns;

pub use config::FluxConfig;
pub use names::Original;

use super::Told;
use super::block::{Block, BlockSizes, ONLY};
use super::embedding::Embedding;
use super::modulation::{Modulation, Moves};
use super::patches::{Order, Patches};
use super::positions::{join, split};
use crate::models::diffusion::feature_map::FeatureMap;
use crate::models::diffusion::layers::{Linear, Loaded, linear};
use crate::models::diffusion::op_context::{Interrupted, OpContext, Result};
use crate::models::weights::Loader;
use single::Single;
use turns::Turns;

/// Pixels of a patch along a side.
pub const PATCH: usize = 2;

#[derive(Debug)]
pub struct Flux {
    config: FluxConfig,
    patches: Linear,
    context: Linear,
    embedding: Embedding,
    blocks: Vec<Block>,
    singles: Vec<Single>,
    norm_out: (Modulation, Moves),
    proj_out: Linear,
}

impl Flux {
    pub fn load(loader: &Loader<'_>, config: FluxConfig) -> Loaded<Self> {
        let FluxConfig { in_channels, out_channels, heads, width, context, .. } = config;
        let sizes = BlockSizes { width, heads, normed: true, again: false, last: false, text_first: true };
        let block = |index: usize| Block::load(loader, &format!("transformer_blocks.{index}"), sizes);
        let single = |index: usize| Single::load(loader, &format!("single_transformer_blocks.{index}"), width, heads);
        // The original has the shift first.
        let (name, moves) = match loader.has(names::SHIFT_FIRST) {
            true => (names::SHIFT_FIRST, Moves { shift: 0, scale: 1 }),
            false => ("norm_out.linear", ONLY),
        };
        Ok(Self {
            patches: linear(loader, "x_embedder", [in_channels, width], true)?,
            context: linear(loader, "context_embedder", [context, width], true)?,
            embedding: Embedding::load(loader, config.pooled, width, config.guided)?,
            blocks: (0..config.layers).map(block).collect::<Loaded<_>>()?,
            singles: (0..config.single_layers).map(single).collect::<Loaded<_>>()?,
            norm_out: (Modulation::load(loader, name, width, 2)?, moves),
            proj_out: linear(loader, "proj_out", [width, out_channels], true)?,
            config,
        })
    }

    pub fn config(&self) -> &FluxConfig {
        &self.config
    }

    /// Where `x`, `[1, height, width, in_channels / 4]`, flows; of the same shape.
    pub fn forward(&self, ctx: &OpContext<'_>, x: &FeatureMap, told: &Told<'_>) -> Result<FeatureMap> {
        let channels = |numbers: usize| numbers / (PATCH * PATCH);
        let patches = Patches { side: PATCH, channels: channels(self.config.in_channels), order: Order::ChannelsFirst };
        let Some(grid) = patches.grid(x.size) else {
            return Err(Interrupted::Failed(format!("{:?} cannot be cut into patches", x.size)));
        };
        let flow = self.flow(ctx, &patches.pack(ctx, x)?, grid, told)?;
        Patches { channels: channels(self.config.out_channels), ..patches }.unpack(ctx, &flow, grid)
    }

    /// The same for patches: `[1, patches, 1, in_channels]`, which lie in a grid.
    pub(in crate::models::diffusion) fn flow(
        &self,
        ctx: &OpContext<'_>,
        patches: &FeatureMap,
        grid: [usize; 2],
        told: &Told<'_>,
    ) -> Result<FeatureMap> {
        let heads = self.config.heads;
        let words = told.text.pixels();
        let turns = Turns::new(words, grid, self.config.axes);
        let turn = |x: &mut FeatureMap| turns.apply(ctx, x, heads);
        // Times are told in parts of the whole, and so rounded.
        let told = Told { time: told.time / 1000. * 1000., ..*told };
        let vector = self.embedding.forward(ctx, &told)?;
        let mut x = ctx.linear(&self.patches, patches)?;
        let mut text = ctx.linear(&self.context, told.text)?;
        for block in &self.blocks {
            block.forward(ctx, &mut x, &mut text, &vector, &turn)?;
        }
        let mut all = join(ctx, &text, &x)?;
        drop((x, text));
        for single in &self.singles {
            single.forward(ctx, &mut all, &vector, &turn)?;
        }
        let [_, x] = split(ctx, &all, words)?;
        let (norm, moves) = &self.norm_out;
        let y = norm.forward(ctx, &vector)?.norm(ctx, &x, *moves)?;
        ctx.linear(&self.proj_out, &y)
    }
}
