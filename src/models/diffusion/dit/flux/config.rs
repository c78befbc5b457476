//! FLUX's sizes, from the `config.json` of diffusers' `FluxTransformer2DModel`.

use serde_json::{Value, json};

use crate::models::ModelError;
use crate::models::diffusion::config_values::{positive, require};
use crate::models::hyper::config::Config;
use crate::models::hyper::refuse;

/// Sizes of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FluxConfig {
    /// Numbers of a patch: two by two pixels of latents.
    pub in_channels: usize,
    pub out_channels: usize,
    /// Blocks with weights of their own for patches and words,
    pub layers: usize,
    /// and with the same for both.
    pub single_layers: usize,
    pub heads: usize,
    pub width: usize,
    /// Numbers of a word, and of a text.
    pub context: usize,
    pub pooled: usize,
    /// Whether it is told how strong the guidance is: \[dev\], not \[schnell\].
    pub guided: bool,
    /// Numbers of a head that are turned by each number of a position: none, the row and the column.
    pub axes: [usize; 3],
}

impl FluxConfig {
    /// Those of FLUX.1 \[dev\], which is told of guidance, and \[schnell\].
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
        let config = Config { value, path: "transformer/" };
        require(&config, "patch_size", &[json!(1)])?;
        let number =
            |key: &str, usual: usize, most: usize| Ok::<_, ModelError>(config.whole(key, most)?.unwrap_or(usual));
        let (heads, head) = (number("num_attention_heads", 24, 1 << 10)?, number("attention_head_dim", 128, 1 << 12)?);
        let in_channels = number("in_channels", 64, 1 << 12)?;
        let axes = config.list("axes_dims_rope", |one| positive(one, head))?.unwrap_or_else(|| vec![16, 56, 56]);
        let axes = <[usize; 3]>::try_from(axes).ok();
        let axes =
            axes.filter(|axes| axes.iter().all(|axis| axis.is_multiple_of(2)) && axes.iter().sum::<usize>() == head);
        let Some(axes) = axes else {
            return refuse(format!(
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
