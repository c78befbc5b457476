//! The configuration of T5, from the `config.json` of transformers' `T5EncoderModel`.

use crate::backend::Activation;
use serde_json::{Value, json};

use crate::config_json::ConfigJson;
use crate::diffusion::config_values::require;
use crate::error::{Result, reject_config};

/// The configuration of a T5 encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct T5Config {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub vocabulary: usize,
    pub epsilon: f32,
    pub activation: Activation,
    /// The feed-forward network has a gate.
    pub gated: bool,
    /// Buckets of the relative position bias.
    pub buckets: usize,
    /// The distance from which all positions share the last bucket.
    pub max_distance: usize,
}

/// Values of `feed_forward_proj`, with the activation and whether there is a gate.
const FEED_FORWARD_TYPES: [(&str, Activation, bool); 3] = [
    ("relu", Activation::Relu, false),
    ("gated-gelu", Activation::GeluTanh, true),
    ("gated-silu", Activation::Silu, true),
];

impl T5Config {
    /// Reads a `config.json`. `path` is for error messages.
    pub fn read(value: &Value, path: &str) -> Result<Self> {
        let config = ConfigJson { value, path };
        require(&config, "model_type", &[json!("t5")])?;
        let feed_forward = config.text("feed_forward_proj")?.unwrap_or("relu");
        let Some((_, activation, gated)) = FEED_FORWARD_TYPES.iter().find(|(name, ..)| *name == feed_forward) else {
            let supported: Vec<&str> = FEED_FORWARD_TYPES.iter().map(|(name, ..)| *name).collect();
            return reject_config(format!(
                "{path}feed_forward_proj is {feed_forward}; supported: {}",
                supported.join(", ")
            ));
        };
        let integer = |key: &str, default: usize, max: usize| config.integer_or(key, default, max);
        let t5 = Self {
            layers: integer("num_layers", 6, 256)?,
            width: integer("d_model", 512, 1 << 16)?,
            heads: integer("num_heads", 8, 1 << 10)?,
            head_dim: integer("d_kv", 64, 1 << 12)?,
            inner: integer("d_ff", 2048, 1 << 20)?,
            vocabulary: integer("vocab_size", 32128, 1 << 24)?,
            epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-6),
            activation: *activation,
            gated: *gated,
            buckets: integer("relative_attention_num_buckets", 32, 1 << 12)?,
            max_distance: integer("relative_attention_max_distance", 128, 1 << 20)?,
        };
        // Each direction has half of the buckets. Half of those hold a single distance each.
        match t5.buckets >= 4 && t5.max_distance > t5.buckets / 4 {
            true => Ok(t5),
            false => reject_config(format!(
                "{path}relative_attention_num_buckets is {}; it must be at least 4. relative_attention_max_distance is {}; it must be more than a quarter of relative_attention_num_buckets",
                t5.buckets, t5.max_distance
            )),
        }
    }
}
