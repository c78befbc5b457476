//! The files that hold the weights of a component.

use crate::backend::{Backend, Convolutions, DType};

use crate::diffusion::diffusers_weights::DiffusersWeights;
use crate::diffusion::dit::OriginalWeights;
use crate::diffusion::ldm_checkpoint::LdmWeights;
use crate::encoder::{EncoderWeights, Family};
use crate::error::Result;
use crate::gguf::GgufFile;
use crate::safetensors::ModelFolder;
use crate::weights::{Footprint, LoadedMatrix, Loader, Weights};

#[derive(Debug)]
pub enum TensorSource {
    ModelFolder(ModelFolder),
    /// A component of a single-file pipeline.
    Ldm(LdmWeights),
    /// A BERT text encoder.
    Encoder(ModelFolder),
    /// The FLUX transformer.
    Gguf(GgufFile),
}

impl TensorSource {
    fn with_weights<T>(&self, f: impl FnOnce(&dyn Weights) -> T) -> T {
        match self {
            Self::ModelFolder(folder) => f(&DiffusersWeights::new(folder)),
            Self::Ldm(weights) => f(weights),
            Self::Encoder(folder) => f(&EncoderWeights::new(folder, Family::Bert)),
            Self::Gguf(file) => f(&OriginalWeights::new(file)),
        }
    }

    /// Reads all tensors and rounds floats to `precision`. Also returns the loaded matrices.
    ///
    /// # Errors
    /// A tensor is missing, has the wrong shape or is not used by `load`.
    pub(in crate::diffusion) fn read<B: Backend, T>(
        &self,
        backend: &B,
        precision: Option<DType>,
        load: impl FnOnce(&Loader<'_, B>) -> Result<T>,
    ) -> Result<(T, Vec<LoadedMatrix>)> {
        self.with_weights(|source| {
            let loader = Loader::new(source, backend).with_precision(precision);
            let loaded = load(&loader)?;
            let matrices = loader.matrices();
            loader.finish()?;
            Ok((loaded, matrices))
        })
    }

    pub(super) fn footprint<B: Convolutions>(&self, backend: &B, precision: Option<DType>) -> Footprint {
        self.with_weights(|source| Footprint::with_convolutions(source, backend, precision))
    }
}
