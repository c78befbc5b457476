//! The configuration of FLUX, from the `config.json` of diffusers' `FluxTransformer2DModel`.

use serde_json::{Value, json};

use crate::config_json::ConfigJson;
use crate::diffusion::config_values::{positive, require};
use crate::error::{ModelError, Result, reject_config};

/// The configuration of a FLUX transformer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FluxConfig {
    /// Elements of an input patch of 2 × 2 latent pixels.
    pub in_channels: usize,
    pub out_channels: usize,
    /// The number of joint blocks, with separate weights for image patches and text tokens.
    pub layers: usize,
    /// The number of single blocks, with shared weights.
    pub single_layers: usize,
    pub heads: usize,
    pub width: usize,
    /// Width of a prompt embedding.
    pub context_width: usize,
    /// Width of a pooled prompt embedding.
    pub pooled_width: usize,
    /// Whether the guidance scale is an input: \[dev\], not \[schnell\].
    pub guidance_embeds: bool,
    /// Elements of a head that are rotated by each coordinate: zero, row and column.
    pub rope_axes: [usize; 3],
}

impl FluxConfig {
    /// The configuration of FLUX.1 \[dev\] (`guidance_embeds`) and \[schnell\].
    pub fn flux1(guidance_embeds: bool) -> Self {
        Self {
            in_channels: 64,
            out_channels: 64,
            layers: 19,
            single_layers: 38,
            heads: 24,
            width: 24 * 128,
            context_width: 4096,
            pooled_width: 768,
            guidance_embeds,
            rope_axes: [16, 56, 56],
        }
    }

    pub fn read(value: &Value) -> Result<Self> {
        let config = ConfigJson { value, path: "transformer/" };
        require(&config, "patch_size", &[json!(1)])?;
        let number =
            |key: &str, default: usize, max: usize| Ok::<_, ModelError>(config.integer(key, max)?.unwrap_or(default));
        let (heads, head_dim) =
            (number("num_attention_heads", 24, 1 << 10)?, number("attention_head_dim", 128, 1 << 12)?);
        let in_channels = number("in_channels", 64, 1 << 12)?;
        let axes = config.list("axes_dims_rope", |axis| positive(axis, head_dim))?.unwrap_or_else(|| vec![16, 56, 56]);
        let axes = <[usize; 3]>::try_from(axes).ok();
        let axes = axes
            .filter(|axes| axes.iter().all(|axis| axis.is_multiple_of(2)) && axes.iter().sum::<usize>() == head_dim);
        let Some(axes) = axes else {
            return reject_config(format!(
                "transformer/axes_dims_rope must be three even numbers whose sum is attention_head_dim, {head_dim}"
            ));
        };
        Ok(Self {
            in_channels,
            out_channels: number("out_channels", in_channels, 1 << 12)?,
            layers: number("num_layers", 19, 256)?,
            single_layers: number("num_single_layers", 38, 256)?,
            heads,
            width: heads * head_dim,
            context_width: number("joint_attention_dim", 4096, 1 << 16)?,
            pooled_width: number("pooled_projection_dim", 768, 1 << 16)?,
            guidance_embeds: config.flag("guidance_embeds")?.unwrap_or(false),
            rope_axes: axes,
        })
    }
}
