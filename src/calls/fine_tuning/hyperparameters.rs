//! Chooses the hyperparameters that a job leaves to the server.

use crate::engine::{TrainingMethod, TrainingOptions};
use crate::service::fine_tuning::{Hyperparameters, Method};

/// The learning rates at a multiplier of one, as they are usual for LoRA.
const SUPERVISED_RATE: f64 = 2e-4;
const DPO_RATE: f64 = 2e-5;
const DEFAULT_RANK: u32 = 16;
const DEFAULT_BETA: f64 = 0.1;
const MAX_BATCH: usize = 16;
/// Examples for each example of a batch.
const EXAMPLES_PER_BATCH_ITEM: usize = 64;
/// Steps that a training has at least, if the number of epochs is to be chosen.
const MIN_STEPS: usize = 150;
const MAX_EPOCHS: usize = 10;
/// The max tokens of an example, if the model's context window is larger.
const DEFAULT_LENGTH: u32 = 4096;

/// The hyperparameters with a value for each, for this number of examples.
pub fn resolve(requested: &Hyperparameters, method: Method, examples: usize, max_length: u32) -> Hyperparameters {
    let batch_size =
        requested.batch_size.unwrap_or_else(|| (examples / EXAMPLES_PER_BATCH_ITEM).clamp(1, MAX_BATCH) as u32);
    let steps_per_epoch = examples.div_ceil(batch_size.max(1) as usize).max(1);
    let epochs = MIN_STEPS.div_ceil(steps_per_epoch).clamp(1, MAX_EPOCHS) as u32;
    Hyperparameters {
        n_epochs: Some(requested.n_epochs.unwrap_or(epochs)),
        batch_size: Some(batch_size),
        learning_rate_multiplier: Some(multiplier(requested)),
        beta: (method == Method::Dpo).then(|| beta(requested)),
        lora_rank: Some(rank(requested)),
        lora_alpha: Some(alpha(requested)),
        lora_dropout: Some(dropout(requested)),
        target_modules: requested.target_modules.clone(),
        max_length: Some(max_length),
        packing: Some(requested.packing.unwrap_or(false)),
    }
}

/// The max tokens of an example for a model with this context window.
pub fn max_length(requested: &Hyperparameters, context_window: u32) -> u32 {
    requested.max_length.unwrap_or(DEFAULT_LENGTH).min(context_window)
}

fn multiplier(given: &Hyperparameters) -> f64 {
    given.learning_rate_multiplier.unwrap_or(1.)
}

fn beta(given: &Hyperparameters) -> f64 {
    given.beta.unwrap_or(DEFAULT_BETA)
}

fn rank(given: &Hyperparameters) -> u32 {
    given.lora_rank.unwrap_or(DEFAULT_RANK)
}

fn alpha(given: &Hyperparameters) -> f64 {
    given.lora_alpha.unwrap_or_else(|| 2. * f64::from(rank(given)))
}

fn dropout(given: &Hyperparameters) -> f64 {
    given.lora_dropout.unwrap_or(0.)
}

/// The method with its hyperparameters.
pub fn training_method(given: &Hyperparameters, method: Method) -> TrainingMethod {
    match method {
        Method::Supervised => TrainingMethod::Supervised,
        Method::Dpo => TrainingMethod::Preference { beta: beta(given) as f32 },
    }
}

/// The options of a training with resolved hyperparameters.
pub fn options(resolved: &Hyperparameters, method: Method, seed: u32) -> TrainingOptions {
    let rate = match method {
        Method::Supervised => SUPERVISED_RATE,
        Method::Dpo => DPO_RATE,
    };
    TrainingOptions {
        method: training_method(resolved, method),
        epochs: resolved.n_epochs.unwrap_or(1),
        batch_size: resolved.batch_size.unwrap_or(1),
        learning_rate: (rate * multiplier(resolved)) as f32,
        rank: rank(resolved),
        alpha: alpha(resolved) as f32,
        dropout: dropout(resolved) as f32,
        target_modules: resolved.target_modules.clone().unwrap_or_default(),
        packed_length: resolved.max_length.filter(|_| resolved.packing == Some(true)),
        seed: u64::from(seed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_get_more_epochs_and_smaller_batches() {
        let chosen = |examples| {
            let resolved = resolve(&Hyperparameters::default(), Method::Supervised, examples, 512);
            (resolved.n_epochs.unwrap(), resolved.batch_size.unwrap())
        };
        assert_eq!([10, 50, 200, 1000, 100_000].map(chosen), [(10, 1), (3, 1), (3, 3), (3, 15), (1, 16)]);
    }

    #[test]
    fn requested_values_stay() {
        let requested = Hyperparameters {
            n_epochs: Some(2),
            lora_rank: Some(4),
            learning_rate_multiplier: Some(0.5),
            packing: Some(true),
            max_length: Some(100),
            ..Hyperparameters::default()
        };
        assert_eq!((max_length(&requested, 64), max_length(&requested, 1000)), (64, 100));
        let resolved = resolve(&requested, Method::Dpo, 10, 100);
        let options = options(&resolved, Method::Dpo, 7);
        assert_eq!((options.epochs, options.rank, options.alpha, options.seed), (2, 4, 8., 7));
        assert_eq!((options.learning_rate, options.packed_length), (1e-5, Some(100)));
        assert_eq!(options.method, TrainingMethod::Preference { beta: 0.1 });
    }
}
