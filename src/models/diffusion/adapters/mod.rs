//! LoRA adapters (Hu et al. 2021, <https://arxiv.org/abs/2106.09685>): pairs of small matrices whose products are added
//! to those of a pipeline's layers.

mod lora_deltas;
mod lora_file;
mod tensor_names;

use std::collections::HashMap;

use super::ldm_checkpoint::tensor_names::unet;
use super::network::NetworkConfig;
use crate::models::weights::LoadedMatrix;
pub(super) use lora_deltas::Down;
pub use lora_deltas::{Adapter, LoraDelta, LoraDeltas};
pub use lora_file::LoraFile;
pub use tensor_names::LoraTarget;

/// Layers of a loaded pipeline that adapters may target, by name with underscores for dots.
#[derive(Debug, Default)]
pub struct AdaptableLayers(HashMap<(LoraTarget, String), Vec<LoadedMatrix>>);

impl AdaptableLayers {
    /// Adds a text encoder's layers.
    pub fn push_text(&mut self, at: usize, matrices: Vec<LoadedMatrix>) {
        for matrix in matrices {
            self.push(LoraTarget::Text(at), &matrix.stem.clone(), matrix);
        }
    }

    /// Adds the network's layers, also under their original names.
    pub fn push_network(&mut self, config: &NetworkConfig, matrices: Vec<LoadedMatrix>) {
        for matrix in matrices {
            if let NetworkConfig::Unet(config) = config
                && let Some(original) = unet(&matrix.stem, config)
            {
                self.push(LoraTarget::Network, &original, matrix.clone());
            }
            self.push(LoraTarget::Network, &matrix.stem.clone(), matrix);
        }
    }

    fn push(&mut self, target: LoraTarget, name: &str, matrix: LoadedMatrix) {
        let all = self.0.entry((target, tensor_names::flat(name))).or_default();
        // Some layers have the same name in both.
        if !all.contains(&matrix) {
            all.push(matrix);
        }
    }

    /// The matrices of a layer; several where the network splits a tensor.
    fn of(&self, target: LoraTarget, name: &str) -> Option<&[LoadedMatrix]> {
        self.0.get(&(target, name.to_owned())).map(Vec::as_slice)
    }
}
