//! The engine's errors: why a request was refused, why a running one failed, why a model cannot be loaded.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::model_info::ModelKind;
use outpost_common::display::format_bytes;
use outpost_models::ModelError;
use outpost_models::kv::KvType;

/// Why a running request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The client read nothing for too long.
    #[error("the client stopped reading the response")]
    ClientStalled,
    /// Computing the tokens that the grammar allows takes too long.
    #[error("the requested output format could not be satisfied: {0}")]
    Grammar(String),
    /// The request bans every token that could come next.
    #[error("every token that could come next is banned")]
    NoToken,
    /// Other models in use hold the memory that the request needs.
    #[error("other models in use take the memory that the request needs")]
    OutOfMemory,
    /// The network cannot be computed or gives values that are not finite: the model's files are damaged.
    #[error("the model {id} cannot be used: {reason}")]
    ModelUnusable { id: String, reason: String },
    /// The model's device has no memory left, or its driver reports an error.
    #[error("the model {id} cannot be computed: {reason}")]
    Device { id: String, reason: String },
    /// A bug; the text is for the log.
    #[error("generation failed: {0}")]
    Internal(String),
}

impl Failure {
    /// The failure of requests whose network cannot be computed.
    pub(super) fn of_model(id: &str, error: &ModelError) -> Self {
        let (id, reason) = (id.to_owned(), error.to_string());
        match error {
            ModelError::Device(_) => Self::Device { id, reason },
            _ => Self::ModelUnusable { id, reason },
        }
    }

    /// The failure of requests that a panic of their workload affects.
    pub(super) fn panicked() -> Self {
        Self::Internal("the computation panicked".to_owned())
    }

    /// The failure of a model whose network gives NaN or infinity.
    pub(super) fn not_finite(id: &str) -> Self {
        Self::ModelUnusable { id: id.to_owned(), reason: NOT_FINITE.to_owned() }
    }
}

/// The reason given for a model whose output has NaN or infinity.
pub const NOT_FINITE: &str = "its network computes values that are not finite numbers";

/// Checks that all numbers are finite. Compares bits, which the compiler vectorizes.
pub fn are_finite(numbers: &[f32]) -> bool {
    let largest = numbers.iter().map(|number| number.to_bits() & 0x7fff_ffff).fold(0, u32::max);
    largest < f32::INFINITY.to_bits()
}

/// Why a request was refused. It leaves no state behind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the queue is full")]
    QueueFull { retry_after: Duration },
    /// The request's KV cache would not fit even if it ran alone.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    #[error("the server is shutting down")]
    ShuttingDown,
    #[error("{0}")]
    Invalid(String),
    /// Preprocessing failed because of the model's files.
    #[error(transparent)]
    Preprocess(#[from] PreprocessError),
}

/// The KV cache of one sequence takes more memory than the model's weights leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its KV cache needs {} of memory; {} are available besides the model's weights", format_bytes(*needed_bytes), format_bytes(*budget_bytes))]
pub struct TooLarge {
    pub needed_bytes: u64,
    pub budget_bytes: u64,
    /// The data type of the KV cache.
    pub kv_type: KvType,
}

/// Why a model cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("the models folder has no model with this ID")]
    NotFound,
    /// The model is of another kind than requested.
    #[error("the model {id} is not of the kind '{}': its architecture is {architecture}", expected.name())]
    WrongKind { id: String, architecture: String, expected: ModelKind },
    #[error("the model {id} cannot be used: {reason}")]
    Unusable { id: String, reason: String },
    /// Another server runs the model.
    #[error("the model {id} is an upstream model, which is not loaded here")]
    Upstream { id: String },
    /// In bytes: `needed` for weights and scratch buffers, `budget` for all models. `pinned`: the loaded models that are never
    /// unloaded.
    #[error("it needs {} of the {} of memory for models, which other models in use take", format_bytes(*needed), format_bytes(*budget))]
    OutOfMemory { needed: u64, budget: u64, pinned: Vec<String> },
    /// It would not fit even if it were the only loaded model.
    #[error("it needs {} of memory; {} are available for models", format_bytes(*needed), format_bytes(*budget))]
    TooLarge { needed: u64, budget: u64 },
}

/// The model cannot be unloaded because requests are using it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the model is in use")]
pub struct InUse;

/// Why preprocessing failed. The model's files are the cause, except for [`PreprocessError::NotRead`] and
/// [`PreprocessError::NotStarted`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum PreprocessError {
    #[error("it was stopped after {0} seconds")]
    TimedOut(u64),
    #[error("the sandbox process did not read the request within {0} seconds, and was stopped")]
    NotRead(u64),
    #[error("it uses too much memory or recurses too deeply")]
    Crashed,
    #[error("the sandbox process cannot be started: {0}")]
    NotStarted(String),
    #[error("{0}")]
    Failed(String),
}
