//! An encoder's configuration, from a Hugging Face folder's `config.json` (see transformers' `configuration_*.py`) or a
//! GGUF header.

use serde_json::Value;

use super::tensor_names::Family;
use crate::config_json::ConfigJson;
use crate::decoder_family::Activation;
use crate::error::{ModelError, Result, reject_config};
use crate::gguf::{ArchitectureMetadata, Header};
use crate::nn::rope::{RopeScaling, RopeSpec};
use crate::quantization_config;

/// The configuration of an encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    pub family: Family,
    /// Number of layers.
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    /// Width of the feed-forward network.
    pub inner: usize,
    pub vocabulary: usize,
    /// Maximum tokens of a text, including those that the tokenizer adds.
    pub context: usize,
    /// Token types: 2 if the second text of a pair is marked, 0 if there are no type embeddings.
    pub token_types: usize,
    pub epsilon: f32,
    pub positions: Positions,
    pub activation: Activation,
    /// The feed-forward network has a gate.
    pub gated: bool,
    /// Norms come before sublayers (pre-norm) and not after the residual sum.
    pub pre_norm: bool,
    /// Projections must have biases.
    pub biases: bool,
}

/// How positions are encoded.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// By an embedding for each position; the first `offset` rows are unused. With `relative_buckets`, also by a bias of the
    /// attention scores, which has so many values for each head.
    Table { offset: usize, relative_buckets: Option<usize> },
    /// By rotary embeddings; `layers` holds each layer's index into `kinds`.
    Rotary { kinds: Vec<LayerAttention>, layers: Vec<usize> },
}

/// The rotary embedding and attention window of a kind of layers.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerAttention {
    pub rope: RopeSpec,
    /// Attention reaches positions whose distance is less than this; `None`: all.
    pub window: Option<usize>,
}

impl EncoderConfig {
    pub fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// The index and attention settings of a layer.
    pub fn layer_attention(&self, layer: usize) -> Option<(usize, &LayerAttention)> {
        let Positions::Rotary { kinds, layers } = &self.positions else { return None };
        let index = *layers.get(layer)?;
        kinds.get(index).map(|attention| (index, attention))
    }

    /// Reads a `config.json`.
    pub fn from_config_json(value: &Value) -> Result<Self> {
        let config = ConfigJson { value, path: "" };
        let name = config.text("model_type")?.unwrap_or_default();
        let Some(family) = Family::from_model_type(name) else {
            return reject_config(format!("the model type {name} is not a supported encoder"));
        };
        quantization_config::reject_quantised(&config)?;
        let sizes = match family {
            Family::Bert | Family::Roberta | Family::Mpnet => bert(&config, family)?,
            Family::Distil => distil(&config)?,
            Family::Nomic => nomic(&config)?,
            Family::Modern => modern(&config)?,
        };
        sizes.check()
    }

    /// Reads a GGUF header.
    pub fn from_gguf(header: &Header) -> Result<Self> {
        let metadata = &header.metadata;
        let name = metadata.text("general.architecture").unwrap_or_default();
        let Some(family) = Family::from_architecture(name) else {
            return reject_config(format!("GGUF files of the architecture {name} are not supported"));
        };
        let keys = ArchitectureMetadata { metadata, architecture: name };
        let rows = |tensor: &str| match header.tensor(tensor).map(|tensor| tensor.shape.as_slice()) {
            Some(&[rows, _]) => rows,
            _ => 0,
        };
        let nomic = family == Family::Nomic;
        let (width, heads) =
            (keys.required("embedding_length", 1 << 16)?, keys.required("attention.head_count", 1 << 10)?);
        let (base, layers) = (keys.float("rope.freq_base", 1000.)?, keys.required("block_count", 1 << 10)?);
        Self {
            family,
            layers,
            width,
            heads,
            inner: keys.required("feed_forward_length", 1 << 20)?,
            vocabulary: rows("token_embd.weight"),
            context: keys.required("context_length", 1 << 24)?,
            token_types: rows("token_types.weight"),
            epsilon: keys.float("attention.layer_norm_epsilon", 1e-12)?,
            positions: if nomic { uniform_rope(base, width / heads, layers) } else { ABSOLUTE },
            activation: if nomic { Activation::Silu } else { Activation::Gelu },
            gated: nomic,
            pre_norm: false,
            biases: !nomic,
        }
        .check()
    }

    fn check(self) -> Result<Self> {
        let Self { width, heads, .. } = self;
        if !width.is_multiple_of(heads) {
            return reject_config(format!("the width {width} does not divide into {heads} heads"));
        }
        if matches!(self.positions, Positions::Rotary { .. }) && !(width / heads).is_multiple_of(2) {
            return reject_config(format!("heads of width {} cannot be rotated", width / heads));
        }
        Ok(self)
    }
}

/// By a table without unused rows.
const ABSOLUTE: Positions = Positions::Table { offset: 0, relative_buckets: None };

/// The values of MPNet's bias for each head.
fn relative_buckets(config: &ConfigJson<'_>) -> Result<usize> {
    let buckets = config.integer_or("relative_attention_num_buckets", 32, 1 << 12)?;
    match buckets {
        // A quarter of them is for short distances.
        4.. => Ok(buckets),
        _ => reject_config(format!("relative_attention_num_buckets is {buckets}; it must be at least 4")),
    }
}

/// BERT, XLM-RoBERTa and MPNet.
fn bert(config: &ConfigJson<'_>, family: Family) -> Result<EncoderConfig> {
    if !matches!(config.text("position_embedding_type")?, None | Some("absolute")) {
        return reject_config("positions that are not absolute are not supported".to_owned());
    }
    let rows = config.required("max_position_embeddings", 1 << 24)?;
    // RoBERTa counts positions from after the padding ID, which is always one in MPNet.
    let padding = config.get("pad_token_id").and_then(Value::as_u64).unwrap_or(1) as usize;
    let (offset, relative_buckets) = match family {
        Family::Roberta => (padding.saturating_add(1), None),
        Family::Mpnet => (2, Some(relative_buckets(config)?)),
        _ => (0, None),
    };
    if offset >= rows {
        return reject_config(format!("pad_token_id leaves none of {rows} positions"));
    }
    Ok(EncoderConfig {
        family,
        layers: config.required("num_hidden_layers", 1 << 10)?,
        width: config.required("hidden_size", 1 << 16)?,
        heads: config.required("num_attention_heads", 1 << 10)?,
        inner: config.required("intermediate_size", 1 << 20)?,
        vocabulary: config.required("vocab_size", 1 << 22)?,
        context: rows - offset,
        token_types: match family {
            Family::Mpnet => 0,
            _ => config.integer("type_vocab_size", 1 << 10)?.unwrap_or(2),
        },
        epsilon: config.float("layer_norm_eps")?.unwrap_or(1e-12),
        positions: Positions::Table { offset, relative_buckets },
        activation: activation(config, "hidden_act")?,
        gated: false,
        pre_norm: false,
        biases: true,
    })
}

fn distil(config: &ConfigJson<'_>) -> Result<EncoderConfig> {
    Ok(EncoderConfig {
        family: Family::Distil,
        layers: config.required("n_layers", 1 << 10)?,
        width: config.required("dim", 1 << 16)?,
        heads: config.required("n_heads", 1 << 10)?,
        inner: config.required("hidden_dim", 1 << 20)?,
        vocabulary: config.required("vocab_size", 1 << 22)?,
        context: config.required("max_position_embeddings", 1 << 24)?,
        token_types: 0,
        epsilon: 1e-12,
        // Sinusoidal positions are in the file, too.
        positions: ABSOLUTE,
        activation: activation(config, "activation")?,
        gated: false,
        pre_norm: false,
        biases: true,
    })
}

/// nomic-bert, with the keys of GPT-2, or of BERT since transformers 5.
fn nomic(config: &ConfigJson<'_>) -> Result<EncoderConfig> {
    let is_off = |key: &str| Ok::<_, ModelError>(!config.flag(key)?.unwrap_or(false));
    let rotates_whole_heads = config.float("rotary_emb_fraction")?.is_none_or(|fraction| fraction == 1.);
    let gated = config.text("activation_function")?.is_none_or(|name| name == "swiglu");
    if !gated
        || !is_off("prenorm")?
        || !is_off("rotary_emb_interleaved")?
        || !is_off("qkv_proj_bias")?
        || !rotates_whole_heads
    {
        return reject_config("only the architecture of nomic-embed-text-v1.5 is supported".to_owned());
    }
    if config.get("rotary_scaling_factor").is_some() {
        return reject_config("rotary_scaling_factor is not supported; set it to null".to_owned());
    }
    let either = |old: &str, new: &str, max| match config.integer(old, max)? {
        Some(number) => Ok(number),
        None => config.required(new, max),
    };
    let (width, heads) = (either("n_embd", "hidden_size", 1 << 16)?, either("n_head", "num_attention_heads", 1 << 10)?);
    let layers = either("n_layer", "num_hidden_layers", 1 << 10)?;
    let old_base = config.float("rotary_emb_base")?;
    let epsilon = config.float("layer_norm_epsilon")?.or(config.float("layer_norm_eps")?);
    Ok(EncoderConfig {
        family: Family::Nomic,
        layers,
        width,
        heads,
        inner: config
            .integer("n_inner", 1 << 20)?
            .or(config.integer("intermediate_size", 1 << 20)?)
            .unwrap_or(4 * width),
        vocabulary: config.required("vocab_size", 1 << 22)?,
        context: either("n_positions", "max_position_embeddings", 1 << 24)?,
        token_types: config.integer("type_vocab_size", 1 << 10)?.unwrap_or(2),
        epsilon: epsilon.unwrap_or(1e-12),
        positions: uniform_rope(old_base.or(nested_base(config, "")).unwrap_or(10_000.), width / heads, layers),
        activation: if old_base.is_some() { Activation::Silu } else { activation(config, "hidden_act")? },
        gated: true,
        pre_norm: false,
        biases: false,
    })
}

/// `rope_theta` in the format of transformers 5. `kind` is a path for models with several kinds of layers.
fn nested_base(config: &ConfigJson<'_>, kind: &str) -> Option<f32> {
    let found = config.value.pointer(&format!("/rope_parameters{kind}/rope_theta")).and_then(Value::as_f64);
    found.map(|base| base as f32)
}

fn modern(config: &ConfigJson<'_>) -> Result<EncoderConfig> {
    let (width, heads) = (config.required("hidden_size", 1 << 16)?, config.required("num_attention_heads", 1 << 10)?);
    let base = |key: &str, kind: &str, default| {
        Ok::<_, ModelError>(config.float(key)?.or(nested_base(config, kind)).unwrap_or(default))
    };
    let local = config.integer("local_attention", 1 << 24)?.unwrap_or(128) / 2 + 1;
    let count = config.required("num_hidden_layers", 1 << 10)?;
    let layers = match config.list("layer_types", Value::as_str)? {
        None => {
            let every = config.integer("global_attn_every_n_layers", 1 << 10)?.unwrap_or(3);
            (0..count).map(|layer| usize::from(!layer.is_multiple_of(every))).collect()
        }
        Some(types) if types.len() != count => {
            return reject_config(format!("layer_types has {} entries for {count} layers", types.len()));
        }
        Some(types) => {
            let kinds = ["full_attention", "sliding_attention"];
            let index = |layer_type: &&str| kinds.iter().position(|kind| kind == layer_type);
            let indices: Option<Vec<usize>> = types.iter().map(index).collect();
            indices.ok_or_else(|| ModelError::checkpoint(format!("layer types {types:?} are not supported")))?
        }
    };
    let global_base = base("global_rope_theta", "/full_attention", 160_000.)?;
    let local_base = base("local_rope_theta", "/sliding_attention", 10_000.)?;
    Ok(EncoderConfig {
        family: Family::Modern,
        layers: count,
        width,
        heads,
        inner: config.required("intermediate_size", 1 << 20)?,
        vocabulary: config.required("vocab_size", 1 << 22)?,
        context: config.required("max_position_embeddings", 1 << 24)?,
        token_types: 0,
        epsilon: config.float("norm_eps")?.unwrap_or(1e-5),
        positions: Positions::Rotary {
            kinds: vec![
                layer_attention(global_base, None, width / heads),
                layer_attention(local_base, Some(local), width / heads),
            ],
            layers,
        },
        activation: activation(config, "hidden_activation")?,
        gated: true,
        pre_norm: true,
        biases: false,
    })
}

/// The same rotary embedding in all layers.
fn uniform_rope(base: f32, head_width: usize, layers: usize) -> Positions {
    Positions::Rotary { kinds: vec![layer_attention(base, None, head_width)], layers: vec![0; layers] }
}

fn layer_attention(base: f32, window: Option<usize>, head_width: usize) -> LayerAttention {
    LayerAttention {
        rope: RopeSpec { base, rotated: head_width, scaling: RopeScaling::None, stored_factors: false, growth: None },
        window,
    }
}

fn activation(config: &ConfigJson<'_>, key: &str) -> Result<Activation> {
    match config.text(key)? {
        None | Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("relu") => Ok(Activation::Relu),
        Some(other) => reject_config(format!("the activation {other} is not supported")),
    }
}
