//! LoRA adapters (Hu et al. 2021, <https://arxiv.org/abs/2106.09685>): pairs of low-rank matrices whose product is
//! added to the output of a layer.

mod lora_file;
mod tensor_names;

use std::collections::HashMap;

use super::denoiser::DenoiserConfig;
use super::ldm_checkpoint::tensor_names::unet_name;
use crate::weights::LoadedMatrix;
pub use lora_file::LoraFile;
pub use tensor_names::LoraTarget;

/// The layers of a loaded pipeline that adapters may target. Keys are layer names with underscores instead of dots.
#[derive(Debug, Default)]
pub struct AdaptableLayers(HashMap<(LoraTarget, String), Vec<LoadedMatrix>>);

impl AdaptableLayers {
    /// Adds the layers of the text encoder at `index`.
    pub fn push_text_encoder(&mut self, index: usize, matrices: Vec<LoadedMatrix>) {
        for matrix in matrices {
            self.push(LoraTarget::TextEncoder(index), &matrix.stem.clone(), matrix);
        }
    }

    /// Adds the layers of the denoiser, also under their original names.
    pub fn push_denoiser(&mut self, config: &DenoiserConfig, matrices: Vec<LoadedMatrix>) {
        for matrix in matrices {
            if let DenoiserConfig::Unet(config) = config
                && let Some(original) = unet_name(&matrix.stem, config)
            {
                self.push(LoraTarget::Denoiser, &original, matrix.clone());
            }
            self.push(LoraTarget::Denoiser, &matrix.stem.clone(), matrix);
        }
    }

    fn push(&mut self, target: LoraTarget, name: &str, matrix: LoadedMatrix) {
        let matrices = self.0.entry((target, tensor_names::with_underscores(name))).or_default();
        // The original name of a layer may equal its diffusers name.
        if !matrices.contains(&matrix) {
            matrices.push(matrix);
        }
    }

    /// The matrices of a layer; several if the model splits a tensor of the checkpoint.
    fn get(&self, target: LoraTarget, name: &str) -> Option<&[LoadedMatrix]> {
        self.0.get(&(target, name.to_owned())).map(Vec::as_slice)
    }
}
