//! `adapter_config.json`: the ranks and scales of the modules. `LoraConfig` in peft describes the fields.

use serde_json::Value;

use crate::config_json::ConfigJson;
use crate::error::{ModelError, Result};

/// The file in an adapter's folder.
pub const CONFIG_FILE: &str = "adapter_config.json";

/// The remedy for an adapter that is not supported.
pub const REMEDY: &str = "train the adapter without it, or merge the adapter into its base model";

const MAX_RANK: usize = 1 << 14;

/// Options that change the results and are not supported, and what they turn on.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("use_dora", "DoRA"),
    ("lora_bias", "biases of LoRA matrices"),
    ("modules_to_save", "fully trained modules"),
    ("trainable_token_indices", "trained tokens"),
    ("fan_in_fan_out", "transposed weights"),
    ("layer_replication", "replicated layers"),
    ("target_parameters", "LoRA of parameters such as experts"),
    ("alora_invocation_tokens", "activated LoRA"),
    ("arrow_config", "routing between adapters"),
];

/// Options named `…_config` that affect only training. `init_lora_weights` names those of initialisations.
const TRAINING_CONFIGS: &[&str] =
    &["loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_config", "velora_config"];

/// Initialisations that change the weights of the base model, so that the adapter does not fit the original base.
const BASE_CHANGING_INITIALISATIONS: &[&str] = &["pissa", "olora", "loftq", "corda", "lora_ga"];

/// The ranks and scales of an adapter's modules.
#[derive(Debug)]
pub struct PeftConfig {
    /// The name or path of the base model.
    pub base_model: Option<String>,
    rank: usize,
    alpha: f32,
    /// Divides alpha by the square root of the rank.
    rank_stabilized: bool,
    /// Ranks of modules that differ, by patterns of their paths.
    rank_pattern: Vec<(String, usize)>,
    /// Alphas of modules that differ.
    alpha_pattern: Vec<(String, f32)>,
}

fn invalid<T>(problem: impl std::fmt::Display) -> Result<T> {
    Err(ModelError::Checkpoint(format!("{CONFIG_FILE}: {problem}")))
}

impl PeftConfig {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// If a field is missing, has a wrong type, or turns on a feature that is not supported. The error names the field.
    pub fn read(value: &Value) -> Result<Self> {
        let config = ConfigJson { value, path: "adapter_config.json: " };
        if !value.is_object() {
            return invalid("it is not an object");
        }
        check_features(&config)?;
        Ok(Self {
            base_model: config.text("base_model_name_or_path")?.filter(|name| !name.is_empty()).map(str::to_owned),
            rank: config.required("r", MAX_RANK)?,
            alpha: config.required_float("lora_alpha")?,
            rank_stabilized: config.flag("use_rslora")?.unwrap_or(false),
            rank_pattern: patterns(&config, "rank_pattern", |field, key| field.required(key, MAX_RANK))?,
            alpha_pattern: patterns(&config, "alpha_pattern", |field, key| field.required_float(key))?,
        })
    }

    /// The rank of the module at `path`: `model.layers.0.self_attn.q_proj`.
    pub fn rank(&self, path: &str) -> usize {
        find(&self.rank_pattern, path).unwrap_or(self.rank)
    }

    /// The factor of the product of a module's matrices.
    pub fn scale(&self, path: &str) -> Result<f32> {
        let (alpha, rank) = (find(&self.alpha_pattern, path).unwrap_or(self.alpha), self.rank(path) as f32);
        let scale = alpha / if self.rank_stabilized { rank.sqrt() } else { rank };
        if scale.is_finite() { Ok(scale) } else { invalid(format!("lora_alpha is {alpha}, which is too large")) }
    }
}

fn check_features(config: &ConfigJson<'_>) -> Result<()> {
    match config.text("peft_type")? {
        Some("LORA") => {}
        Some(other) => return invalid(format!("peft_type is {other}; only LORA is supported")),
        None => return invalid("peft_type is missing; it must be LORA"),
    }
    let is_on = |key: &str| config.get(key).is_some_and(|value| !is_off(value));
    if let Some((key, feature)) = UNSUPPORTED.iter().find(|(key, _)| is_on(key)) {
        return invalid(format!("{key} is set ({feature}), which is not supported: {REMEDY}"));
    }
    // Other variants of LoRA.
    let is_variant = |key: &str| {
        let has_config = key.ends_with("_config") && !TRAINING_CONFIGS.contains(&key);
        has_config || (key.starts_with("use_") && key != "use_rslora")
    };
    let mut keys = config.value.as_object().into_iter().flat_map(|fields| fields.keys());
    if let Some(key) = keys.find(|key| is_variant(key) && is_on(key)) {
        return invalid(format!("{key} is set, which is not supported: {REMEDY}"));
    }
    if let Some(bias) = config.text("bias")?.filter(|bias| *bias != "none") {
        return invalid(format!("bias is {bias}; trained biases are not supported: {REMEDY}"));
    }
    let initialisation = config.get("init_lora_weights").and_then(Value::as_str).unwrap_or_default();
    if BASE_CHANGING_INITIALISATIONS.iter().any(|name| initialisation.starts_with(name)) {
        return invalid(format!(
            "init_lora_weights is {initialisation}, which changes the base model's weights: save the adapter with \
             path_initial_model_for_weight_conversion, or merge it into its base model"
        ));
    }
    Ok(())
}

/// True for values that turn a feature off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// The patterns of a field and their values, in the file's order.
fn patterns<T>(
    config: &ConfigJson<'_>,
    key: &str,
    value: impl Fn(&ConfigJson<'_>, &str) -> Result<T>,
) -> Result<Vec<(String, T)>> {
    let Some(field) = config.object(key, "adapter_config.json: ")? else { return Ok(Vec::new()) };
    let names = field.value.as_object().into_iter().flat_map(|fields| fields.keys());
    let entry = |pattern: &String| {
        let is_name = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
        if !is_name(pattern.trim_start_matches('^')) {
            return invalid(format!(
                "{key} has the regular expression {pattern:?}, which is not supported: list the names of the modules"
            ));
        }
        Ok((pattern.clone(), value(&field, pattern)?))
    };
    names.map(entry).collect()
}

/// The value of the first pattern that matches: the end of a path, or a whole path after `^`.
fn find<T: Copy>(patterns: &[(String, T)], path: &str) -> Option<T> {
    let matches = |pattern: &str| match pattern.strip_prefix('^') {
        Some(whole) => whole == path,
        None => path.strip_suffix(pattern).is_some_and(|before| before.is_empty() || before.ends_with('.')),
    };
    patterns.iter().find(|(pattern, _)| matches(pattern)).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(more: &Value) -> Result<PeftConfig> {
        let mut config = json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "none", "use_dora": false,
            "modules_to_save": null, "init_lora_weights": true, "rank_pattern": {}, "alpha_pattern": {}});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        PeftConfig::read(&config)
    }

    #[test]
    fn patterns_match_ends_of_paths_in_order() {
        let config = config(&json!({
            "rank_pattern": {"^model.layers.0.mlp.up_proj": 2, "up_proj": 4, "layers.1.self_attn.q_proj": 32},
            "alpha_pattern": {"q_proj": 1.5},
        }))
        .unwrap();
        let rank = |path: &str| config.rank(&format!("model.layers.{path}"));
        assert_eq!(["0.mlp.up_proj", "1.mlp.up_proj", "1.mlp.gate_up_proj"].map(rank), [2, 4, 8]);
        assert_eq!(["1.self_attn.q_proj", "11.self_attn.q_proj", "0.mlp.down_proj"].map(rank), [32, 8, 8]);
        let scale = |path: &str| config.scale(&format!("model.layers.{path}")).unwrap();
        assert_eq!((scale("1.self_attn.q_proj"), scale("0.mlp.up_proj")), (1.5 / 32., 8.));
    }

    #[test]
    fn rank_stabilized_scales_divide_by_the_root() {
        let config = config(&json!({"r": 16, "use_rslora": true})).unwrap();
        assert_eq!(config.scale("model.layers.0.mlp.up_proj").unwrap(), 4.);
    }

    #[test]
    fn an_unsupported_field_is_named() {
        for (field, expected) in [
            (json!({"use_dora": true}), "use_dora is set (DoRA)"),
            (json!({"bias": "all"}), "bias is all"),
            (json!({"modules_to_save": ["lm_head"]}), "modules_to_save is set"),
            (json!({"fan_in_fan_out": true}), "fan_in_fan_out"),
            (json!({"use_qalora": true}), "use_qalora is set"),
            (json!({"kasa_config": {"beta": 1}}), "kasa_config is set"),
            (json!({"target_parameters": ["mlp.experts.gate_up_proj"]}), "target_parameters"),
            (json!({"layer_replication": [[0, 2]]}), "layer_replication"),
            (json!({"init_lora_weights": "pissa_niter_4"}), "init_lora_weights is pissa_niter_4"),
            (json!({"peft_type": "IA3"}), "peft_type is IA3"),
            (json!({"peft_type": null}), "peft_type is missing"),
            (json!({"r": 0}), "r is 0"),
            (json!({"r": 1u64 << 60}), "r is 1152921504606846976"),
            (json!({"r": null}), "r is missing"),
            (json!({"lora_alpha": "16"}), "lora_alpha is"),
            (json!({"lora_alpha": null}), "lora_alpha is missing"),
            (json!({"rank_pattern": {".*q_proj": 4}}), "regular expression"),
            (json!({"rank_pattern": {"q_proj": -4}}), "q_proj is -4"),
            (json!({"alpha_pattern": []}), "alpha_pattern is []"),
        ] {
            let error = config(&field).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("adapter_config.json"), "{error}");
        }
        assert!(PeftConfig::read(&json!([])).unwrap_err().to_string().contains("not an object"));
    }
}
