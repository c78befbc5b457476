//! The tensors of a Kokoro folder, which have the names of the reference implementation's `state_dict`. Weight norms are
//! already applied.

use crate::backend::DType;
use crate::error::ModelError;
use crate::safetensors::ModelFolder;
use crate::weights::{Role, Rows, Weights};

/// A part of the network whose weights are loaded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The encoders of phonemes and the predictors of prosody.
    Text,
    /// The decoder and the vocoder.
    Decoder,
}

const DECODER: &str = "decoder.";
/// Tensors that only training uses.
const UNUSED: &[&str] = &["bert.pooler.", "bert.embeddings.position_ids"];

/// The weights of one part.
pub(super) struct KokoroWeights<'a> {
    pub folder: &'a ModelFolder,
    pub part: Part,
}

impl Weights for KokoroWeights<'_> {
    fn name(&self, stem: &str, role: Role) -> Option<String> {
        let last = stem.rsplit('.').next().unwrap_or_default();
        // Stems such as `lstm.weight_hh_l0` and `alpha1.0` are whole names.
        let is_alpha = stem.rsplit('.').nth(1).is_some_and(|name| name.starts_with("alpha"));
        if is_alpha || last.starts_with("weight_hh") || last.starts_with("bias_hh") {
            return (role == Role::Weight).then(|| stem.to_owned());
        }
        let is_text_norm = stem.starts_with("text_encoder.cnn.") && last == "1";
        let ending = match (role, is_text_norm) {
            (Role::Weight, false) => "weight",
            (Role::Bias, false) => "bias",
            (Role::Weight, true) => "gamma",
            (Role::Bias, true) => "beta",
        };
        // The products of an LSTM with its inputs: `lstm.ih_l0` is `lstm.weight_ih_l0` and `lstm.bias_ih_l0`.
        Some(match stem.strip_suffix(last).filter(|_| last.starts_with("ih_l0")) {
            Some(layer) => format!("{layer}{ending}_{last}"),
            None => format!("{stem}.{ending}"),
        })
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Weights::shape(self.folder, name)
    }

    fn dtype(&self, name: &str) -> Option<DType> {
        Weights::dtype(self.folder, name)
    }

    fn rows(&self, name: &str, first: usize, count: usize) -> Result<Rows<'_>, ModelError> {
        Weights::rows(self.folder, name, first, count)
    }

    fn names(&self) -> Vec<String> {
        let is_needed = |name: &&str| {
            let part = if name.starts_with(DECODER) { Part::Decoder } else { Part::Text };
            part == self.part && !UNUSED.iter().any(|unused| name.starts_with(unused))
        };
        self.folder.names().filter(is_needed).map(str::to_owned).collect()
    }
}
