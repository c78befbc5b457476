//! Spatial transformers between the residual blocks of a UNet: self-attention among latent pixels and cross-attention
//! to the prompt (Rombach et al. 2022, <https://arxiv.org/abs/2112.10752>).
//!
//! Names follow diffusers' `Transformer2DModel` and `BasicTransformerBlock`.

use crate::backend::{Activation, Convolutions, GroupNorm, Norm, Tensor};

use super::attention::Attention;
use super::layers::{linear, linear_slice};
use crate::error::Result;
use crate::nn::{Context, Linear, Mlp};
use crate::weights::Loader;

#[derive(Debug)]
pub(super) struct SpatialTransformer<B: Convolutions> {
    norm: GroupNorm<B>,
    proj_in: Linear<B>,
    blocks: Vec<Block<B>>,
    proj_out: Linear<B>,
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
struct Block<B: Convolutions> {
    norms: [Norm<B>; 3],
    attn1: Attention<B>,
    attn2: Attention<B>,
    mlp: Mlp<B>,
    only_cross_attention: bool,
}

impl<B: Convolutions> SpatialTransformer<B> {
    pub fn load(loader: &Loader<'_, B>, stem: &str, config: &SpatialTransformerConfig) -> Result<Self> {
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
    pub fn forward(&self, ctx: &Context<'_, B>, mut x: Tensor<B>, context: &Tensor<B>) -> Result<Tensor<B>> {
        let y = ctx.group_norm(&self.norm, &x, None, false)?;
        let mut y = self.proj_in.forward(ctx, &y)?;
        for block in &self.blocks {
            y = block.forward(ctx, y, context)?;
        }
        let y = self.proj_out.forward(ctx, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}

impl<B: Convolutions> Block<B> {
    fn load(loader: &Loader<'_, B>, stem: &str, config: &SpatialTransformerConfig) -> Result<Self> {
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

    fn forward(&self, ctx: &Context<'_, B>, mut x: Tensor<B>, context: &Tensor<B>) -> Result<Tensor<B>> {
        let [norm1, norm2, norm3] = &self.norms;
        let y = ctx.norm(norm1, &x)?;
        let y = if self.only_cross_attention {
            self.attn1.cross(ctx, &y, context)?
        } else {
            self.attn1.forward(ctx, &y)?
        };
        let y = ctx.add_norm(norm2, &mut x, &y)?;
        let y = self.attn2.cross(ctx, &y, context)?;
        let y = ctx.add_norm(norm3, &mut x, &y)?;
        let y = self.mlp.forward(ctx, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}
