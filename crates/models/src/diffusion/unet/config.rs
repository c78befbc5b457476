//! The configuration of a UNet, from the `config.json` of diffusers' `UNet2DConditionModel`.

use serde_json::{Value, json};

use crate::config_json::ConfigJson;
use crate::diffusion::config_values::{per_block, positive, require, size_pair, string_list};
use crate::error::{Result, reject_config};

const MAX_CHANNELS: usize = 1 << 14;
const MAX_LAYERS: usize = 64;
const MAX_BLOCKS: usize = 16;

/// Fields that change the computation, with their supported values.
fn restricted_fields() -> [(&'static str, Vec<Value>); 17] {
    let disabled = || vec![json!(false)];
    [
        ("center_input_sample", disabled()),
        ("mid_block_type", vec![json!("UNetMidBlock2DCrossAttn")]),
        ("act_fn", vec![json!("silu"), json!("swish")]),
        ("dual_cross_attention", disabled()),
        ("class_embed_type", vec![]),
        ("num_class_embeds", vec![]),
        ("addition_embed_type", vec![json!("text_time")]),
        ("encoder_hid_dim_type", vec![]),
        ("resnet_skip_time_act", disabled()),
        ("time_embedding_type", vec![json!("positional")]),
        ("time_embedding_act_fn", vec![]),
        ("timestep_post_act", vec![]),
        ("attention_type", vec![json!("default")]),
        ("class_embeddings_concat", disabled()),
        ("cross_attention_norm", vec![]),
        ("num_attention_heads", vec![]),
        ("mid_block_only_cross_attention", disabled()),
    ]
}

/// The configuration of a UNet.
#[derive(Clone, Debug, PartialEq)]
pub struct UnetConfig {
    /// Height and width of the latents in training.
    pub sample_size: Option<[usize; 2]>,
    pub in_channels: usize,
    pub out_channels: usize,
    /// Resolution levels, from the highest resolution to the lowest.
    pub levels: Vec<Level>,
    /// Whether each up block has transformers, from the lowest resolution to the highest.
    pub up_attention: Vec<bool>,
    /// Transformer layers of the up blocks, if they differ from those of the down blocks.
    pub up_transformer_layers: Option<Vec<Vec<usize>>>,
    /// Groups of the group norms.
    pub groups: usize,
    pub epsilon: f32,
    pub time: TimeConfig,
    /// The timestep embedding scales and shifts. Otherwise it only shifts.
    pub time_scale_shift: bool,
    pub downsample_padding: usize,
    pub mid_scale_factor: f32,
    pub output_scale_factor: f32,
    /// Kernel sizes of the first and the last convolution.
    pub conv_kernels: [usize; 2],
    /// Micro-conditioning (SDXL).
    pub micro_conditioning: Option<MicroConditioningConfig>,
}

/// One resolution level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    pub channels: usize,
    pub resnets: usize,
    /// Whether the down block has transformers.
    pub attention: bool,
    pub heads: usize,
    /// Layers of each transformer.
    pub transformer_layers: Vec<usize>,
    /// Width of a prompt embedding.
    pub context_width: usize,
    pub only_cross_attention: bool,
}

/// The configuration of the timestep embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeConfig {
    /// Width of the sinusoidal embedding.
    pub sinusoid_dim: usize,
    pub cosines_first: bool,
    pub freq_shift: f32,
    /// Width of the timestep embedding.
    pub width: usize,
    /// Width of the sinusoidal embedding of the guidance scale (guidance-distilled models).
    pub guidance_dim: Option<usize>,
}

/// Micro-conditioning (Podell et al. 2023, <https://arxiv.org/abs/2307.01952>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroConditioningConfig {
    /// Width of the sinusoidal embedding of each size.
    pub sinusoid_dim: usize,
    /// Width of the pooled prompt embedding and the embeddings of all sizes together.
    pub total_width: usize,
}

impl UnetConfig {
    pub fn read(value: &Value) -> Result<Self> {
        let config = ConfigJson { value, path: "unet/" };
        let class = config.text("_class_name")?.unwrap_or("UNet2DConditionModel");
        if class != "UNet2DConditionModel" {
            return reject_config(format!("the UNet is a {class}; only UNet2DConditionModel is supported"));
        }
        restricted_fields().iter().try_for_each(|(key, values)| require(&config, key, values))?;
        let time_scale_shift = match config.text("resnet_time_scale_shift")? {
            None | Some("default") => false,
            Some("scale_shift") => true,
            Some(other) => {
                return reject_config(format!("unet/resnet_time_scale_shift is {other}, which is not supported"));
            }
        };
        let levels = levels(&config)?;
        let first_channels = levels.first().map_or(0, |level| level.channels);
        let micro_conditioning = match config.text("addition_embed_type")? {
            None => None,
            Some(_) => Some(MicroConditioningConfig {
                sinusoid_dim: config.required("addition_time_embed_dim", MAX_CHANNELS)?,
                total_width: config.required("projection_class_embeddings_input_dim", 1 << 20)?,
            }),
        };
        let time = TimeConfig {
            sinusoid_dim: first_channels,
            cosines_first: config.flag("flip_sin_to_cos")?.unwrap_or(true),
            freq_shift: fraction(&config, "freq_shift", 0.)?,
            width: config.integer("time_embedding_dim", 1 << 16)?.unwrap_or(4 * first_channels),
            guidance_dim: config.integer("time_cond_proj_dim", MAX_CHANNELS)?,
        };
        Ok(Self {
            sample_size: size_pair(&config, "sample_size", 1 << 14)?,
            in_channels: config.integer("in_channels", MAX_CHANNELS)?.unwrap_or(4),
            out_channels: config.integer("out_channels", MAX_CHANNELS)?.unwrap_or(4),
            up_attention: up_attention(&config, levels.len())?,
            up_transformer_layers: transformer_layers(&config, "reverse_transformer_layers_per_block", &levels)?,
            levels,
            groups: config.integer("norm_num_groups", MAX_CHANNELS)?.unwrap_or(32),
            epsilon: config.float("norm_eps")?.unwrap_or(1e-5),
            time,
            time_scale_shift,
            downsample_padding: fraction(&config, "downsample_padding", 1.)? as usize,
            mid_scale_factor: config.float("mid_block_scale_factor")?.unwrap_or(1.),
            output_scale_factor: config.float("resnet_out_scale_factor")?.unwrap_or(1.),
            conv_kernels: [
                config.integer("conv_in_kernel", 15)?.unwrap_or(3),
                config.integer("conv_out_kernel", 15)?.unwrap_or(3),
            ],
            micro_conditioning,
        })
    }

    /// The level with the lowest resolution.
    pub fn last_level(&self) -> Option<&Level> {
        self.levels.last()
    }
}

/// A number from 0 to 1.
fn fraction(config: &ConfigJson<'_>, key: &str, default: f32) -> Result<f32> {
    match config.get(key).map(|value| value.as_f64()) {
        None => Ok(default),
        Some(Some(number)) if (0. ..=1.).contains(&number) => Ok(number as f32),
        Some(_) => reject_config(format!("{}{key} must be a number from 0 to 1", config.path)),
    }
}

fn levels(config: &ConfigJson<'_>) -> Result<Vec<Level>> {
    let channels = config.list("block_out_channels", |value| positive(value, MAX_CHANNELS))?;
    let channels = channels.unwrap_or_else(|| vec![320, 640, 1280, 1280]);
    let count = channels.len();
    if !(1..=MAX_BLOCKS).contains(&count) {
        return reject_config(format!("unet/block_out_channels has {count} entries; 1 to {MAX_BLOCKS} are allowed"));
    }
    let types = string_list(config, "down_block_types")?;
    let default_types = ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"];
    let attention = block_attention("down_block_types", types.unwrap_or(default_types.to_vec()), count, "DownBlock2D")?;
    let resnets = per_block(config, "layers_per_block", count, MAX_LAYERS, Some(2))?;
    let heads = per_block(config, "attention_head_dim", count, MAX_CHANNELS, Some(8))?;
    let context_widths = per_block(config, "cross_attention_dim", count, MAX_CHANNELS, Some(1280))?;
    let only_cross_attention = match config.get("only_cross_attention") {
        None => vec![false; count],
        Some(Value::Bool(flag)) => vec![*flag; count],
        Some(_) => config.list("only_cross_attention", Value::as_bool)?.unwrap_or_default(),
    };
    if only_cross_attention.len() != count {
        return reject_config(format!(
            "unet/only_cross_attention has {} entries for {count} blocks",
            only_cross_attention.len()
        ));
    }
    let mut levels = Vec::with_capacity(count);
    for (index, channels) in channels.into_iter().enumerate() {
        let at_level = |values: &[usize]| values.get(index).copied().unwrap_or(1);
        let (heads, resnets) = (at_level(&heads), at_level(&resnets));
        let attention = attention.get(index).is_some_and(|attention| *attention);
        if (attention || index + 1 == count) && !channels.is_multiple_of(heads) {
            return reject_config(format!("{channels} channels of a UNet block do not divide into {heads} heads"));
        }
        let only_cross_attention = only_cross_attention.get(index).is_some_and(|only_cross| *only_cross);
        levels.push(Level {
            channels,
            resnets,
            attention,
            heads,
            transformer_layers: vec![1; resnets],
            context_width: at_level(&context_widths),
            only_cross_attention,
        });
    }
    if let Some(layers) = transformer_layers(config, "transformer_layers_per_block", &levels)? {
        levels.iter_mut().zip(layers).for_each(|(level, layers)| level.transformer_layers = layers);
    }
    Ok(levels)
}

/// Whether each block has transformers. `plain` is the type of a block without them.
fn block_attention(key: &str, types: Vec<&str>, count: usize, plain: &str) -> Result<Vec<bool>> {
    if types.len() != count {
        return reject_config(format!("unet/{key} has {} entries for {count} blocks", types.len()));
    }
    let cross_attention = format!("CrossAttn{plain}");
    let has_transformers = |block_type: &str| match block_type {
        _ if block_type == cross_attention => Ok(true),
        _ if block_type == plain => Ok(false),
        _ => reject_config(format!("unet/{key} has {block_type}; {cross_attention} and {plain} are supported")),
    };
    types.into_iter().map(has_transformers).collect()
}

/// Whether each up block has transformers.
fn up_attention(config: &ConfigJson<'_>, count: usize) -> Result<Vec<bool>> {
    let default_types = vec!["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"];
    let types = string_list(config, "up_block_types")?.unwrap_or(default_types);
    block_attention("up_block_types", types, count, "UpBlock2D")
}

/// Layers of each transformer of each block: one value for all, one for each block, or one for each transformer.
fn transformer_layers(config: &ConfigJson<'_>, key: &str, levels: &[Level]) -> Result<Option<Vec<Vec<usize>>>> {
    let Some(value) = config.get(key) else { return Ok(None) };
    let reject =
        || reject_config(format!("unet/{key} is {value}; it must give layers for each of {} blocks", levels.len()));
    let block_layers = |value: &Value, count: usize| match value {
        Value::Array(values) => values.iter().map(|value| positive(value, MAX_LAYERS)).collect::<Option<Vec<_>>>(),
        value => positive(value, MAX_LAYERS).map(|layers| vec![layers; count]),
    };
    let layers = match value {
        Value::Array(values) if values.len() == levels.len() => {
            // Up blocks have one more transformer than down blocks.
            values.iter().zip(levels).map(|(value, level)| block_layers(value, level.resnets + 1)).collect()
        }
        Value::Array(_) => None,
        value => levels.iter().map(|level| block_layers(value, level.resnets + 1)).collect::<Option<Vec<_>>>(),
    };
    layers.map_or_else(reject, |layers| Ok(Some(layers)))
}
