//! A UNet's configuration, from the `config.json` of diffusers' `UNet2DConditionModel`.

use serde_json::{Value, json};

use crate::models::config_json::ConfigJson;
use crate::models::diffusion::config_values::{per_block, positive, require, size_pair, string_list};
use crate::models::error::{Result, reject_config};

const MAX_CHANNELS: usize = 1 << 14;
const MAX_LAYERS: usize = 64;
const MAX_BLOCKS: usize = 16;

/// Fields that change the computation, and their supported values.
fn unsupported() -> [(&'static str, Vec<Value>); 17] {
    let no = || vec![json!(false)];
    [
        ("center_input_sample", no()),
        ("mid_block_type", vec![json!("UNetMidBlock2DCrossAttn")]),
        ("act_fn", vec![json!("silu"), json!("swish")]),
        ("dual_cross_attention", no()),
        ("class_embed_type", vec![]),
        ("num_class_embeds", vec![]),
        ("addition_embed_type", vec![json!("text_time")]),
        ("encoder_hid_dim_type", vec![]),
        ("resnet_skip_time_act", no()),
        ("time_embedding_type", vec![json!("positional")]),
        ("time_embedding_act_fn", vec![]),
        ("timestep_post_act", vec![]),
        ("attention_type", vec![json!("default")]),
        ("class_embeddings_concat", no()),
        ("cross_attention_norm", vec![]),
        ("num_attention_heads", vec![]),
        ("mid_block_only_cross_attention", no()),
    ]
}

/// The configuration of a UNet.
#[derive(Clone, Debug, PartialEq)]
pub struct UnetConfig {
    /// Height and width of the latents in training.
    pub sample_size: Option<[usize; 2]>,
    pub in_channels: usize,
    pub out_channels: usize,
    /// From the largest image size to the smallest.
    pub levels: Vec<Level>,
    /// Whether each up block has transformers, from the smallest image size on.
    pub up_attends: Vec<bool>,
    /// Transformer layers of the up blocks, if they differ from the down blocks'.
    pub up_transformers: Option<Vec<Vec<usize>>>,
    pub groups: usize,
    pub epsilon: f32,
    pub time: TimeConfig,
    pub time_scale_shift: bool,
    pub downsample_padding: usize,
    pub mid_scale_factor: f32,
    pub output_scale_factor: f32,
    pub kernels: [usize; 2],
    /// SDXL's micro-conditioning.
    pub added: Option<MicroConditioningConfig>,
}

/// One image size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    pub channels: usize,
    pub resnets: usize,
    pub attends: bool,
    pub heads: usize,
    /// Layers of each transformer.
    pub transformers: Vec<usize>,
    /// Width of a prompt embedding.
    pub context: usize,
    pub only_cross: bool,
}

/// The timestep embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeConfig {
    /// Width of the sinusoidal embedding,
    pub sinusoid_dim: usize,
    pub cosines_first: bool,
    pub shift: f32,
    /// and of the result.
    pub width: usize,
    /// Width of the guidance scale's embedding (distilled models).
    pub guidance: Option<usize>,
}

/// Micro-conditioning (Podell et al. 2023, <https://arxiv.org/abs/2307.01952>).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroConditioningConfig {
    /// Width of each size's sinusoidal embedding, and of all of them with the pooled text.
    pub sinusoid_dim: usize,
    pub total: usize,
}

impl UnetConfig {
    pub fn read(value: &Value) -> Result<Self> {
        let config = ConfigJson { value, path: "unet/" };
        let class = config.text("_class_name")?.unwrap_or("UNet2DConditionModel");
        if class != "UNet2DConditionModel" {
            return reject_config(format!("the UNet is a {class}; only UNet2DConditionModel is supported"));
        }
        unsupported().iter().try_for_each(|(key, values)| require(&config, key, values))?;
        let scales = match config.text("resnet_time_scale_shift")? {
            None | Some("default") => false,
            Some("scale_shift") => true,
            Some(other) => {
                return reject_config(format!("unet/resnet_time_scale_shift is {other}, which is not supported"));
            }
        };
        let levels = levels(&config)?;
        let first = levels.first().map_or(0, |level| level.channels);
        let added = match config.text("addition_embed_type")? {
            None => None,
            Some(_) => Some(MicroConditioningConfig {
                sinusoid_dim: config.required("addition_time_embed_dim", MAX_CHANNELS)?,
                total: config.required("projection_class_embeddings_input_dim", 1 << 20)?,
            }),
        };
        let time = TimeConfig {
            sinusoid_dim: first,
            cosines_first: config.flag("flip_sin_to_cos")?.unwrap_or(true),
            shift: number(&config, "freq_shift", 0.)?,
            width: config.integer("time_embedding_dim", 1 << 16)?.unwrap_or(4 * first),
            guidance: config.integer("time_cond_proj_dim", MAX_CHANNELS)?,
        };
        Ok(Self {
            sample_size: size_pair(&config, "sample_size", 1 << 14)?,
            in_channels: config.integer("in_channels", MAX_CHANNELS)?.unwrap_or(4),
            out_channels: config.integer("out_channels", MAX_CHANNELS)?.unwrap_or(4),
            up_attends: ups(&config, levels.len())?,
            up_transformers: nested(&config, "reverse_transformer_layers_per_block", &levels)?,
            levels,
            groups: config.integer("norm_num_groups", MAX_CHANNELS)?.unwrap_or(32),
            epsilon: config.float("norm_eps")?.unwrap_or(1e-5),
            time,
            time_scale_shift: scales,
            downsample_padding: number(&config, "downsample_padding", 1.)? as usize,
            mid_scale_factor: config.float("mid_block_scale_factor")?.unwrap_or(1.),
            output_scale_factor: config.float("resnet_out_scale_factor")?.unwrap_or(1.),
            kernels: [
                config.integer("conv_in_kernel", 15)?.unwrap_or(3),
                config.integer("conv_out_kernel", 15)?.unwrap_or(3),
            ],
            added,
        })
    }

    /// The smallest level.
    pub fn last(&self) -> Option<&Level> {
        self.levels.last()
    }
}

/// A number from 0 to 1.
fn number(config: &ConfigJson<'_>, key: &str, usual: f32) -> Result<f32> {
    match config.get(key).map(|value| value.as_f64()) {
        None => Ok(usual),
        Some(Some(number)) if (0. ..=1.).contains(&number) => Ok(number as f32),
        Some(_) => reject_config(format!("{}{key} must be a number from 0 to 1", config.path)),
    }
}

fn levels(config: &ConfigJson<'_>) -> Result<Vec<Level>> {
    let channels = config.list("block_out_channels", |one| positive(one, MAX_CHANNELS))?;
    let channels = channels.unwrap_or_else(|| vec![320, 640, 1280, 1280]);
    let count = channels.len();
    if !(1..=MAX_BLOCKS).contains(&count) {
        return reject_config(format!("unet/block_out_channels has {count} entries; 1 to {MAX_BLOCKS} are allowed"));
    }
    let kinds = string_list(config, "down_block_types")?;
    let usual = ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"];
    let attends = attends("down_block_types", kinds.unwrap_or(usual.to_vec()), count, "DownBlock2D")?;
    let resnets = per_block(config, "layers_per_block", count, MAX_LAYERS, Some(2))?;
    let heads = per_block(config, "attention_head_dim", count, MAX_CHANNELS, Some(8))?;
    let contexts = per_block(config, "cross_attention_dim", count, MAX_CHANNELS, Some(1280))?;
    let crosses = match config.get("only_cross_attention") {
        None => vec![false; count],
        Some(Value::Bool(all)) => vec![*all; count],
        Some(_) => config.list("only_cross_attention", Value::as_bool)?.unwrap_or_default(),
    };
    if crosses.len() != count {
        return reject_config(format!("unet/only_cross_attention has {} entries for {count} blocks", crosses.len()));
    }
    let mut levels = Vec::with_capacity(count);
    for (index, channels) in channels.into_iter().enumerate() {
        let at = |all: &[usize]| all.get(index).copied().unwrap_or(1);
        let (heads, resnets, attends) = (at(&heads), at(&resnets), attends.get(index).is_some_and(|one| *one));
        if (attends || index + 1 == count) && !channels.is_multiple_of(heads) {
            return reject_config(format!("{channels} channels of a UNet block do not divide into {heads} heads"));
        }
        let only_cross = crosses.get(index).is_some_and(|one| *one);
        levels.push(Level {
            channels,
            resnets,
            attends,
            heads,
            transformers: vec![1; resnets],
            context: at(&contexts),
            only_cross,
        });
    }
    if let Some(transformers) = nested(config, "transformer_layers_per_block", &levels)? {
        levels.iter_mut().zip(transformers).for_each(|(level, layers)| level.transformers = layers);
    }
    Ok(levels)
}

/// Whether each block has transformers.
fn attends(key: &str, kinds: Vec<&str>, count: usize, plain: &str) -> Result<Vec<bool>> {
    if kinds.len() != count {
        return reject_config(format!("unet/{key} has {} entries for {count} blocks", kinds.len()));
    }
    let crossing = format!("CrossAttn{plain}");
    let one = |kind: &str| match kind {
        _ if kind == crossing => Ok(true),
        _ if kind == plain => Ok(false),
        _ => reject_config(format!("unet/{key} has {kind}; {crossing} and {plain} are supported")),
    };
    kinds.into_iter().map(one).collect()
}

fn ups(config: &ConfigJson<'_>, count: usize) -> Result<Vec<bool>> {
    let usual = vec!["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"];
    attends("up_block_types", string_list(config, "up_block_types")?.unwrap_or(usual), count, "UpBlock2D")
}

/// Layers of each transformer of each block: one value for all, one for each block, or one for each transformer.
fn nested(config: &ConfigJson<'_>, key: &str, levels: &[Level]) -> Result<Option<Vec<Vec<usize>>>> {
    let Some(value) = config.get(key) else { return Ok(None) };
    let wrong =
        || reject_config(format!("unet/{key} is {value}; it must give layers for each of {} blocks", levels.len()));
    let of = |value: &Value, count: usize| match value {
        Value::Array(all) => all.iter().map(|one| positive(one, MAX_LAYERS)).collect::<Option<Vec<_>>>(),
        one => positive(one, MAX_LAYERS).map(|layers| vec![layers; count]),
    };
    let all = match value {
        Value::Array(all) if all.len() == levels.len() => {
            // Up blocks have one more transformer.
            all.iter().zip(levels).map(|(one, level)| of(one, level.resnets + 1)).collect()
        }
        Value::Array(_) => None,
        one => levels.iter().map(|level| of(one, level.resnets + 1)).collect::<Option<Vec<_>>>(),
    };
    all.map_or_else(wrong, |all| Ok(Some(all)))
}
