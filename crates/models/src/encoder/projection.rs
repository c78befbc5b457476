//! Projections of pooled vectors: the `Dense` modules of sentence-transformers.

use serde::{Deserialize, Serialize};

use crate::backend::{Backend, DType};
use crate::error::Result;
use crate::nn::Linear;
use crate::safetensors::ModelFolder;
use crate::weights::{Candidate, Loader, Role, Rows, Weights};

/// `activation(W x + b)` of a pooled vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectionConfig {
    pub inputs: usize,
    pub outputs: usize,
    /// The projection must have a bias.
    pub biased: bool,
    pub activation: ProjectionActivation,
}

/// The activations that published models have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProjectionActivation {
    Identity,
    Tanh,
}

/// A projection on its device.
#[derive(Debug)]
pub struct Projection<B: Backend> {
    linear: Linear<B>,
    activation: ProjectionActivation,
}

impl<B: Backend> Projection<B> {
    /// Reads the weight of this stem, rounded to `precision`.
    pub fn load(
        source: &dyn Weights,
        stem: &str,
        config: &ProjectionConfig,
        precision: Option<DType>,
        backend: &B,
    ) -> Result<Self> {
        let ProjectionConfig { inputs, outputs, biased, activation } = *config;
        let loader = Loader::new(source, backend).with_precision(precision);
        let linear = loader.linear(&[Candidate::whole(stem.to_owned(), outputs)], outputs, inputs, biased)?;
        Ok(Self { linear, activation })
    }

    /// Projects vectors, `[inputs]` each, to `[outputs]` each.
    pub fn forward(&self, backend: &B, vectors: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let mut projected = self.linear.forward_vectors(backend, vectors)?;
        if self.activation == ProjectionActivation::Tanh {
            projected.iter_mut().flatten().for_each(|value| *value = value.tanh());
        }
        Ok(projected)
    }
}

/// The stem of the weight in the file of a `Dense` module.
pub const MODULE_STEM: &str = "linear";

/// The safetensors file of a `Dense` module.
pub struct ModuleWeights(ModelFolder);

impl ModuleWeights {
    /// Opens the file. Reads its header.
    ///
    /// # Errors
    /// If the file is missing or damaged.
    pub fn open(path: &std::path::Path) -> Result<Self> {
        ModelFolder::open_file(path).map(Self)
    }
}

impl Weights for ModuleWeights {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        Some(format!("{stem}.{}", if role == Role::Weight { "weight" } else { "bias" }))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Weights::shape(&self.0, name)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Weights::dtype(&self.0, name)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>> {
        Weights::rows(&self.0, name, first, count)
    }

    fn names(&self) -> Vec<String> {
        self.0.names().map(str::to_owned).collect()
    }
}
