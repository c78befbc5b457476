//! Converts engine errors to API errors.

use std::time::Duration;

use crate::display::shorten;
use crate::engine::{Failure, KvType, LoadError, PreprocessError, PromptError, Refused, TooLarge};
use crate::error::{Code, Error};

/// Retry delay after a lack of memory: by then other models' generations may have ended, or an operator may have
/// unloaded a model.
pub(super) const MEMORY_FREED: Duration = Duration::from_secs(30);

/// The error for a request that can never fit into the KV cache.
pub(super) fn too_large(large: &TooLarge, param: &'static str, remedy: &str) -> Error {
    let smaller = if large.kv_type == KvType::Q8 { "" } else { " or with --kv-type q8" };
    let or_lower = if param == "messages" { String::new() } else { format!(" or lower {param}") };
    let message = format!(
        "The request is too large for the server: {large}. Shorten the messages{or_lower}, or start the server with a larger --memory{smaller}.{remedy}"
    );
    Error::new(Code::ContextLengthExceeded, message).param(param)
}

pub(super) fn from_prompt_error(id: &str, error: PromptError) -> Error {
    match error {
        PromptError::PreprocessError(stopped) => from_stopped(id, &stopped),
        error => Error::invalid("messages", format!("The model's chat template refused the messages: {error}")),
    }
}

/// `model`: the model's id.
pub(super) fn from_refused(model: &str, refused: Refused) -> Error {
    match refused {
        Refused::QueueFull { retry_after } => {
            Error::new(Code::Overloaded, "The model's queue is full. Try again after the time in Retry-After.")
                .retry_after(retry_after)
        }
        Refused::TooLarge(large) => too_large(&large, "max_completion_tokens", ""),
        Refused::ShuttingDown => shutting_down(),
        Refused::Invalid(reason) => Error::new(Code::InvalidParameter, reason),
        Refused::Preprocess(stopped) => from_stopped(model, &stopped),
    }
}

pub(super) fn from_failure(failure: Failure) -> Error {
    match failure {
        Failure::ShuttingDown => shutting_down(),
        Failure::ClientStalled => Error::new(
            Code::RequestTimeout,
            "Generation was cancelled because the client did not read the response. Read streams as they arrive.",
        ),
        Failure::Grammar(reason) => Error::new(
            Code::InvalidParameter,
            format!(
                "Generation stopped because the requested schema could not be satisfied: {reason}. Simplify the schema."
            ),
        ),
        Failure::OutOfMemory => Error::new(
            Code::Overloaded,
            "The memory for the KV cache is in use by other models. Try again when their requests have ended; the operator can unload a model or give the server more memory with --memory.",
        )
        .retry_after(MEMORY_FREED),
        Failure::ModelUnusable { id, reason } => model_unusable(&id, &reason),
        Failure::Internal(reason) => Error::internal(reason),
    }
}

fn shutting_down() -> Error {
    Error::new(Code::ShuttingDown, "The server is shutting down. Try again when it is back.")
}

pub(super) fn model_not_found(id: &str) -> Error {
    let name = shorten(id);
    let message = format!(
        "No model '{name}' is installed. GET /v1/models lists the installed models; 'outpost models pull' downloads more."
    );
    Error::new(Code::ModelNotFound, message).param("model")
}

/// The error for a model that could not be loaded.
pub(super) fn from_load_error(id: &str, error: &LoadError) -> Error {
    let no_memory = |remedy: &str| model_unavailable(format!("The model '{id}' cannot be used: {error}.{remedy}"));
    match error {
        LoadError::NotFound => model_not_found(id),
        LoadError::WrongKind { architecture, expected, .. } => {
            let expected = expected.name();
            let article = if expected.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            let message =
                format!("The model '{id}' is not {article} {expected} model; its architecture is {architecture}.");
            Error::invalid("model", message)
        }
        LoadError::Unusable { reason, .. } => model_unusable(id, reason),
        LoadError::OutOfMemory { .. } => {
            no_memory(" Try again when their requests have ended, or give the server more memory with --memory.")
        }
        LoadError::TooLarge { .. } => no_memory(" Give the server more memory with --memory, or use a smaller model."),
    }
}

/// The error for a tokenizer or chat template that failed or was stopped.
pub(super) fn from_stopped(id: &str, stopped: &PreprocessError) -> Error {
    if let PreprocessError::NotStarted(reason) = stopped {
        let message = format!(
            "The server cannot start the process that prepares requests to the model '{id}': {reason}. Try again later; the operator can free memory or processes."
        );
        return model_unavailable(message);
    }
    model_unusable(id, &format!("its tokenizer or its chat template fails on this request: {stopped}"))
}

/// The error for a model whose files are damaged or not supported.
pub(super) fn model_unusable(id: &str, reason: &str) -> Error {
    let reason = reason.trim_end_matches('.');
    let message = format!(
        "The model '{id}' cannot be used: {reason}. Its files are damaged or not supported; the operator can replace them."
    );
    model_unavailable(message)
}

fn model_unavailable(message: String) -> Error {
    Error::new(Code::ModelUnavailable, message).param("model").retry_after(MEMORY_FREED)
}
