//! Random LoRA adapters in peft's format, for tiny models and for the models of benchmarks.

use std::fs;
use std::path::{Path, PathBuf};

use outpost_engine::AdapterFiles;
use serde_json::{Map, Value, json};

use crate::rng::TestRng;
use crate::tiny_model::TinyModel;

/// Name, shape and values of a tensor.
pub type NamedTensor = (String, Vec<usize>, Vec<f32>);

/// An adapter. Tests change its parts before they write it.
#[derive(Clone, Debug)]
pub struct TinyAdapter {
    pub config: Value,
    pub tensors: Vec<NamedTensor>,
}

/// The sizes of a model that an adapter needs.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub layers: usize,
    pub width: usize,
    /// Of queries, and of keys and values.
    pub attention: [usize; 2],
    pub inner: usize,
}

impl Sizes {
    pub fn of(model: &TinyModel) -> Self {
        let TinyModel { width, blocks, zero_blocks, .. } = *model;
        Self { layers: blocks + zero_blocks, width, attention: [width, width / 2], inner: 2 * width }
    }

    /// Outputs and inputs of a module.
    fn shape(&self, module: &str) -> [usize; 2] {
        let Self { width, attention: [queries, kv], inner, .. } = *self;
        match module {
            "self_attn.q_proj" => [queries, width],
            "self_attn.k_proj" | "self_attn.v_proj" => [kv, width],
            "self_attn.o_proj" => [width, queries],
            "mlp.gate_proj" | "mlp.up_proj" => [inner, width],
            "mlp.down_proj" => [width, inner],
            other => panic!("no module {other}"),
        }
    }
}

/// The modules that may be adapted.
pub const ALL: &[&str] = &[
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

impl TinyAdapter {
    /// An adapter of `modules` for the model `tiny` with random weights.
    pub fn new(sizes: Sizes, modules: &[&str], rank: usize, seed: u64) -> Self {
        let mut rng = TestRng(seed);
        let mut tensors = Vec::new();
        for layer in 0..sizes.layers {
            for module in modules {
                let [outputs, inputs] = sizes.shape(module);
                for (matrix, shape) in [("lora_A", [rank, inputs]), ("lora_B", [outputs, rank])] {
                    let scale = 1. / (shape[1] as f32).sqrt();
                    let values = (0..shape[0] * shape[1])
                        .map(|_| (rng.below(1 << 16) as f32 / f32::from(1u16 << 15) - 1.) * scale)
                        .collect();
                    let name = format!("base_model.model.model.layers.{layer}.{module}.{matrix}.weight");
                    tensors.push((name, shape.to_vec(), values));
                }
            }
        }
        let config = json!({
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "some/Tiny", "r": rank,
            "lora_alpha": rank, "bias": "none", "target_modules": modules,
        });
        Self { config, tensors }
    }

    /// A strong adapter of all modules for the default tiny model.
    pub fn of_tiny(seed: u64) -> Self {
        Self::new(Sizes::of(&TinyModel::default()), ALL, 4, seed)
    }

    /// The bytes of the safetensors file.
    pub fn weights(&self) -> Vec<u8> {
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (name, shape, values) in &self.tensors {
            let start = data.len();
            values.iter().for_each(|value| data.extend(value.to_le_bytes()));
            let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
            header.insert(name.clone(), entry);
        }
        let header = Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
    }

    pub fn files(&self) -> AdapterFiles {
        AdapterFiles { config: self.config.to_string().into_bytes(), weights: self.weights().into() }
    }

    /// Writes the folder `<dir>/<name>`.
    pub fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let folder = dir.join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("adapter_config.json"), self.config.to_string()).unwrap();
        fs::write(folder.join("adapter_model.safetensors"), self.weights()).unwrap();
        folder
    }
}
