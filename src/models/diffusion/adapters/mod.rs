//! LoRA adapters (Hu et al. 2021, <https://arxiv.org/abs/2106.09685>): files of small matrices for some layers of a
//! pipeline, whose products are added to the layers' own.

mod names;
mod plan;
mod sides;

use std::collections::HashMap;
use std::sync::Arc;

use super::network::NetworkConfig;
use super::single::names::unet;
use crate::models::weights::Matrix;
pub use names::Place;
pub use plan::Plan;
pub use sides::{Side, Sides};

/// A file's parts in memory, by the id of the weight that each is for.
#[derive(Debug)]
pub struct Adapter {
    sides: Vec<(usize, Arc<Side>)>,
}

/// The layers of a loaded pipeline that adapters may be for, by their names without dots.
#[derive(Debug, Default)]
pub struct Layers(HashMap<(Place, String), Vec<Matrix>>);

impl Layers {
    /// Those of a text encoder.
    pub fn push_text(&mut self, at: usize, matrices: Vec<Matrix>) {
        for matrix in matrices {
            self.push(Place::Text(at), &matrix.stem.clone(), matrix);
        }
    }

    /// Those of the network, also by the names of its first code.
    pub fn push_network(&mut self, config: &NetworkConfig, matrices: Vec<Matrix>) {
        for matrix in matrices {
            if let NetworkConfig::Unet(config) = config
                && let Some(original) = unet(&matrix.stem, config)
            {
                self.push(Place::Network, &original, matrix.clone());
            }
            self.push(Place::Network, &matrix.stem.clone(), matrix);
        }
    }

    fn push(&mut self, place: Place, name: &str, matrix: Matrix) {
        let all = self.0.entry((place, names::flat(name))).or_default();
        // Some layers are called the same by both codes.
        if !all.contains(&matrix) {
            all.push(matrix);
        }
    }

    /// The matrices of a layer: several where the network has its tensor in parts.
    fn of(&self, place: Place, name: &str) -> Option<&[Matrix]> {
        self.0.get(&(place, name.to_owned())).map(Vec::as_slice)
    }
}
