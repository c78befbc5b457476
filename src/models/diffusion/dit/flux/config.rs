//! FLUX's configuration, from the `config.json` of diffusers' `FluxTransformer2DModel`.

use serde_json::{Value, json};

use crate::models::config_json::ConfigJson;
use crate::models::diffusion::config_values::{positive, require};
use crate::models::error::{ModelError, reject_config};

/// The configuration of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FluxConfig {
    /// Elements of a patch of 2 × 2 latent pixels.
    pub in_channels: usize,
    pub out_channels: usize,
    /// Joint blocks, with separate weights for patches and text,
    pub layers: usize,
    /// and single blocks, with shared weights.
    pub single_layers: usize,
    pub heads: usize,
    pub width: usize,
    /// Width of a prompt embedding, and of the pooled one.
    pub context: usize,
    pub pooled: usize,
    /// Whether the guidance scale is an input: \[dev\], not \[schnell\].
    pub guided: bool,
    /// Rotated elements of a head for each axis: none, row and column.
    pub axes: [usize; 3],
}

impl FluxConfig {
    /// The configuration of FLUX.1 \[dev\] (`guided`) and \[schnell\].
    pub fn flux1(guided: bool) -> Self {
        Self {
            in_channels: 64,
            out_channels: 64,
            layers: 19,
            single_layers: 38,
            heads: 24,
            width: 24 * 128,
            context: 4096,
            pooled: 768,
            guided,
            axes: [16, 56, 56],
        }
    }

    pub fn read(value: &Value) -> Result<Self, ModelError> {
        let config = ConfigJson { value, path: "transformer/" };
        require(&config, "patch_size", &[json!(1)])?;
        let number =
            |key: &str, usual: usize, most: usize| Ok::<_, ModelError>(config.integer(key, most)?.unwrap_or(usual));
        let (heads, head) = (number("num_attention_heads", 24, 1 << 10)?, number("attention_head_dim", 128, 1 << 12)?);
        let in_channels = number("in_channels", 64, 1 << 12)?;
        let axes = config.list("axes_dims_rope", |one| positive(one, head))?.unwrap_or_else(|| vec![16, 56, 56]);
        let axes = <[usize; 3]>::try_from(axes).ok();
        let axes =
            axes.filter(|axes| axes.iter().all(|axis| axis.is_multiple_of(2)) && axes.iter().sum::<usize>() == head);
        let Some(axes) = axes else {
            return reject_config(format!(
                "transformer/axes_dims_rope must be three even numbers that are {head} together, as attention_head_dim is"
            ));
        };
        Ok(Self {
            in_channels,
            out_channels: number("out_channels", in_channels, 1 << 12)?,
            layers: number("num_layers", 19, 256)?,
            single_layers: number("num_single_layers", 38, 256)?,
            heads,
            width: heads * head,
            context: number("joint_attention_dim", 4096, 1 << 16)?,
            pooled: number("pooled_projection_dim", 768, 1 << 16)?,
            guided: config.flag("guidance_embeds")?.unwrap_or(false),
            axes,
        })
    }
}
