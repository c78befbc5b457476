//! The configuration of an MMDiT, from the `config.json` of diffusers' `SD3Transformer2DModel`.

use serde_json::{Value, json};

use crate::config_json::ConfigJson;
use crate::diffusion::config_values::{non_negative, require};
use crate::error::{ModelError, Result, reject_config};

const MAX_LAYERS: usize = 256;

/// The configuration of an MMDiT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MmditConfig {
    /// Height and width of the latents in training.
    pub sample_size: usize,
    /// Side of a patch in latent pixels.
    pub patch_size: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    /// Width of a prompt embedding.
    pub context_width: usize,
    /// Width of a pooled prompt embedding.
    pub pooled_width: usize,
    /// Maximum height and width of the grid of patches.
    pub max_grid_side: usize,
    /// Whether each layer has a second attention among image patches (Stable Diffusion 3.5).
    pub dual_attention: Vec<bool>,
    /// Queries and keys are normalised.
    pub qk_norm: bool,
}

impl MmditConfig {
    pub fn read(value: &Value) -> Result<Self> {
        let config = ConfigJson { value, path: "transformer/" };
        require(&config, "qk_norm", &[json!("rms_norm")])?;
        let number =
            |key: &str, default: usize, max: usize| Ok::<_, ModelError>(config.integer(key, max)?.unwrap_or(default));
        let (heads, head_dim) =
            (number("num_attention_heads", 18, 1 << 10)?, number("attention_head_dim", 64, 1 << 12)?);
        let (layers, in_channels) = (number("num_layers", 18, MAX_LAYERS)?, number("in_channels", 16, 1 << 10)?);
        let width = heads * head_dim;
        let caption = number("caption_projection_dim", 1152, 1 << 22)?;
        if caption != width {
            return reject_config(format!(
                "transformer/caption_projection_dim is {caption}; only {width}, the width of {heads} heads of {head_dim}, is supported"
            ));
        }
        Ok(Self {
            sample_size: number("sample_size", 128, 1 << 14)?,
            patch_size: number("patch_size", 2, 64)?,
            in_channels,
            out_channels: number("out_channels", in_channels, 1 << 10)?,
            layers,
            heads,
            width,
            context_width: number("joint_attention_dim", 4096, 1 << 16)?,
            pooled_width: number("pooled_projection_dim", 2048, 1 << 16)?,
            max_grid_side: number("pos_embed_max_size", 96, 1 << 12)?,
            dual_attention: dual_attention(&config, layers)?,
            qk_norm: config.text("qk_norm")?.is_some(),
        })
    }
}

fn dual_attention(config: &ConfigJson<'_>, layers: usize) -> Result<Vec<bool>> {
    let dual_layers =
        config.list("dual_attention_layers", |layer| non_negative(layer, layers - 1))?.unwrap_or_default();
    Ok((0..layers).map(|layer| dual_layers.contains(&layer)).collect())
}
