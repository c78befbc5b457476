//! An MMDiT's configuration, from the `config.json` of diffusers' `SD3Transformer2DModel`.

use serde_json::{Value, json};

use crate::models::config_json::ConfigJson;
use crate::models::diffusion::config_values::{non_negative, require};
use crate::models::error::{ModelError, reject_config};

const MAX_LAYERS: usize = 256;

/// The configuration of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MmditConfig {
    /// Height and width of the latents in training.
    pub sample_size: usize,
    /// Latent pixels along a patch's side.
    pub patch: usize,
    pub in_channels: usize,
    pub out_channels: usize,
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    /// Width of a prompt embedding, and of the pooled one.
    pub context: usize,
    pub pooled: usize,
    /// Maximum patches along a side.
    pub positions: usize,
    /// Whether each layer has dual attention.
    pub dual_attention: Vec<bool>,
    /// Whether queries and keys are normalised.
    pub qk_norm: bool,
}

impl MmditConfig {
    pub fn read(value: &Value) -> Result<Self, ModelError> {
        let config = ConfigJson { value, path: "transformer/" };
        require(&config, "qk_norm", &[json!("rms_norm")])?;
        let number =
            |key: &str, usual: usize, most: usize| Ok::<_, ModelError>(config.integer(key, most)?.unwrap_or(usual));
        let (heads, head) = (number("num_attention_heads", 18, 1 << 10)?, number("attention_head_dim", 64, 1 << 12)?);
        let (layers, in_channels) = (number("num_layers", 18, MAX_LAYERS)?, number("in_channels", 16, 1 << 10)?);
        let width = heads * head;
        let caption = number("caption_projection_dim", 1152, 1 << 22)?;
        if caption != width {
            return reject_config(format!(
                "transformer/caption_projection_dim is {caption}, only that of {heads} heads of {head}, {width}, is supported"
            ));
        }
        Ok(Self {
            sample_size: number("sample_size", 128, 1 << 14)?,
            patch: number("patch_size", 2, 64)?,
            in_channels,
            out_channels: number("out_channels", in_channels, 1 << 10)?,
            layers,
            heads,
            width,
            context: number("joint_attention_dim", 4096, 1 << 16)?,
            pooled: number("pooled_projection_dim", 2048, 1 << 16)?,
            positions: number("pos_embed_max_size", 96, 1 << 12)?,
            dual_attention: dual_attention(&config, layers)?,
            qk_norm: config.text("qk_norm")?.is_some(),
        })
    }
}

fn dual_attention(config: &ConfigJson<'_>, layers: usize) -> Result<Vec<bool>, ModelError> {
    let listed = config.list("dual_attention_layers", |one| non_negative(one, layers - 1))?.unwrap_or_default();
    Ok((0..layers).map(|layer| listed.contains(&layer)).collect())
}
