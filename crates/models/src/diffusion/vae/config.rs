//! The configuration of an autoencoder, from the `config.json` of diffusers' `AutoencoderKL`.

use serde_json::{Value, json};

use crate::config_json::ConfigJson;
use crate::diffusion::config_values::{per_block, positive, require, size_pair, string_list};
use crate::error::{ModelError, Result, reject_config};

const MAX_CHANNELS: usize = 1 << 14;
const MAX_BLOCKS: usize = 16;

/// The configuration of an autoencoder.
#[derive(Clone, Debug, PartialEq)]
pub struct VaeConfig {
    pub in_channels: usize,
    pub out_channels: usize,
    pub latent_channels: usize,
    /// Channels of each resolution level, from the highest resolution to the lowest.
    pub channels: Vec<usize>,
    /// Residual blocks of each encoder level.
    pub layers: usize,
    pub groups: usize,
    pub mid_attention: bool,
    pub has_quant_conv: bool,
    pub has_post_quant_conv: bool,
    /// The autoencoder's latents are the scaled latents divided by `scaling`, plus `shift`.
    pub scaling: f32,
    pub shift: f32,
    /// Height and width of the images in training.
    pub sample_size: Option<[usize; 2]>,
}

impl VaeConfig {
    pub fn read(value: &Value) -> Result<Self> {
        let config = ConfigJson { value, path: "vae/" };
        let class = config.text("_class_name")?.unwrap_or("AutoencoderKL");
        if class != "AutoencoderKL" {
            return reject_config(format!("the autoencoder is a {class}; only AutoencoderKL is supported"));
        }
        require(&config, "act_fn", &[json!("silu"), json!("swish")])?;
        require(&config, "latents_mean", &[])?;
        require(&config, "latents_std", &[])?;
        let channels =
            config.list("block_out_channels", |value| positive(value, MAX_CHANNELS))?.unwrap_or_else(|| vec![64]);
        if !(1..=MAX_BLOCKS).contains(&channels.len()) {
            return reject_config(format!(
                "vae/block_out_channels has {} entries; 1 to {MAX_BLOCKS} are allowed",
                channels.len()
            ));
        }
        for (key, supported) in [("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")] {
            let types = string_list(&config, key)?.unwrap_or_else(|| vec![supported; channels.len()]);
            if types.len() != channels.len() {
                return reject_config(format!("vae/{key} has {} entries for {} blocks", types.len(), channels.len()));
            }
            if let Some(other) = types.iter().find(|block_type| **block_type != supported) {
                return reject_config(format!("vae/{key} has {other}; {supported} is supported"));
            }
        }
        let layers = per_block(&config, "layers_per_block", 1, 64, Some(1))?;
        let shift = config.get("shift_factor").map(|value| value.as_f64().filter(|number| number.is_finite()));
        let Some(shift) = shift.unwrap_or(Some(0.)) else {
            return reject_config("vae/shift_factor must be a number".to_owned());
        };
        let flag = |key: &str| Ok::<_, ModelError>(config.flag(key)?.unwrap_or(true));
        Ok(Self {
            in_channels: config.integer("in_channels", MAX_CHANNELS)?.unwrap_or(3),
            out_channels: config.integer("out_channels", MAX_CHANNELS)?.unwrap_or(3),
            latent_channels: config.integer("latent_channels", MAX_CHANNELS)?.unwrap_or(4),
            channels,
            layers: layers.first().copied().unwrap_or(1),
            groups: config.integer("norm_num_groups", MAX_CHANNELS)?.unwrap_or(32),
            mid_attention: flag("mid_block_add_attention")?,
            has_quant_conv: flag("use_quant_conv")?,
            has_post_quant_conv: flag("use_post_quant_conv")?,
            scaling: config.float("scaling_factor")?.unwrap_or(0.18215),
            shift: shift as f32,
            sample_size: size_pair(&config, "sample_size", 1 << 16)?,
        })
    }

    /// The downscaling factor: image pixels per latent pixel along an axis.
    pub fn factor(&self) -> usize {
        1 << self.channels.len().saturating_sub(1)
    }
}
