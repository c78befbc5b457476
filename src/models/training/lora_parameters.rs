//! The matrices of a LoRA adapter that is trained.

use std::ops::Range;

use super::split_mix::SplitMix;
use crate::models::backend::Candle;
use crate::models::decoder::Decoder;
use crate::models::error::{ModelError, Result};
use crate::models::peft::is_adaptable;
use crate::models::weights::LoadedMatrix;

/// The two LoRA matrices of a tensor of the checkpoint.
#[derive(Clone, Debug)]
pub struct LoraModule {
    /// The name of the tensor in GGUF, without the suffix `.weight`.
    pub tensor: String,
    pub inputs: usize,
    pub outputs: usize,
    /// Where [`LoraParameters::values`] has the down-projection: `[rank, inputs]`.
    pub down: Range<usize>,
    /// Where it has the up-projection: `[outputs, rank]`.
    pub up: Range<usize>,
    /// The matrices of the decoder: several if it splits the tensor.
    pub(super) matrices: Vec<LoadedMatrix>,
}

/// All parameters of an adapter.
#[derive(Clone, Debug)]
pub struct LoraParameters {
    pub rank: usize,
    /// The factor of the adapter's outputs: alpha over rank.
    pub scale: f32,
    pub modules: Vec<LoraModule>,
    pub values: Vec<f32>,
}

impl LoraParameters {
    /// An adapter without effect: random down-projections, and up-projections of zeros. `targets` selects projections by
    /// the end of their GGUF tensor name.
    ///
    /// # Errors
    /// If no projection is selected.
    pub fn new(
        decoder: &Decoder<Candle>,
        rank: usize,
        alpha: f32,
        targets: impl Fn(&str) -> bool,
        seed: u64,
    ) -> Result<Self> {
        let mut modules: Vec<LoraModule> = Vec::new();
        let mut len = 0;
        for matrix in decoder.projections() {
            let projection = matrix.stem.rsplit('.').next().unwrap_or_default();
            if !is_adaptable(projection) || !targets(projection) {
                continue;
            }
            if let Some(module) = modules.iter_mut().find(|module| module.tensor == matrix.stem) {
                module.matrices.push(matrix.clone());
                continue;
            }
            let LoadedMatrix { columns: inputs, total: outputs, .. } = *matrix;
            let (down, up) = (len..len + rank * inputs, len + rank * inputs..len + rank * (inputs + outputs));
            len = up.end;
            let (tensor, matrices) = (matrix.stem.clone(), vec![matrix.clone()]);
            modules.push(LoraModule { tensor, inputs, outputs, down, up, matrices });
        }
        if modules.is_empty() || rank == 0 {
            return Err(ModelError::Compute("an adapter without matrices cannot be trained".to_owned()));
        }
        let mut values = vec![0.; len];
        let mut random = SplitMix::new(seed);
        for LoraModule { inputs, down, .. } in &modules {
            // As in peft: the default of a linear layer in PyTorch.
            let bound = (*inputs as f32).sqrt().recip();
            values[down.clone()].iter_mut().for_each(|value| *value = bound * random.symmetric());
        }
        Ok(Self { rank, scale: alpha / rank as f32, modules, values })
    }
}
