//! Single-file checkpoints with the tensor names of the original latent diffusion code (LDM).
//!
//! [`LdmWeights`] exposes one component of the file. OpenCLIP text encoders store the query, key and value projections
//! in one tensor, and the text projection transposed; they are exposed as the tensors that the model expects.

mod inferred_config;
pub mod tensor_names;
mod tokenizer_search;

use std::sync::Arc;

use crate::backend::DType;

use super::unet::UnetConfig;
use crate::error::ModelError;
use crate::safetensors::ModelFolder;
use crate::weights::{Role, Rows, Weights};
pub use inferred_config::{LdmVersion, ShapeInference, TextEncoderLayout, default_scheduler_config};
pub use tokenizer_search::{find_tokenizer, neighbour_tokenizers};

pub const UNET_PREFIX: &str = "model.diffusion_model.";
pub const VAE_PREFIX: &str = "first_stage_model.";

/// The weights of a component.
#[derive(Debug)]
pub struct LdmWeights {
    pub file: Arc<ModelFolder>,
    /// The prefix of its tensor names.
    pub prefix: String,
    pub component: LdmComponent,
}

#[derive(Debug)]
pub enum LdmComponent {
    Unet(Box<UnetConfig>),
    /// With this number of resolution levels.
    Vae(usize),
    /// With the tensor names of transformers.
    Clip,
    /// `layers`: the number of layers that are used; `has_projection`: whether the text projection is used.
    OpenClip {
        layers: usize,
        has_projection: bool,
    },
}

/// Suffixes and prefixes of unused tensors.
const UNUSED_SUFFIXES: &[&str] = &["position_ids", "logit_scale"];
const UNUSED_PREFIXES: &[&str] = &["loss.", "model_ema."];

/// How an exposed tensor is stored in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    Whole,
    /// The query, key or value projection in a fused tensor of all three.
    Qkv(usize),
    /// Rows and columns are swapped.
    Transposed,
}

/// Parses an exposed name into the name of the stored tensor and a view of it.
fn parse_view(name: &str) -> (&str, View) {
    let Some((base, view)) = name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) else {
        return (name, View::Whole);
    };
    match view {
        "T" => (base, View::Transposed),
        index => index.parse().map_or((name, View::Whole), |index| (base, View::Qkv(index))),
    }
}

impl LdmWeights {
    /// The names under which a stored tensor is exposed; `None` if it is not used.
    fn exposed_names(&self, name: &str) -> Option<Vec<String>> {
        let stem = name.strip_prefix(&self.prefix)?;
        let unused = UNUSED_SUFFIXES.iter().any(|suffix| stem.ends_with(suffix))
            || UNUSED_PREFIXES.iter().any(|prefix| stem.starts_with(prefix));
        if unused {
            return None;
        }
        let LdmComponent::OpenClip { layers, has_projection } = self.component else {
            return Some(vec![name.to_owned()]);
        };
        let layer = stem.strip_prefix("transformer.resblocks.").and_then(|rest| rest.split_once('.'));
        // Stable Diffusion 2 uses the hidden states before the last layer.
        if layer.is_some_and(|(layer, _)| layer.parse().is_ok_and(|layer: usize| layer >= layers)) {
            return None;
        }
        match stem {
            "text_projection" => has_projection.then(|| vec![format!("{name}[T]")]),
            _ if stem.contains(".in_proj_") => Some((0..3).map(|index| format!("{name}[{index}]")).collect()),
            _ => Some(vec![name.to_owned()]),
        }
    }

    /// Rows of the transpose of a tensor. The tensor is small, so it is read whole.
    fn transposed_rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        let [columns, rows] = *Weights::shape(&*self.file, name).unwrap_or_default() else {
            return Err(ModelError::Checkpoint(format!("tensor {name} is not a matrix")));
        };
        if first.checked_add(count).is_none_or(|end| end > rows) {
            return Err(ModelError::Checkpoint(format!(
                "tensor {name} has {rows} columns; {count} columns from {first} are out of range"
            )));
        }
        let stored = Weights::rows(&*self.file, name, 0, columns)?;
        let (dtype, bytes) = (stored.dtype, stored.bytes()?);
        let element_bytes = dtype.block_bytes();
        let mut transposed = Vec::with_capacity(count * columns * element_bytes);
        for row in first..first + count {
            let column = bytes.chunks_exact(element_bytes).skip(row).step_by(rows.max(1));
            column.for_each(|element| transposed.extend_from_slice(element));
        }
        Rows::from_bytes(dtype, count, columns, transposed)
    }
}

impl Weights for LdmWeights {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let suffix = if role == Role::Weight { "weight" } else { "bias" };
        let name = match &self.component {
            LdmComponent::Unet(config) => format!("{}.{suffix}", tensor_names::unet_name(stem, config)?),
            LdmComponent::Vae(levels) => format!("{}.{suffix}", tensor_names::vae_name(stem, *levels)?),
            LdmComponent::Clip => format!("{stem}.{suffix}"),
            LdmComponent::OpenClip { .. } => tensor_names::open_clip_name(stem, suffix)?,
        };
        Some(format!("{}{name}", self.prefix))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let (base, view) = parse_view(name);
        let mut shape = Weights::shape(&*self.file, base)?;
        match view {
            View::Whole => {}
            View::Transposed => shape.reverse(),
            View::Qkv(_) => {
                let rows = shape.first_mut().filter(|rows| rows.is_multiple_of(3))?;
                *rows /= 3;
            }
        }
        Some(shape)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Weights::dtype(&*self.file, parse_view(name).0)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        let (base, view) = parse_view(name);
        match view {
            View::Whole => Weights::rows(&*self.file, base, first, count),
            View::Transposed => self.transposed_rows(base, first, count),
            View::Qkv(index) => {
                let rows = self.shape(name).and_then(|shape| shape.first().copied()).unwrap_or(0);
                if first.checked_add(count).is_none_or(|end| end > rows) {
                    return Err(ModelError::Checkpoint(format!(
                        "tensor {name} has {rows} rows; {count} rows from {first} are out of range"
                    )));
                }
                Weights::rows(&*self.file, base, index.saturating_mul(rows).saturating_add(first), count)
            }
        }
    }

    fn names(&self) -> Vec<String> {
        ModelFolder::names(&self.file).filter_map(|name| self.exposed_names(name)).flatten().collect()
    }
}

#[cfg(test)]
mod tests;
