//! Writes a trained adapter as peft saves it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::tensor_names::{self, Module, Role};

/// The contents of an adapter's two files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeftFiles {
    /// `adapter_config.json`
    pub config: Vec<u8>,
    /// `adapter_model.safetensors`
    pub weights: Vec<u8>,
}

/// The two matrices of a module to write, with rows in the order of transformers' model.
#[derive(Clone, Debug)]
pub struct NewModule<'a> {
    pub layer: usize,
    pub module: &'static Module,
    /// `[rank, inputs]`
    pub down: &'a [f32],
    /// `[outputs, rank]`
    pub up: Cow<'a, [f32]>,
}

/// Writes an adapter of the model `base_model`. Equal adapters have equal bytes.
pub fn write(base_model: &str, rank: usize, alpha: f32, modules: &[NewModule<'_>]) -> PeftFiles {
    let config = config(base_model, rank, alpha, modules);
    PeftFiles { config: format!("{config:#}\n").into_bytes(), weights: weights(rank, modules) }
}

/// The options of peft's `LoraConfig` that describe the adapter. peft has defaults for all others.
fn config(base_model: &str, rank: usize, alpha: f32, modules: &[NewModule<'_>]) -> Value {
    let names = modules.iter().map(|NewModule { module, .. }| module.path.rsplit('.').next().unwrap_or(module.path));
    let target_modules: BTreeSet<&str> = names.collect();
    // peft's own type is an integer.
    let alpha = if alpha.fract() == 0. && alpha.abs() < 1e9 { json!(alpha as i64) } else { json!(alpha) };
    json!({
        "alpha_pattern": {},
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layers_pattern": null,
        "layers_to_transform": null,
        "lora_alpha": alpha,
        "lora_bias": false,
        "lora_dropout": 0.0,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": rank,
        "rank_pattern": {},
        "revision": null,
        "target_modules": target_modules,
        "task_type": "CAUSAL_LM",
        "use_dora": false,
        "use_rslora": false,
    })
}

/// The safetensors file: f32 matrices in the order of `modules`.
fn weights(rank: usize, modules: &[NewModule<'_>]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut end = 0;
    for NewModule { layer, module, down, up } in modules {
        let shapes = [[rank, down.len() / rank.max(1)], [up.len() / rank.max(1), rank]];
        for (role, shape) in [Role::Down, Role::Up].into_iter().zip(shapes) {
            let start = end;
            end += shape[0] * shape[1] * size_of::<f32>();
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
            header.insert(tensor_names::format(*layer, module, role), entry);
        }
    }
    let mut header = Value::Object(header).to_string();
    // The values are aligned.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut out = Vec::with_capacity(8 + header.len() + end);
    out.extend((header.len() as u64).to_le_bytes());
    out.extend(header.as_bytes());
    for NewModule { down, up, .. } in modules {
        out.extend(down.iter().chain(&**up).flat_map(|value| value.to_le_bytes()));
    }
    out
}
