//! Spatial transformers between the residual blocks of a UNet: self-attention of pixels, and cross-attention to the
//! text (Rombach et al. 2022, <https://arxiv.org/abs/2112.10752>).

use outpost_kernels::Activation;

use super::attention::Attention;
use super::feature_map::FeatureMap;
use super::layers::{GroupNorm, Linear, Loaded, Mlp, Norm, linear, linear_slice};
use super::op_context::{OpContext, Result};
use crate::models::weights::Loader;

#[derive(Debug)]
pub(super) struct Transformer {
    norm: GroupNorm,
    proj_in: Linear,
    blocks: Vec<Block>,
    proj_out: Linear,
}

/// A transformer's dimensions.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransformerSizes {
    pub layers: usize,
    pub channels: usize,
    pub heads: usize,
    /// Width of a prompt embedding.
    pub context: usize,
    pub groups: usize,
    /// Whether the first attention is cross-attention, too.
    pub only_cross: bool,
}

#[derive(Debug)]
struct Block {
    norms: [Norm; 3],
    attn1: Attention,
    attn2: Attention,
    mlp: Mlp,
    only_cross: bool,
}

impl Transformer {
    pub fn load(loader: &Loader<'_>, stem: &str, sizes: &TransformerSizes) -> Loaded<Self> {
        let TransformerSizes { layers, channels, groups, .. } = *sizes;
        let name = |part: &str| format!("{stem}.{part}");
        let block = |index| Block::load(loader, &format!("{stem}.transformer_blocks.{index}"), sizes);
        Ok(Self {
            norm: GroupNorm::load(loader, &name("norm"), channels, groups, 1e-6)?,
            proj_in: linear(loader, &name("proj_in"), [channels; 2], true)?,
            blocks: (0..layers).map(block).collect::<Loaded<_>>()?,
            proj_out: linear(loader, &name("proj_out"), [channels; 2], true)?,
        })
    }

    /// `text`: `[images, tokens, 1, context]`
    pub fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap, text: &FeatureMap) -> Result<FeatureMap> {
        let y = ctx.group_norm(&self.norm, &x, None, false)?;
        let mut y = ctx.linear(&self.proj_in, &y)?;
        for block in &self.blocks {
            y = block.forward(ctx, y, text)?;
        }
        let y = ctx.linear(&self.proj_out, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}

impl Block {
    fn load(loader: &Loader<'_>, stem: &str, sizes: &TransformerSizes) -> Loaded<Self> {
        let TransformerSizes { channels, heads, context, only_cross, .. } = *sizes;
        let name = |part: &str| format!("{stem}.{part}");
        let norm = |part: &str| Norm::load_layer_norm(loader, &name(part), channels, 1e-5);
        let first = if only_cross { context } else { channels };
        let (proj, inner) = (name("ff.net.0.proj"), 4 * channels);
        Ok(Self {
            norms: [norm("norm1")?, norm("norm2")?, norm("norm3")?],
            attn1: Attention::load(loader, &name("attn1"), channels, first, heads, false)?,
            attn2: Attention::load(loader, &name("attn2"), channels, context, heads, false)?,
            // diffusers' GEGLU stores both in one matrix, the gate last.
            mlp: Mlp {
                up: linear_slice(loader, &proj, [channels, inner], 0, 2 * inner)?,
                gate: Some(linear_slice(loader, &proj, [channels, inner], inner, 2 * inner)?),
                down: linear(loader, &name("ff.net.2"), [inner, channels], true)?,
                activation: Activation::Gelu,
            },
            only_cross,
        })
    }

    fn forward(&self, ctx: &OpContext<'_>, mut x: FeatureMap, text: &FeatureMap) -> Result<FeatureMap> {
        let [norm1, norm2, norm3] = &self.norms;
        let y = ctx.layer_norm(norm1, &x)?;
        let y = if self.only_cross { self.attn1.cross(ctx, &y, text)? } else { self.attn1.forward(ctx, &y)? };
        let y = ctx.add_norm(norm2, &mut x, &y)?;
        let y = self.attn2.cross(ctx, &y, text)?;
        let y = ctx.add_norm(norm3, &mut x, &y)?;
        let y = ctx.feed_forward(&self.mlp, &y)?;
        ctx.add(&mut x, &y)?;
        Ok(x)
    }
}
