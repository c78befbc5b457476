//! T5's configuration, from the `config.json` of transformers' `T5EncoderModel`.

use outpost_kernels::Activation;
use serde_json::{Value, json};

use crate::models::config_json::ConfigJson;
use crate::models::diffusion::config_values::require;
use crate::models::error::{ModelError, reject_config};

/// The configuration of an encoder.
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
    pub gated: bool,
    /// Buckets of the relative position bias, and the distance from which on all share the last bucket.
    pub buckets: usize,
    pub max_distance: usize,
}

/// Values of `feed_forward_proj`: the activation, and whether there is a gate.
const FORWARDS: [(&str, Activation, bool); 3] = [
    ("relu", Activation::Relu, false),
    ("gated-gelu", Activation::GeluTanh, true),
    ("gated-silu", Activation::Silu, true),
];

impl T5Config {
    /// `path` is for error messages.
    pub fn read(value: &Value, path: &str) -> Result<Self, ModelError> {
        let config = ConfigJson { value, path };
        require(&config, "model_type", &[json!("t5")])?;
        let forward = config.text("feed_forward_proj")?.unwrap_or("relu");
        let Some((_, activation, gated)) = FORWARDS.iter().find(|(name, ..)| *name == forward) else {
            let all: Vec<&str> = FORWARDS.iter().map(|(name, ..)| *name).collect();
            return reject_config(format!("{path}feed_forward_proj is {forward}; supported: {}", all.join(", ")));
        };
        let number = |key: &str, usual: usize, most: usize| config.integer_or(key, usual, most);
        let sizes = Self {
            layers: number("num_layers", 6, 256)?,
            width: number("d_model", 512, 1 << 16)?,
            heads: number("num_heads", 8, 1 << 10)?,
            head_dim: number("d_kv", 64, 1 << 12)?,
            inner: number("d_ff", 2048, 1 << 20)?,
            vocabulary: number("vocab_size", 32128, 1 << 24)?,
            epsilon: config.float("layer_norm_epsilon")?.unwrap_or(1e-6),
            activation: *activation,
            gated: *gated,
            buckets: number("relative_attention_num_buckets", 32, 1 << 12)?,
            max_distance: number("relative_attention_max_distance", 128, 1 << 20)?,
        };
        // Half of the buckets are for positions ahead, and half of those for single distances.
        match sizes.buckets >= 4 && sizes.max_distance > sizes.buckets / 4 {
            true => Ok(sizes),
            false => reject_config(format!(
                "{path}relative_attention_num_buckets is {}, it must be 4 at least, and relative_attention_max_distance, which is {}, more than a quarter of it",
                sizes.buckets, sizes.max_distance
            )),
        }
    }
}
