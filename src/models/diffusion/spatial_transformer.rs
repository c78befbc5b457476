//! Spatial transformers between the residual blocks of a UNet: self-attention among latent pixels and cross-attention
//! to the prompt (Rombach et al. 2022, <https://arxiv.org/abs/2112.10752>).
//!
//! Names follow diffusers' `Transformer2DModel` and `BasicTransformerBlock`.

use outpost_kernels::Activation;

use super::attention::Attention;
use super::feature_map::FeatureMap;
use super::layers::{GroupNorm, Linear, Mlp, Norm, linear, linear_slice};
use super::op_context::{OpContext, Result};
use crate::models::weights::Loader;

#[derive(Debug)]
pub(super) struct SpatialTransformer {
    norm: GroupNorm,
    proj_in: Linear,
    blocks: Vec<Block>,
    proj_out: Linear,
}

/// The configuration of a spatial transformer.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpatialTransformerConfig {
    pub layers: usize,
    pub channels: usize,
    pub heads: usize,
    /// Width of a prompt embedding.
    pub context_width: usize,
    /// Groups of the group norm.
    pub groups: usize,
    /// Whether both attentions of a block are cross-attention.
    pub only_cross_attention: bool,
}

#[derive(Debug)]
struct Block {
    norms: [Norm; 3],
    attn1: Attention,
    attn2: Attention,
    mlp: Mlp,
    only_cross_attention: bool,
}

impl SpatialTransformer {
    pub fn load(loader: &Loader<'_>, stem: &str, config: &SpatialTransformerConfig) -> Result<Self> {
        let SpatialTransformerConfig { layers, channels, groups, .. } = *config;
        let name = |suffix: &str| format!("{stem}.{suffix}");
        let block = |index| Block::load(loader, &format!("{stem}.transformer_blocks.{index}"), config);
        Ok(Self {
            norm: GroupNorm::load(loader, &name("norm"), channels, groups, 1e-6)?,
            proj_in: linear(loader, &name("proj_in"), [channels; 2], true)?,
            blocks: (0..layers).map(block).collect::<Result<_>>()?,
            proj_out: linear(loader, &name("proj_out"), [channels; 2], true)?,
        })
    }

    /// `x`: `[images, height, width, channels]`; `context`: prompt embeddings, `[images, tokens, 1, context_width]`.
    pub fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap, context: &FeatureMap) -> Result<FeatureMap> {
        let y = ctx.group_norm(&self.norm, &x, None, false)?;
        let mut y = ctx.linear(&self.proj_in, &y)?;
        for block in &self.blocks {
            y = block.forward(ctx, y, context)?;
        }
        let y = ctx.linear(&self.proj_out, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}

impl Block {
    fn load(loader: &Loader<'_>, stem: &str, config: &SpatialTransformerConfig) -> Result<Self> {
        let SpatialTransformerConfig { channels, heads, context_width, only_cross_attention, .. } = *config;
        let name = |suffix: &str| format!("{stem}.{suffix}");
        let norm = |suffix: &str| Norm::load_layer_norm(loader, &name(suffix), channels, 1e-5);
        let attn1_context = if only_cross_attention { context_width } else { channels };
        let (proj, inner) = (name("ff.net.0.proj"), 4 * channels);
        Ok(Self {
            norms: [norm("norm1")?, norm("norm2")?, norm("norm3")?],
            attn1: Attention::load(loader, &name("attn1"), channels, attn1_context, heads, false)?,
            attn2: Attention::load(loader, &name("attn2"), channels, context_width, heads, false)?,
            // diffusers' GEGLU stores both projections in one matrix, the gate last.
            mlp: Mlp {
                up: linear_slice(loader, &proj, [channels, inner], 0, 2 * inner)?,
                gate: Some(linear_slice(loader, &proj, [channels, inner], inner, 2 * inner)?),
                down: linear(loader, &name("ff.net.2"), [inner, channels], true)?,
                activation: Activation::Gelu,
            },
            only_cross_attention,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap, context: &FeatureMap) -> Result<FeatureMap> {
        let [norm1, norm2, norm3] = &self.norms;
        let y = ctx.layer_norm(norm1, &x)?;
        let y = if self.only_cross_attention {
            self.attn1.cross(ctx, &y, context)?
        } else {
            self.attn1.forward(ctx, &y)?
        };
        let y = ctx.add_norm(norm2, &mut x, &y)?;
        let y = self.attn2.cross(ctx, &y, context)?;
        let y = ctx.add_norm(norm3, &mut x, &y)?;
        let y = ctx.feed_forward(&self.mlp, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}
