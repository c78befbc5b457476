//! Single-file checkpoints with the tensor names of the original latent diffusion code (LDM).
//!
//! A component of the file is a source of tensors, as a folder is. OpenCLIP text encoders store queries, keys and
//! values in one tensor and the projection transposed; these are exposed as separate tensors.

mod inferred_config;
pub mod tensor_names;
mod tokenizer;

use std::sync::Arc;

use outpost_kernels::DType;

use super::unet::UnetConfig;
use crate::models::error::ModelError;
use crate::models::safetensors::ModelFolder;
use crate::models::weights::{Role, Rows, Weights};
pub use inferred_config::{LdmVersion, ShapeInference, TextEncoderLayout, default_scheduler_config};
pub use tokenizer::{find_tokenizer, neighbour_tokenizers};

pub const NETWORK: &str = "model.diffusion_model.";
pub const AUTOENCODER: &str = "first_stage_model.";

/// The weights of a component.
#[derive(Debug)]
pub struct LdmWeights {
    pub file: Arc<ModelFolder>,
    /// Prefix of its tensor names.
    pub prefix: String,
    pub part: LdmComponent,
}

#[derive(Debug)]
pub enum LdmComponent {
    Unet(Box<UnetConfig>),
    /// With this many image sizes.
    Vae(usize),
    /// With transformers' names.
    Clip,
    /// `layers`: how many are used; `projects`: whether the projection is.
    OpenClip {
        layers: usize,
        projects: bool,
    },
}

/// Suffixes and prefixes of tensors that are not used.
const UNUSED_SUFFIXES: &[&str] = &["position_ids", "logit_scale"];
const UNUSED_PREFIXES: &[&str] = &["loss.", "model_ema."];

/// How an exposed tensor is stored in the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    Whole,
    /// One of three equal parts.
    Third(usize),
    /// Rows and columns are swapped.
    Transposed,
}

/// The stored tensor's name, and how to view it.
fn view(name: &str) -> (&str, View) {
    let Some((base, view)) = name.strip_suffix(']').and_then(|name| name.rsplit_once('[')) else {
        return (name, View::Whole);
    };
    match view {
        "T" => (base, View::Transposed),
        third => third.parse().map_or((name, View::Whole), |third| (base, View::Third(third))),
    }
}

impl LdmWeights {
    /// The names under which a tensor is exposed; `None` if it is not used.
    fn exposed_names(&self, name: &str) -> Option<Vec<String>> {
        let own = name.strip_prefix(&self.prefix)?;
        let unused = UNUSED_SUFFIXES.iter().any(|end| own.ends_with(end))
            || UNUSED_PREFIXES.iter().any(|start| own.starts_with(start));
        if unused {
            return None;
        }
        let LdmComponent::OpenClip { layers, projects } = self.part else { return Some(vec![name.to_owned()]) };
        let layer = own.strip_prefix("transformer.resblocks.").and_then(|rest| rest.split_once('.'));
        // Stable Diffusion 2 takes embeddings from before the last layer.
        if layer.is_some_and(|(layer, _)| layer.parse().is_ok_and(|layer: usize| layer >= layers)) {
            return None;
        }
        match own {
            "text_projection" => projects.then(|| vec![format!("{name}[T]")]),
            _ if own.contains(".in_proj_") => Some((0..3).map(|third| format!("{name}[{third}]")).collect()),
            _ => Some(vec![name.to_owned()]),
        }
    }

    /// Rows of a transposed tensor, which is small.
    fn transposed(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        let [columns, rows] = *Weights::shape(&*self.file, name).unwrap_or_default() else {
            return Err(ModelError::Checkpoint(format!("tensor {name} is not a matrix")));
        };
        if first.checked_add(count).is_none_or(|end| end > rows) {
            return Err(ModelError::Checkpoint(format!(
                "tensor {name} has {rows} columns, none from {first} to {count} more"
            )));
        }
        let whole = Weights::rows(&*self.file, name, 0, columns)?;
        let (dtype, bytes) = (whole.dtype, whole.bytes()?);
        let size = dtype.block_bytes();
        let mut transposed = Vec::with_capacity(count * columns * size);
        for row in first..first + count {
            let column = bytes.chunks_exact(size).skip(row).step_by(rows.max(1));
            column.for_each(|number| transposed.extend_from_slice(number));
        }
        Rows::from_bytes(dtype, count, columns, transposed)
    }
}

impl Weights for LdmWeights {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let ending = if role == Role::Weight { "weight" } else { "bias" };
        let name = match &self.part {
            LdmComponent::Unet(config) => format!("{}.{ending}", tensor_names::unet(stem, config)?),
            LdmComponent::Vae(sizes) => format!("{}.{ending}", tensor_names::vae(stem, *sizes)?),
            LdmComponent::Clip => format!("{stem}.{ending}"),
            LdmComponent::OpenClip { .. } => tensor_names::open_clip(stem, ending)?,
        };
        Some(format!("{}{name}", self.prefix))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let (base, view) = view(name);
        let mut shape = Weights::shape(&*self.file, base)?;
        match view {
            View::Whole => {}
            View::Transposed => shape.reverse(),
            View::Third(_) => {
                let rows = shape.first_mut().filter(|rows| rows.is_multiple_of(3))?;
                *rows /= 3;
            }
        }
        Some(shape)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Weights::dtype(&*self.file, view(name).0)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        let (base, view) = view(name);
        match view {
            View::Whole => Weights::rows(&*self.file, base, first, count),
            View::Transposed => self.transposed(base, first, count),
            View::Third(third) => {
                let rows = self.shape(name).and_then(|shape| shape.first().copied()).unwrap_or(0);
                if first.checked_add(count).is_none_or(|end| end > rows) {
                    return Err(ModelError::Checkpoint(format!(
                        "tensor {name} has {rows} rows, none from {first} to {count} more"
                    )));
                }
                Weights::rows(&*self.file, base, third.saturating_mul(rows).saturating_add(first), count)
            }
        }
    }

    fn names(&self) -> Vec<String> {
        ModelFolder::names(&self.file).filter_map(|name| self.exposed_names(name)).flatten().collect()
    }
}

#[cfg(test)]
mod tests;
