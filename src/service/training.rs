//! What a fine-tuning job asks for, and the rules of its fields.

use super::fields;
use crate::clock_rng::ClockRng;
use crate::error::{Error, Result};
use crate::ids::{FileId, ProjectId};
pub use crate::storage::fine_tuning_jobs::HyperparametersRecord as Hyperparameters;

const MOST_EPOCHS: i64 = 50;
const LARGEST_BATCH: i64 = 256;
const LARGEST_MULTIPLIER: f64 = 1000.0;
const LARGEST_SEED: i64 = i32::MAX as i64;

/// What a new job is made of, as far as the caller says it.
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
    /// As given, with the path of the field that gave them.
    pub hyperparameters: Asked,
    pub suffix: Option<String>,
    pub seed: Option<i64>,
}

/// Hyperparameters before they are checked; absent means auto.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Path of the object that holds them, such as `method.supervised.hyperparameters`.
    pub path: &'static str,
    pub n_epochs: Option<i64>,
    pub batch_size: Option<i64>,
    pub learning_rate_multiplier: Option<f64>,
}

impl Asked {
    fn check(&self) -> Result<Hyperparameters> {
        let multiplier = self.learning_rate_multiplier;
        if let Some(given) = multiplier.filter(|given| !(*given > 0.0 && *given <= LARGEST_MULTIPLIER)) {
            let text = format!("it must be \"auto\" or a number above 0, up to {LARGEST_MULTIPLIER}");
            return Err(self.wrong("learning_rate_multiplier", given, &text));
        }
        Ok(Hyperparameters {
            n_epochs: self.count("n_epochs", self.n_epochs, MOST_EPOCHS)?,
            batch_size: self.count("batch_size", self.batch_size, LARGEST_BATCH)?,
            learning_rate_multiplier: multiplier,
        })
    }

    fn count(&self, field: &str, given: Option<i64>, most: i64) -> Result<Option<u32>> {
        let Some(given) = given else { return Ok(None) };
        let fits = u32::try_from(given).ok().filter(|_| (1..=most).contains(&given));
        let text = format!("it must be \"auto\" or 1 to {most}");
        fits.map(Some).ok_or_else(|| self.wrong(field, given, &text))
    }

    fn wrong(&self, field: &str, given: impl std::fmt::Display, right: &str) -> Error {
        let param = format!("{}.{field}", self.path);
        Error::invalid(param.clone(), format!("'{param}' is {given}; {right}."))
    }
}

/// A job's fields in order, with what was left open filled in.
pub(super) struct Recipe {
    pub name: Option<String>,
    pub metadata: Option<String>,
    pub model: String,
    pub training_file: FileId,
    pub validation_file: Option<FileId>,
    pub hyperparameters: Hyperparameters,
    pub suffix: Option<String>,
    pub seed: u32,
}

impl Recipe {
    pub fn new(new: NewJob, clock_rng: &dyn ClockRng) -> Result<Self> {
        new.name.as_deref().map_or(Ok(()), fields::name)?;
        fields::metadata(new.metadata.as_deref())?;
        fields::suffix(new.suffix.as_deref())?;
        let seed = match new.seed {
            Some(given) => u32::try_from(given)
                .ok()
                .filter(|_| given <= LARGEST_SEED)
                .ok_or_else(|| Error::invalid("seed", format!("'seed' is {given}; it must be 0 to {LARGEST_SEED}.")))?,
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
