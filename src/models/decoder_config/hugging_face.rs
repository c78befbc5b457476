//! From a Hugging Face folder's `config.json`, which transformers' `configuration_*.py` explain.

use serde_json::Value;

use super::rope_scaling::ropes;
use super::{DecoderConfig, LayerConfig, MoeConfig};
use crate::models::config_json::ConfigJson;
use crate::models::decoder_family::{self, Activation, DecoderFamily, SlidingWindows};
use crate::models::error::{ModelError, Result, reject_config};
use crate::models::rope::RopeStyle;
use crate::models::safetensors::ModelFolder;

/// The family that a `config.json` names.
pub fn family(config: &Value) -> Result<&'static DecoderFamily> {
    let name = config.get("model_type").and_then(Value::as_str);
    let name = name.ok_or_else(|| ModelError::checkpoint("config.json has no model_type"))?;
    decoder_family::find_model_type(name).ok_or_else(|| {
        ModelError::checkpoint(format!(
            "the model type {name} is not supported: {} are",
            decoder_family::model_type_names()
        ))
    })
}

impl DecoderConfig {
    /// From a folder's `config.json` and the headers of its weights.
    pub fn from_folder(folder: &ModelFolder) -> Result<Self> {
        let family = family(&folder.config)?;
        let config = ConfigJson { value: &folder.config, path: "" };
        reject_unsupported(&config)?;
        let width = config.required("hidden_size", 1 << 16)?;
        let heads = config.required("num_attention_heads", 1 << 10)?;
        let blocks = config.required("num_hidden_layers", 1 << 10)?;
        let head_width = head_width(&config, family, width, heads)?;
        let ropes = ropes(&config, family, head_width)?;
        let experts = experts(&config, family)?;
        let scaled_by = config.float("query_pre_attn_scalar")?.filter(|_| family.gemma && family.post_norms);
        let caps = |key: &str| if family.post_norms { config.float(key) } else { Ok(None) };
        Self {
            family,
            layer_count: blocks,
            width,
            heads,
            kv_heads: config.integer("num_key_value_heads", 1 << 10)?.unwrap_or(heads),
            head_width,
            inner: config.required("intermediate_size", 1 << 20)?,
            vocabulary: vocabulary(folder)?,
            context: config.required("max_position_embeddings", 1 << 24)?,
            epsilon: config.required_float("rms_norm_eps")?,
            layers: layers(&config, family, blocks, ropes.len())?,
            ropes,
            rope_style: RopeStyle::Halves,
            activation: activation(&config, family)?,
            embedding_scale: if family.gemma { (width as f32).sqrt() } else { 1. },
            attention_scale: scaled_by.unwrap_or(head_width as f32).sqrt().recip(),
            attention_soft_cap: caps("attn_logit_softcapping")?,
            logit_soft_cap: caps("final_logit_softcapping")?,
            experts,
            biases: family.biases || config.flag("attention_bias")?.unwrap_or(false),
            norm_weight_offset: if family.gemma { 1. } else { 0. },
            tied_embeddings: Some(config.flag("tie_word_embeddings")?.unwrap_or(family.tied_embeddings)),
        }
        .check()
    }
}

/// What would change results and nothing here computes.
fn reject_unsupported(config: &ConfigJson<'_>) -> Result<()> {
    if let Some(quantised) = config.get("quantization_config") {
        let method = quantised.get("quant_method").and_then(Value::as_str).unwrap_or("an unknown method");
        return reject_config(format!("weights quantised by {method} are not supported in safetensors"));
    }
    match config.flag("use_bidirectional_attention")? {
        Some(true) => reject_config("attention that is not causal is not supported".to_owned()),
        _ => Ok(()),
    }
}

fn head_width(config: &ConfigJson<'_>, family: &DecoderFamily, width: usize, heads: usize) -> Result<usize> {
    match config.integer("head_dim", 1 << 12)?.or(family.head_width) {
        Some(head_width) => Ok(head_width),
        None if width.is_multiple_of(heads) => Ok(width / heads),
        None => reject_config(format!("the width {width} does not divide into {heads} heads")),
    }
}

fn vocabulary(folder: &ModelFolder) -> Result<usize> {
    let name = format!("{}embed_tokens.weight", folder.prefix());
    match folder.tensor(&name).map(|(table, _)| table.shape.as_slice()) {
        Some(&[rows, _]) if rows <= 1 << 22 => Ok(rows),
        Some(shape) => Err(ModelError::checkpoint(format!("tensor {name} has the impossible shape {shape:?}"))),
        None => Err(ModelError::checkpoint(format!("the files have no tensor {name}"))),
    }
}

/// Gemma computes with `hidden_activation`, and by the approximation where that is missing.
fn activation(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<Activation> {
    let key = if family.gemma { "hidden_activation" } else { "hidden_act" };
    match config.text(key)? {
        None => Ok(family.activation),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(other) => reject_config(format!("the activation {other} is not supported")),
    }
}

fn experts(config: &ConfigJson<'_>, family: &DecoderFamily) -> Result<Option<MoeConfig>> {
    let mixtral = family.model_types.contains(&"mixtral");
    if !mixtral && family.name != "qwen3moe" {
        return Ok(None);
    }
    let count = match config.integer("num_local_experts", 1 << 12)? {
        Some(count) => count,
        None => config.required("num_experts", 1 << 12)?,
    };
    let inner = if mixtral { "intermediate_size" } else { "moe_intermediate_size" };
    Ok(Some(MoeConfig {
        count,
        experts_per_token: config.required("num_experts_per_tok", 1 << 12)?,
        inner: config.required(inner, 1 << 20)?,
        normalise_weights: mixtral || config.flag("norm_topk_prob")?.unwrap_or(false),
    }))
}

fn layers(config: &ConfigJson<'_>, family: &DecoderFamily, blocks: usize, ropes: usize) -> Result<Vec<LayerConfig>> {
    let rotates = rotates(config, family, blocks)?;
    let windows = windows(config, family, &rotates)?;
    let dense = config.list("mlp_only_layers", |item| item.as_u64())?.unwrap_or_default();
    let step = config.integer("decoder_sparse_step", 1 << 10)?.unwrap_or(1);
    let layer = |(block, (rotates, window)): (usize, (bool, Option<usize>))| LayerConfig {
        rope: rotates.then_some(if window.is_some() { ropes - 1 } else { 0 }),
        window,
        sparse: !dense.contains(&(block as u64)) && (block + 1).is_multiple_of(step),
    };
    Ok(rotates.into_iter().zip(windows).enumerate().map(layer).collect())
}

/// SmolLM3's list has a one for each layer that rotates.
fn rotates(config: &ConfigJson<'_>, family: &DecoderFamily, blocks: usize) -> Result<Vec<bool>> {
    let Some(every) = family.no_rope_every else { return Ok(vec![true; blocks]) };
    let every = config.integer("no_rope_layer_interval", 1 << 10)?.unwrap_or(every);
    match config.list("no_rope_layers", Value::as_u64)? {
        Some(list) if list.len() == blocks => Ok(list.iter().map(|one| *one != 0).collect()),
        Some(list) if !list.is_empty() => {
            reject_config(format!("no_rope_layers names {} layers of {blocks}", list.len()))
        }
        _ => Ok((1..=blocks).map(|layer| !layer.is_multiple_of(every)).collect()),
    }
}

/// The window of each layer: by the list `layer_types`, else by the family's rule.
fn windows(config: &ConfigJson<'_>, family: &DecoderFamily, rotates: &[bool]) -> Result<Vec<Option<usize>>> {
    let blocks = rotates.len();
    let on = config.flag("use_sliding_window")?.unwrap_or(false);
    let switched = matches!(family.windows, SlidingWindows::OptIn | SlidingWindows::LayersWithoutRope);
    let window = config.integer("sliding_window", 1 << 31)?.filter(|_| on || !switched);
    let from = config.get("max_window_layers").and_then(Value::as_u64).unwrap_or(0) as usize;
    let types = config.list("layer_types", Value::as_str)?.filter(|_| family.lists_layers());
    let ruled = |block: usize| match family.windows {
        SlidingWindows::Never => false,
        SlidingWindows::All => true,
        SlidingWindows::OptIn => block >= from || family.name == "qwen3moe",
        SlidingWindows::LayersWithoutRope => !rotates.get(block).copied().unwrap_or(true),
        SlidingWindows::AllButEvery(every) => {
            let every =
                config.get("sliding_window_pattern").and_then(Value::as_u64).map_or(every, |every| every as usize);
            !(block + 1).is_multiple_of(every.max(1))
        }
    };
    let Some(types) = types else { return Ok((0..blocks).map(|block| window.filter(|_| ruled(block))).collect()) };
    if types.len() != blocks {
        return reject_config(format!("layer_types names {} layers of {blocks}", types.len()));
    }
    let typed = types.into_iter().map(|kind| match (kind, window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => {
            reject_config("it has layers of sliding_attention and no window for them".to_owned())
        }
        (other, _) => reject_config(format!("layers of the type {other} are not supported")),
    });
    typed.collect()
}
