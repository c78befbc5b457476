//! Where a component's weights are stored.

use outpost_kernels::DType;

use crate::models::diffusion::diffusers_weights::DiffusersWeights;
use crate::models::diffusion::dit::OriginalWeights;
use crate::models::diffusion::layers::Loaded;
use crate::models::diffusion::ldm_checkpoint::LdmWeights;
use crate::models::encoder::{EncoderWeights, Family};
use crate::models::gguf::GgufFile;
use crate::models::safetensors::ModelFolder;
use crate::models::weights::{Footprint, LoadedMatrix, Loader, Weights};

#[derive(Debug)]
pub enum TensorSource {
    ModelFolder(ModelFolder),
    /// A component of a single-file pipeline.
    Ldm(LdmWeights),
    /// A BERT text encoder.
    Encoder(ModelFolder),
    /// FLUX's network.
    Gguf(GgufFile),
}

impl TensorSource {
    fn with<T>(&self, work: impl FnOnce(&dyn Weights) -> T) -> T {
        match self {
            Self::ModelFolder(folder) => work(&DiffusersWeights::new(folder)),
            Self::Ldm(weights) => work(weights),
            Self::Encoder(folder) => work(&EncoderWeights::new(folder, Family::Bert)),
            Self::Gguf(file) => work(&OriginalWeights::new(file)),
        }
    }

    /// Reads all tensors with `threads` threads, with floats rounded to `precision`. Every tensor must be used. Also
    /// returns the matrices.
    pub(in crate::models::diffusion) fn read<T>(
        &self,
        threads: usize,
        precision: Option<DType>,
        load: impl FnOnce(&Loader<'_>) -> Loaded<T>,
    ) -> Loaded<(T, Vec<LoadedMatrix>)> {
        self.with(|source| {
            let loader = Loader::new(source, threads).with_precision(precision);
            let loaded = load(&loader)?;
            let matrices = loader.matrices();
            loader.finish()?;
            Ok((loaded, matrices))
        })
    }

    pub(super) fn footprint(&self, threads: usize, precision: Option<DType>) -> Footprint {
        self.with(|source| Footprint::with_precision(source, threads, precision))
    }
}
