//! The parameters of a fine-tuning job and their validation.

use serde::{Deserialize, Serialize};

use super::super::validation;
use crate::clock_rng::ClockRng;
use crate::error::{Error, Result};
use crate::ids::{FileId, ProjectId};
pub use crate::storage::fine_tuning_jobs::HyperparametersRecord as Hyperparameters;

/// The limits of hyperparameters.
pub mod limits {
    pub const MAX_EPOCHS: i64 = 50;
    pub const MAX_BATCH: i64 = 256;
    pub const MAX_MULTIPLIER: f64 = 1000.0;
    pub const MAX_BETA: f64 = 2.0;
    pub const MAX_RANK: i64 = 256;
    pub const MAX_ALPHA: f64 = 1024.0;
    pub const MIN_LENGTH: i64 = 8;
    pub const MAX_LENGTH: i64 = 1 << 20;
    pub const MAX_MODULES: usize = 16;
    pub const MAX_SEED: i64 = i32::MAX as i64;
}

/// How a job trains. The number is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Method {
    #[default]
    Supervised = 1,
    /// Direct preference optimization.
    Dpo = 2,
}

impl Method {
    pub const ALL: [Method; 2] = [Method::Supervised, Method::Dpo];

    pub fn as_str(self) -> &'static str {
        match self {
            Method::Supervised => "supervised",
            Method::Dpo => "dpo",
        }
    }

    /// Numbers written by a later version are shown as supervised.
    pub(super) fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|method| *method as u8 == number).unwrap_or_default()
    }
}

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
    pub method: Method,
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
    pub beta: Option<f64>,
    pub lora_rank: Option<i64>,
    pub lora_alpha: Option<f64>,
    pub lora_dropout: Option<f64>,
    pub target_modules: Option<Vec<String>>,
    pub max_length: Option<i64>,
    pub packing: Option<bool>,
}

impl RequestedHyperparameters {
    fn check(self, method: Method) -> Result<Hyperparameters> {
        if let Some(beta) = self.beta.filter(|_| method != Method::Dpo) {
            return Err(self.wrong("beta", beta, "it belongs to the method 'dpo'"));
        }
        if let Some(dropout) = self.lora_dropout.filter(|given| !(0.0..1.0).contains(given)) {
            return Err(self.wrong("lora_dropout", dropout, "it must be \"auto\" or from 0 to below 1"));
        }
        Ok(Hyperparameters {
            n_epochs: self.count("n_epochs", self.n_epochs, 1, limits::MAX_EPOCHS)?,
            batch_size: self.count("batch_size", self.batch_size, 1, limits::MAX_BATCH)?,
            learning_rate_multiplier: self.factor(
                "learning_rate_multiplier",
                self.learning_rate_multiplier,
                limits::MAX_MULTIPLIER,
            )?,
            beta: self.factor("beta", self.beta, limits::MAX_BETA)?,
            lora_rank: self.count("lora_rank", self.lora_rank, 1, limits::MAX_RANK)?,
            lora_alpha: self.factor("lora_alpha", self.lora_alpha, limits::MAX_ALPHA)?,
            lora_dropout: self.lora_dropout,
            max_length: self.count("max_length", self.max_length, limits::MIN_LENGTH, limits::MAX_LENGTH)?,
            packing: self.packing,
            target_modules: self.modules()?,
        })
    }

    fn count(&self, field: &str, given: Option<i64>, min: i64, max: i64) -> Result<Option<u32>> {
        let Some(given) = given else { return Ok(None) };
        let fits = u32::try_from(given).ok().filter(|_| (min..=max).contains(&given));
        let text = format!("it must be \"auto\" or {min} to {max}");
        fits.map(Some).ok_or_else(|| self.wrong(field, given, &text))
    }

    fn factor(&self, field: &str, given: Option<f64>, max: f64) -> Result<Option<f64>> {
        match given.filter(|given| !(*given > 0.0 && *given <= max)) {
            Some(wrong) => {
                let text = format!("it must be \"auto\" or a number above 0, up to {max}");
                Err(self.wrong(field, wrong, &text))
            }
            None => Ok(given),
        }
    }

    /// The names are checked against the model when the training begins.
    fn modules(&self) -> Result<Option<Vec<String>>> {
        let Some(names) = &self.target_modules else { return Ok(None) };
        let is_name =
            |name: &String| (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
        if names.is_empty() || names.len() > limits::MAX_MODULES || !names.iter().all(is_name) {
            let text =
                format!("it must be \"auto\" or 1 to {} names of modules, such as \"q_proj\"", limits::MAX_MODULES);
            return Err(self.wrong("target_modules", "not valid", &text));
        }
        Ok(Some(names.clone()))
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
    pub method: Method,
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
            Some(given) => u32::try_from(given).ok().filter(|_| given <= limits::MAX_SEED).ok_or_else(|| {
                Error::invalid("seed", format!("'seed' is {given}; it must be 0 to {}.", limits::MAX_SEED))
            })?,
            None => draw_seed(clock_rng),
        };
        Ok(Self {
            hyperparameters: new.hyperparameters.check(new.method)?,
            method: new.method,
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

/// A seed for a training that names none.
pub fn draw_seed(clock_rng: &dyn ClockRng) -> u32 {
    let mut bytes = [0; 4];
    clock_rng.fill(&mut bytes);
    u32::from_be_bytes(bytes) >> 1
}
