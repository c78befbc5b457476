//! LoRA files: their tensors are matched with the layers of a pipeline, checked and read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::AdaptableLayers;
use super::tensor_names::{self, LoraRole, LoraTarget};
use crate::backend::{ConvShape, Convolutions, DType};
use crate::error::{ModelError, Result};
use crate::nn::{Adapter, Conv, DownProjection, LoraDelta};
use crate::safetensors::ModelFolder;
use crate::weights::{LoadedMatrix, Weights, flat};

/// An opened LoRA file that fits a pipeline. Tensors are not read yet.
#[derive(Debug)]
pub struct LoraFile {
    file: ModelFolder,
    layers: Vec<LoraLayer>,
}

#[derive(Debug)]
struct LoraLayer {
    down: String,
    up: String,
    rank: usize,
    alpha: Alpha,
    /// The matrices that the delta applies to.
    matrices: Vec<LoadedMatrix>,
}

/// The alpha of a layer. The delta is scaled by alpha over rank.
#[derive(Clone, Debug)]
enum Alpha {
    /// A tensor with one element.
    Tensor(String),
    /// From the metadata of the file.
    Value(f32),
    /// Equals the rank, so the scale is one.
    Rank,
}

/// The names of the tensors of a layer.
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
    /// Opens a file.
    ///
    /// # Errors
    /// The file is not a LoRA, or does not fit the pipeline. Error messages are for clients.
    pub fn open(path: &Path, layers: &AdaptableLayers) -> Result<Self> {
        let file = ModelFolder::open_file(path)?;
        let mut tensors_by_layer: BTreeMap<(LoraTarget, String), LayerTensors> = BTreeMap::new();
        for name in file.names() {
            let (target, layer, role) = tensor_names::parse(name).map_err(ModelError::Checkpoint)?;
            let tensors = tensors_by_layer.entry((target, layer)).or_default();
            let slot = match role {
                LoraRole::Down => &mut tensors.down,
                LoraRole::Up => &mut tensors.up,
                LoraRole::Alpha => &mut tensors.alpha,
            };
            if let Some(other) = slot.replace(name.to_owned()) {
                return invalid(format!("its tensors {other} and {name} are for the same layer"));
            }
        }
        let alphas = alphas(&file.metadata)?;
        let layer = |((target, name), tensors): ((LoraTarget, String), LayerTensors)| {
            let metadata_alpha = alphas.get(&target).copied();
            LoraLayer::new(&file, layers.get(target, &name), tensors, metadata_alpha)
        };
        let layers = tensors_by_layer.into_iter().map(layer).collect::<Result<Vec<_>>>()?;
        Ok(Self { file, layers })
    }

    /// Memory of the loaded adapter, in bytes.
    pub fn bytes<B: Convolutions>(&self, backend: &B) -> u64 {
        self.layers.iter().map(|layer| layer.bytes(&self.file, backend)).sum()
    }

    /// Reads the file, with a pause after each layer.
    pub fn read<B: Convolutions>(&self, backend: &B) -> Result<Adapter<B>> {
        let mut deltas = Vec::new();
        for layer in &self.layers {
            layer.read(&self.file, backend, &mut deltas)?;
            backend.pause()?;
        }
        Ok(Adapter::new(backend, deltas))
    }
}

/// The alpha of each target from the metadata of the file, as peft writes it.
fn alphas(metadata: &serde_json::Map<String, Value>) -> Result<BTreeMap<LoraTarget, f32>> {
    const COMPONENTS: [(&str, LoraTarget); 4] = [
        ("unet", LoraTarget::Denoiser),
        ("transformer", LoraTarget::Denoiser),
        ("text_encoder", LoraTarget::TextEncoder(0)),
        ("text_encoder_2", LoraTarget::TextEncoder(1)),
    ];
    let text = metadata.get("lora_adapter_metadata").and_then(Value::as_str).unwrap_or("{}");
    let metadata: Value = serde_json::from_str(text).unwrap_or_default();
    let mut alphas = BTreeMap::new();
    for (component, target) in COMPONENTS {
        let field = |key: &str| metadata.get(format!("{component}.{key}"));
        let is_set = |value: &Value| {
            !(value.is_null() || value == false || value.as_object().is_some_and(|fields| fields.is_empty()))
        };
        let unsupported = ["use_dora", "use_rslora", "alpha_pattern"];
        if let Some(key) = unsupported.into_iter().find(|key| field(key).is_some_and(is_set)) {
            return invalid(format!("it was trained with {key}, which is not supported"));
        }
        if let Some(alpha) = field("lora_alpha").and_then(Value::as_f64) {
            alphas.insert(target, alpha as f32);
        }
    }
    Ok(alphas)
}

/// The rank of the two tensors of a layer, whose shapes must match `matrix`.
fn rank(file: &ModelFolder, matrix: &LoadedMatrix, [down, up]: [&String; 2]) -> Result<usize> {
    let shape = |name: &str| Weights::shape(file, name).unwrap_or_default();
    let (down_shape, up_shape) = (shape(down), shape(up));
    let rank = down_shape.first().copied().unwrap_or(0);
    let fits = match matrix.window {
        Some(ConvShape { inputs, kernel: [height, width], .. }) => down_shape == [rank, inputs, height, width],
        None => down_shape.len() > 1 && flat(&down_shape) == (rank, matrix.columns),
    };
    if rank == 0 || !fits {
        return invalid(format!("its tensor {down} has the shape {down_shape:?}, which does not fit the layer"));
    }
    if up_shape.len() < 2 || flat(&up_shape) != (matrix.total, rank) {
        return invalid(format!("its tensor {up} has the shape {up_shape:?}, which does not fit the layer"));
    }
    Ok(rank)
}

impl LoraLayer {
    fn new(
        file: &ModelFolder,
        matrices: Option<&[LoadedMatrix]>,
        tensors: LayerTensors,
        metadata_alpha: Option<f32>,
    ) -> Result<Self> {
        let LayerTensors { down, up, alpha } = tensors;
        let (down, up) = match (down, up) {
            (Some(down), Some(up)) => (down, up),
            (Some(tensor), None) | (None, Some(tensor)) => {
                return invalid(format!("its tensor {tensor} has no counterpart"));
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
        let is_scalar = |name: &&String| Weights::shape(file, name).unwrap_or_default().iter().product::<usize>() == 1;
        if let Some(name) = alpha.as_ref().filter(|name| !is_scalar(name)) {
            return invalid(format!("its tensor {name} does not have one element"));
        }
        let alpha = alpha.map(Alpha::Tensor).or(metadata_alpha.map(Alpha::Value)).unwrap_or(Alpha::Rank);
        Ok(Self { down, up, rank, alpha, matrices: matrices.to_vec() })
    }

    /// The shape of the down-projection if it is a convolution.
    fn conv_shape(&self) -> Option<ConvShape> {
        let shape = self.matrices.first()?.window?;
        Some(ConvShape { outputs: self.rank, ..shape })
    }

    /// Memory of the loaded layer, in bytes.
    fn bytes<B: Convolutions>(&self, file: &ModelFolder, backend: &B) -> u64 {
        let dtype = |name: &str| Weights::dtype(file, name).unwrap_or(DType::F32);
        let (down_dtype, up_dtype) = (dtype(&self.down), dtype(&self.up));
        let columns = self.matrices.first().map_or(0, |matrix| matrix.columns);
        let down_bytes = match self.conv_shape() {
            Some(shape) => backend.conv_bytes(down_dtype, &shape),
            None => backend.linear_bytes(down_dtype, self.rank, columns),
        };
        let up_bytes = |matrix: &LoadedMatrix| backend.linear_bytes(up_dtype, matrix.rows.len(), self.rank);
        (down_bytes + self.matrices.iter().map(up_bytes).sum::<usize>()) as u64
    }

    fn read<B: Convolutions>(
        &self,
        file: &ModelFolder,
        backend: &B,
        deltas: &mut Vec<(usize, LoraDelta<B>)>,
    ) -> Result<()> {
        let alpha = match &self.alpha {
            Alpha::Rank => self.rank as f32,
            Alpha::Value(alpha) => *alpha,
            Alpha::Tensor(name) => {
                let elements = Weights::rows(file, name, 0, 1)?.floats()?;
                elements.first().copied().unwrap_or(0.)
            }
        };
        let scale = alpha / self.rank as f32;
        if !scale.is_finite() {
            return invalid(format!("the scale of its tensor {} is not finite", self.down));
        }
        let down_shape = Weights::shape(file, &self.down).unwrap_or_default();
        let rows = Weights::rows(file, &self.down, 0, flat(&down_shape).0)?;
        let down = Arc::new(match self.conv_shape() {
            Some(shape) => DownProjection::Conv(Box::new(Conv::read(backend, &rows, shape, None)?)),
            None => DownProjection::Linear(backend.read_linear(&rows, None, false)?),
        });
        for matrix in &self.matrices {
            let rows = Weights::rows(file, &self.up, matrix.rows.start, matrix.rows.len())?;
            let up = backend.read_linear(&rows, None, false)?;
            deltas.push((matrix.id, LoraDelta { down: Arc::clone(&down), up, scale }));
        }
        Ok(())
    }
}
