//! Prepares a training: tokenises the examples, chooses the hyperparameters and loads the base model. The jobs of a server
//! and `outpost tune` train in the same way, because both begin here.

use super::examples::{self, Problem};
use super::hyperparameters;
use crate::engine::{Engine, LoadError, TrainableModel, TrainingData, TrainingOptions};
use crate::service::fine_tuning::{Hyperparameters, Method};

/// What to train.
pub struct Task<'a> {
    /// The ID of the base model.
    pub model: &'a str,
    pub method: Method,
    /// Absent values are chosen.
    pub requested: Hyperparameters,
    /// The hyperparameters of the earlier run, if the training is resumed.
    pub resolved: Option<Hyperparameters>,
    pub seed: u32,
    /// The content of the training file.
    pub training: &'a [u8],
    /// The content of the validation file.
    pub validation: Option<&'a [u8]>,
    /// The saved state from which to resume.
    pub saved: Option<Vec<u8>>,
}

/// What [`Engine::train`] needs.
pub struct Prepared {
    pub model: TrainableModel,
    pub data: TrainingData,
    /// Examples to learn from.
    pub examples: usize,
    pub options: TrainingOptions,
    /// The hyperparameters with a value for each.
    pub resolved: Hyperparameters,
    pub saved: Option<Vec<u8>>,
}

/// Why a training cannot be prepared.
#[derive(Debug)]
pub enum Unprepared {
    Model(LoadError),
    /// `param`: `training_file` or `validation_file`.
    Data {
        param: &'static str,
        problem: Problem,
    },
}

/// Prepares a training. Blocks.
pub fn prepare(engine: &Engine, task: Task<'_>) -> Result<Prepared, Unprepared> {
    let Task { model: id, method, requested, resolved, seed, training, validation, saved } = task;
    let model = engine.models().load(id).map_err(Unprepared::Model)?;
    let max_length = hyperparameters::max_length(&requested, model.context_window());
    let tokenize = |content: &[u8], param| {
        let tokenized = examples::tokenize(content, &model, max_length);
        tokenized.map_err(|problem| Unprepared::Data { param, problem })
    };
    let data = TrainingData {
        training: tokenize(training, "training_file")?,
        validation: validation.map_or(Ok(Vec::new()), |content| tokenize(content, "validation_file"))?,
    };
    // Its memory may be needed for the training.
    drop(model);
    let texts_per_example = hyperparameters::training_method(&requested, method).texts_per_example();
    let examples = data.training.len() / texts_per_example;
    let resolved = resolved.unwrap_or_else(|| hyperparameters::resolve(&requested, method, examples, max_length));
    let options = hyperparameters::options(&resolved, method, seed);
    let loaded = engine.models().load_for_training(id, &data, &options, saved.as_deref());
    let model = loaded.map_err(Unprepared::Model)?;
    Ok(Prepared { model, data, examples, options, resolved, saved })
}
