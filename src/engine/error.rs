//! Errors of the engine: why a request was refused, why a running one failed, why a model cannot be loaded.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::model_info::ModelKind;
use crate::display::format_bytes;
use crate::models::kv::KvType;

/// Why an answer broke off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Nobody took the pieces for too long.
    #[error("the answer was not read")]
    ClientStalled,
    /// Nothing that may come next fits the form that was demanded, or finding out takes too long.
    #[error("the demanded form cannot be kept: {0}")]
    Grammar(String),
    /// The memory that it takes is held by other models in use.
    #[error("the memory that it takes is held by other models in use")]
    OutOfMemory,
    /// The model cannot be computed, or makes no numbers: its files are damaged, or not what they say.
    #[error("the model {id} cannot be used: {reason}")]
    ModelUnusable { id: String, reason: String },
    /// A defect, for the log.
    #[error("generation failed: {0}")]
    Internal(String),
}

impl Failure {
    /// Of a request that was being computed when a defect made its workload panic.
    pub(super) fn panicked() -> Self {
        Self::Internal("the computation panicked".to_owned())
    }

    /// Of a model whose network makes no numbers.
    pub(super) fn not_finite(id: &str) -> Self {
        Self::ModelUnusable { id: id.to_owned(), reason: NOT_FINITE.to_owned() }
    }
}

/// What is wrong with a model where NaN or infinity comes out.
pub const NOT_FINITE: &str = "its network computes values that are not finite numbers";

/// Whether there is neither NaN nor infinity among these. Compares bits, so that many are compared at once.
pub fn are_finite(numbers: &[f32]) -> bool {
    let largest = numbers.iter().map(|number| number.to_bits() & 0x7fff_ffff).fold(0, u32::max);
    largest < f32::INFINITY.to_bits()
}

/// Why a request was not taken. Nothing of it remains.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the queue is full")]
    QueueFull { retry_after: Duration },
    /// Its keys and values would not fit if it were alone.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("{0}")]
    Invalid(String),
    /// The fault of the model's files.
    #[error(transparent)]
    Preprocess(#[from] PreprocessError),
}

/// Keys and values of one answer take more memory than is left beside the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its keys and values need {} of memory, {} are there beside the model", format_bytes(*needed_bytes), format_bytes(*budget_bytes))]
pub struct TooLarge {
    pub needed_bytes: u64,
    pub budget_bytes: u64,
    /// How they would be kept.
    pub kv_type: KvType,
}

/// Why a model is not there to answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("no model of this name is in the models folder")]
    NotFound,
    /// The model makes something else than what is wanted.
    #[error("the model {id} is no {} model: its architecture is {architecture}", wanted.name())]
    WrongKind { id: String, architecture: String, wanted: ModelKind },
    #[error("the model {id} cannot be used: {reason}")]
    Unusable { id: String, reason: String },
    /// Bytes: of the weights and of a step, and of all memory for models.
    #[error("it takes {} of the {} of memory for models, which other models in use hold", format_bytes(*needed), format_bytes(*budget))]
    OutOfMemory { needed: u64, budget: u64 },
    /// The same where there are no other models to wait for.
    #[error("it takes {} of memory, {} are there for models", format_bytes(*needed), format_bytes(*budget))]
    TooLarge { needed: u64, budget: u64 },
}

/// The model answers somebody at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model is in use")]
pub struct InUse;

/// Why preprocessing failed. The model's files are the cause, except for [`PreprocessError::NotStarted`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PreprocessError {
    #[error("it was stopped after {0} seconds")]
    TimedOut(u64),
    #[error("it takes too much memory or nests too deeply")]
    Crashed,
    #[error("its process cannot be started: {0}")]
    NotStarted(String),
    #[error("{0}")]
    Failed(String),
}
