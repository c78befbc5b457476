//! The parameters of a fine-tuning job and their validation.

use super::super::validation;
use crate::clock_rng::ClockRng;
use crate::error::{Error, Result};
use crate::ids::{FileId, ProjectId};
pub use crate::storage::fine_tuning_jobs::HyperparametersRecord as Hyperparameters;

const MAX_EPOCHS: i64 = 50;
const MAX_BATCH: i64 = 256;
const MAX_MULTIPLIER: f64 = 1000.0;
const MAX_SEED: i64 = i32::MAX as i64;

/// The fields of a new job.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// Absent: the project of the key.
    pub project: Option<ProjectId>,
    pub name: Option<String>,
    /// A JSON object, as text, of at most 16 KiB.
    pub metadata: Option<String>,
    pub model: String,
    pub training_file: FileId,
    pub validation_file: Option<FileId>,
    /// As requested, with the path of their field.
    pub hyperparameters: RequestedHyperparameters,
    pub suffix: Option<String>,
    pub seed: Option<i64>,
}

/// Unvalidated hyperparameters; absent means auto.
#[derive(Clone, Debug, Default)]
pub struct RequestedHyperparameters {
    /// Path of the object that holds them, such as `method.supervised.hyperparameters`.
    pub path: &'static str,
    pub n_epochs: Option<i64>,
    pub batch_size: Option<i64>,
    pub learning_rate_multiplier: Option<f64>,
}

impl RequestedHyperparameters {
    fn check(&self) -> Result<Hyperparameters> {
        let multiplier = self.learning_rate_multiplier;
        if let Some(given) = multiplier.filter(|given| !(*given > 0.0 && *given <= MAX_MULTIPLIER)) {
            let text = format!("it must be \"auto\" or a number above 0, up to {MAX_MULTIPLIER}");
            return Err(self.wrong("learning_rate_multiplier", given, &text));
        }
        Ok(Hyperparameters {
            n_epochs: self.count("n_epochs", self.n_epochs, MAX_EPOCHS)?,
            batch_size: self.count("batch_size", self.batch_size, MAX_BATCH)?,
            learning_rate_multiplier: multiplier,
        })
    }

    fn count(&self, field: &str, given: Option<i64>, max: i64) -> Result<Option<u32>> {
        let Some(given) = given else { return Ok(None) };
        let fits = u32::try_from(given).ok().filter(|_| (1..=max).contains(&given));
        let text = format!("it must be \"auto\" or 1 to {max}");
        fits.map(Some).ok_or_else(|| self.wrong(field, given, &text))
    }

    fn wrong(&self, field: &str, given: impl std::fmt::Display, right: &str) -> Error {
        let param = format!("{}.{field}", self.path);
        Error::invalid(param.clone(), format!("'{param}' is {given}; {right}."))
    }
}

/// Validated parameters of a job, with defaults filled in.
pub(super) struct JobSpec {
    pub name: Option<String>,
    pub metadata: Option<String>,
    pub model: String,
    pub training_file: FileId,
    pub validation_file: Option<FileId>,
    pub hyperparameters: Hyperparameters,
    pub suffix: Option<String>,
    pub seed: u32,
}

impl JobSpec {
    pub fn new(new: NewJob, clock_rng: &dyn ClockRng) -> Result<Self> {
        new.name.as_deref().map_or(Ok(()), validation::name)?;
        validation::metadata(new.metadata.as_deref())?;
        validation::suffix(new.suffix.as_deref())?;
        let seed = match new.seed {
            Some(given) => u32::try_from(given)
                .ok()
                .filter(|_| given <= MAX_SEED)
                .ok_or_else(|| Error::invalid("seed", format!("'seed' is {given}; it must be 0 to {MAX_SEED}.")))?,
            None => draw(clock_rng),
        };
        Ok(Self {
            hyperparameters: new.hyperparameters.check()?,
            name: new.name,
            metadata: new.metadata,
            model: new.model,
            training_file: new.training_file,
            validation_file: new.validation_file,
            suffix: new.suffix,
            seed,
        })
    }
}

fn draw(clock_rng: &dyn ClockRng) -> u32 {
    let mut bytes = [0; 4];
    clock_rng.fill(&mut bytes);
    u32::from_be_bytes(bytes) >> 1
}
