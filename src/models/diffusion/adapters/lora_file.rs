//! A LoRA file: its tensors are matched with a pipeline's layers, checked and read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use outpost_kernels::{self as kernels, Conv2d, ConvShape, DType, Pool};
use serde_json::Value;

use super::AdaptableLayers;
use super::lora_deltas::{Adapter, Down, LoraDelta};
use super::tensor_names::{self, LoraRole, LoraTarget};
use crate::models::error::{ModelError, Result};
use crate::models::linear::Linear;
use crate::models::safetensors::ModelFolder;
use crate::models::weights::{LoadedMatrix, Weights, flat};

/// What to read from a file.
#[derive(Debug)]
pub struct LoraFile {
    file: ModelFolder,
    layers: Vec<LoraLayer>,
    /// Memory of the loaded adapter, in bytes.
    pub bytes: u64,
}

#[derive(Debug)]
struct LoraLayer {
    down: String,
    up: String,
    rank: usize,
    factor: Factor,
    matrices: Vec<LoadedMatrix>,
}

/// The alpha of a layer.
#[derive(Clone, Debug)]
enum Factor {
    /// A tensor with one element.
    Tensor(String),
    Number(f32),
    /// Equals the rank, so the factor is one.
    Rank,
}

/// The tensors of a layer.
#[derive(Debug, Default)]
struct LayerTensors {
    down: Option<String>,
    up: Option<String>,
    alpha: Option<String>,
}

fn invalid<T>(message: String) -> Result<T> {
    Err(ModelError::Checkpoint(message))
}

impl LoraFile {
    /// Errors describe what does not fit, for the caller.
    pub fn of(path: &Path, layers: &AdaptableLayers) -> Result<Self> {
        let file = ModelFolder::open_file(path)?;
        let mut found: BTreeMap<(LoraTarget, String), LayerTensors> = BTreeMap::new();
        for name in file.names() {
            let (target, layer, role) = tensor_names::read(name).map_err(ModelError::Checkpoint)?;
            let found = found.entry((target, layer)).or_default();
            let tensor = match role {
                LoraRole::Down => &mut found.down,
                LoraRole::Up => &mut found.up,
                LoraRole::Alpha => &mut found.alpha,
            };
            if let Some(other) = tensor.replace(name.to_owned()) {
                return invalid(format!("its tensors {other} and {name} are for the same layer"));
            }
        }
        let alphas = alphas(&file.metadata)?;
        let layer = |((target, name), found): ((LoraTarget, String), LayerTensors)| {
            let metadata_alpha = alphas.get(&target).copied();
            LoraLayer::of(&file, layers.of(target, &name), found, metadata_alpha)
        };
        let layers = found.into_iter().map(layer).collect::<Result<Vec<_>>>()?;
        let bytes = layers.iter().map(|layer| layer.bytes(&file)).sum();
        Ok(Self { file, layers, bytes })
    }

    /// Reads the file; `pause` is called between layers.
    pub fn read(&self, pool: &Pool, pause: &dyn Fn() -> Result<()>) -> Result<Adapter> {
        let mut deltas = Vec::new();
        for layer in &self.layers {
            layer.read(&self.file, pool, &mut deltas)?;
            pause()?;
        }
        Ok(Adapter { deltas })
    }
}

/// Alphas of the targets from the file's metadata, as peft writes it.
fn alphas(metadata: &serde_json::Map<String, Value>) -> Result<BTreeMap<LoraTarget, f32>> {
    const PARTS: [(&str, LoraTarget); 4] = [
        ("unet", LoraTarget::Network),
        ("transformer", LoraTarget::Network),
        ("text_encoder", LoraTarget::Text(0)),
        ("text_encoder_2", LoraTarget::Text(1)),
    ];
    let text = metadata.get("lora_adapter_metadata").and_then(Value::as_str).unwrap_or("{}");
    let metadata: Value = serde_json::from_str(text).unwrap_or_default();
    let mut alphas = BTreeMap::new();
    for (part, target) in PARTS {
        let of = |key: &str| metadata.get(format!("{part}.{key}"));
        let set =
            |value: &Value| !(value.is_null() || value == false || value.as_object().is_some_and(|all| all.is_empty()));
        let other = ["use_dora", "use_rslora", "alpha_pattern"].into_iter().find(|key| of(key).is_some_and(set));
        if let Some(other) = other {
            return invalid(format!("it was made with {other}, which is not supported"));
        }
        if let Some(alpha) = of("lora_alpha").and_then(Value::as_f64) {
            alphas.insert(target, alpha as f32);
        }
    }
    Ok(alphas)
}

/// The rank of a layer's two tensors, whose shapes must match `matrix`.
fn rank(file: &ModelFolder, matrix: &LoadedMatrix, [down, up]: [&String; 2]) -> Result<usize> {
    let shape = |name: &str| Weights::shape(file, name).unwrap_or_default();
    let (lower, upper) = (shape(down), shape(up));
    let rank = lower.first().copied().unwrap_or(0);
    let fits = match matrix.window {
        Some(ConvShape { inputs, kernel: [height, width], .. }) => lower == [rank, inputs, height, width],
        None => lower.len() > 1 && flat(&lower) == (rank, matrix.columns),
    };
    if rank == 0 || !fits {
        return invalid(format!("its tensor {down} has the shape {lower:?}, which does not fit the layer"));
    }
    if upper.len() < 2 || flat(&upper) != (matrix.total, rank) {
        return invalid(format!("its tensor {up} has the shape {upper:?}, which does not fit the layer"));
    }
    Ok(rank)
}

impl LoraLayer {
    fn of(
        file: &ModelFolder,
        matrices: Option<&[LoadedMatrix]>,
        found: LayerTensors,
        metadata_alpha: Option<f32>,
    ) -> Result<Self> {
        let LayerTensors { down, up, alpha } = found;
        let (down, up) = match (down, up) {
            (Some(down), Some(up)) => (down, up),
            (Some(one), None) | (None, Some(one)) => {
                return invalid(format!("its tensor {one} has no counterpart"));
            }
            (None, None) => return invalid(format!("its tensor {} has no matrices", alpha.unwrap_or_default())),
        };
        let Some(matrices @ [first, ..]) = matrices else {
            return invalid(format!("its tensor {down} is for a layer that this model does not have"));
        };
        let rank = rank(file, first, [&down, &up])?;
        for name in [Some(&down), Some(&up), alpha.as_ref()].into_iter().flatten() {
            if Weights::dtype(file, name).is_none() {
                return invalid(format!("its tensor {name} is of a type that is not supported"));
            }
        }
        let one = |name: &&String| Weights::shape(file, name).unwrap_or_default().iter().product::<usize>() == 1;
        if let Some(name) = alpha.as_ref().filter(|name| !one(name)) {
            return invalid(format!("its tensor {name} does not have one element"));
        }
        let factor = alpha.map(Factor::Tensor).or(metadata_alpha.map(Factor::Number)).unwrap_or(Factor::Rank);
        Ok(Self { down, up, rank, factor, matrices: matrices.to_vec() })
    }

    /// The down-projection's convolution.
    fn window(&self) -> Option<ConvShape> {
        let window = self.matrices.first()?.window?;
        Some(ConvShape { outputs: self.rank, ..window })
    }

    fn bytes(&self, file: &ModelFolder) -> u64 {
        let dtype = |name: &str| Weights::dtype(file, name).unwrap_or(DType::F32);
        let (down, up) = (dtype(&self.down), dtype(&self.up));
        let columns = self.matrices.first().map_or(0, |matrix| matrix.columns);
        let lower = match self.window() {
            Some(window) => Conv2d::packed_bytes(down, &window),
            None => kernels::Linear::packed_bytes(down, self.rank, columns),
        };
        let upper = self.matrices.iter().map(|matrix| kernels::Linear::packed_bytes(up, matrix.rows.len(), self.rank));
        (lower + upper.sum::<usize>()) as u64
    }

    fn read(&self, file: &ModelFolder, pool: &Pool, deltas: &mut Vec<(usize, Arc<LoraDelta>)>) -> Result<()> {
        let alpha = match &self.factor {
            Factor::Rank => self.rank as f32,
            Factor::Number(alpha) => *alpha,
            Factor::Tensor(name) => {
                let numbers = Weights::rows(file, name, 0, 1)?.floats()?;
                numbers.first().copied().unwrap_or(0.)
            }
        };
        let factor = alpha / self.rank as f32;
        if !factor.is_finite() {
            return invalid(format!("the factor of its tensor {} is not finite", self.down));
        }
        let shape = Weights::shape(file, &self.down).unwrap_or_default();
        let rows = Weights::rows(file, &self.down, 0, flat(&shape).0)?;
        let down = match self.window() {
            Some(window) => Down::Conv(Arc::new(Conv2d::new(pool, rows.dtype, window, &rows.bytes()?, None)?)),
            None => Down::Linear(Linear::new(pool, &rows, None)?),
        };
        for matrix in &self.matrices {
            let rows = Weights::rows(file, &self.up, matrix.rows.start, matrix.rows.len())?;
            let up = Linear::new(pool, &rows, None)?;
            deltas.push((matrix.id, Arc::new(LoraDelta { down: down.clone(), up, factor })));
        }
        Ok(())
    }
}
