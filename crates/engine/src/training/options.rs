//! The method and hyperparameters of a training.

use serde::{Deserialize, Serialize};

use outpost_models::training::TrainingText;

/// Steps of the warm-up per step of the training.
const WARMUP_SHARE: f64 = 0.05;

/// The training method of the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum TrainingMethod {
    /// Each text is an example.
    Supervised,
    /// Direct preference optimization: texts alternate between chosen and rejected.
    Preference { beta: f32 },
}

impl TrainingMethod {
    /// The texts of an example.
    pub fn texts_per_example(self) -> usize {
        match self {
            Self::Supervised => 1,
            Self::Preference { .. } => 2,
        }
    }
}

/// The hyperparameters of a training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingOptions {
    pub method: TrainingMethod,
    pub epochs: u32,
    /// Examples, or with packing bins of examples, per step of the optimizer.
    pub batch_size: u32,
    /// The highest learning rate, after the warm-up.
    pub learning_rate: f32,
    pub rank: u32,
    pub alpha: f32,
    /// The share of the inputs of the adapter that are zeroed at random in training.
    pub dropout: f32,
    /// The names of the modules in peft, such as `q_proj`; empty: all linear layers.
    pub target_modules: Vec<String>,
    /// If set, examples are put together into bins of up to this many tokens. Attention never crosses examples.
    pub packed_length: Option<u32>,
    pub seed: u64,
}

impl TrainingOptions {
    /// The steps of the warm-up of a training of `steps` steps.
    pub(super) fn warmup(steps: u32) -> u32 {
        (f64::from(steps) * WARMUP_SHARE).ceil() as u32
    }
}

/// Tokenised examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingData {
    /// Texts to learn from, those of an example next to each other.
    pub training: Vec<TrainingText>,
    /// Texts for validation, likewise.
    pub validation: Vec<TrainingText>,
}

/// The tokens of each example.
pub(super) fn example_lengths(texts: &[TrainingText], method: TrainingMethod) -> impl Iterator<Item = usize> {
    let examples = texts.chunks(method.texts_per_example());
    examples.map(|texts| texts.iter().map(|text| text.tokens.len()).sum())
}
