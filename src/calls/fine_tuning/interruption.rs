//! Why a training was not completed.

use super::preparation::Unprepared;
use crate::engine::{Failure, LoadError};
use crate::error::{Code, Error};
use crate::service::fine_tuning::JobError;
use crate::service::is_taken_over;

/// Why a training was not completed.
pub(super) enum Interruption {
    /// The job has failed.
    Failed(JobError),
    /// This server cannot train the job, for this reason, but another one may. If there is none, the job has failed.
    Unsuitable { reason: String, error: JobError },
    /// The job was paused, cancelled or changed, or the server stops. Nothing is to be done.
    Stopped,
    /// Another process trains the job now, as this error says.
    TakenOver(Error),
    /// It is to be tried again later.
    Later(String),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        match error.code() {
            Code::InsufficientQuota => Self::Failed(job_error(error.code().as_str(), error.message(), None)),
            _ if is_taken_over(&error) => Self::TakenOver(error),
            _ => Self::Later(error.to_string()),
        }
    }
}

pub(super) fn job_error(code: &str, message: impl Into<String>, param: Option<&str>) -> JobError {
    JobError { code: code.to_owned(), message: message.into(), param: param.map(str::to_owned) }
}

/// The model `id` is not installed.
pub(super) fn not_installed(id: &str) -> Interruption {
    let text = format!("The model '{id}' is no longer installed. Install it and create the job again.");
    let error = job_error("model_not_found", text, Some("model"));
    Interruption::Unsuitable { reason: format!("it does not have the model '{id}'"), error }
}

/// Why a job of the model `id` cannot be trained, now or at all. `has_begun`: a server has trained it before.
pub(super) fn not_prepared(id: &str, has_begun: bool, unprepared: Unprepared) -> Interruption {
    // A job that a server has trained before is not impossible.
    let impossible = |reason: String, error| match has_begun {
        true => Interruption::Unsuitable { reason, error },
        false => Interruption::Failed(error),
    };
    match unprepared {
        Unprepared::Data { param, problem } => {
            let text = format!("The file of '{param}' cannot be trained on: {problem}.");
            Interruption::Failed(job_error(&format!("invalid_{param}"), text, Some(param)))
        }
        Unprepared::Model(error @ LoadError::OutOfMemory { .. }) => Interruption::Later(error.to_string()),
        Unprepared::Model(LoadError::NotFound) => not_installed(id),
        Unprepared::Model(error @ LoadError::TooLarge { .. }) => {
            let text = format!(
                "The training does not fit into memory: {error}. Shorten the examples, lower lora_rank, use a smaller model, or give the server more memory with --memory."
            );
            impossible(error.to_string(), job_error("out_of_memory", text, None))
        }
        Unprepared::Model(error) => {
            let reason = match error {
                LoadError::Unusable { reason, .. } => reason,
                error => error.to_string(),
            };
            let text = format!("The model '{id}' cannot be trained: {reason}.");
            impossible(reason, job_error("model_unavailable", text, Some("model")))
        }
    }
}

/// Why a training has failed in the engine.
pub(super) fn failed(failure: Failure) -> Interruption {
    let text = format!("The training has failed: {failure}.");
    match failure {
        Failure::ShuttingDown => Interruption::Stopped,
        Failure::Device { .. } | Failure::OutOfMemory => Interruption::Later(failure.to_string()),
        Failure::Internal(_) => Interruption::Failed(job_error("internal_error", text, None)),
        _ => Interruption::Failed(job_error("training_failed", text, None)),
    }
}
