//! Converts failures of upstream models to API errors. None names a target.

use crate::error::{Code, Error};
use crate::upstream::{Failure, Refusal};

/// Parts of messages with which servers say that a prompt is too long.
const TOO_LONG: [&str; 4] = ["context length", "context size", "context window", "maximum model length"];

/// `id`: the model's ID.
pub fn from_failure(id: &str, failure: Failure) -> Error {
    match failure {
        Failure::Refused(refusal) => from_refusal(id, refusal),
        Failure::Busy { wait } => {
            let text = format!("The model '{id}' has too many requests. Try again after the time in Retry-After.");
            Error::new(Code::Overloaded, text).retry_after(wait)
        }
        Failure::Unavailable { wait } => {
            let text = format!(
                "The model '{id}' does not answer at the moment. Try again after the time in Retry-After; the operator finds the reason in the log."
            );
            Error::new(Code::ModelUnavailable, text).param("model").retry_after(wait)
        }
        Failure::Broken => {
            let text = format!("The response of the model '{id}' broke off. Try again.");
            Error::new(Code::ModelUnavailable, text).param("model")
        }
        Failure::TooLarge => {
            let text = format!(
                "The model '{id}' sends more than the request allows, so its response was cut off. Try again; if that does not help, the operator finds the reason in the log."
            );
            Error::new(Code::ModelUnavailable, text).param("model")
        }
        Failure::ShuttingDown => {
            Error::new(Code::ShuttingDown, "The server is shutting down. Try again when it is back.")
        }
    }
}

fn from_refusal(id: &str, refusal: Refusal) -> Error {
    let Refusal { status, message, param, code } = refusal;
    let lower = message.as_deref().unwrap_or_default().to_lowercase();
    let is_too_long =
        code.as_deref() == Some("context_length_exceeded") || TOO_LONG.iter().any(|part| lower.contains(part));
    let text = match message {
        Some(message) => format!("The model '{id}' refuses the request: {}.", message.trim_end_matches('.')),
        None => format!("The model '{id}' refuses the request as invalid. Check its fields."),
    };
    let code = match status {
        _ if is_too_long => Code::ContextLengthExceeded,
        413 => Code::RequestTooLarge,
        _ => Code::InvalidParameter,
    };
    let error = Error::new(code, text);
    match param {
        Some(param) => error.param(param),
        None => error,
    }
}

/// The error for a field that the server of a model does not know.
pub fn unsupported(id: &str, field: &str) -> Error {
    let text = format!(
        "'{field}' is not supported by the model '{id}': its server has no such field. Leave it out, or use another model."
    );
    Error::invalid(field, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_keep_their_reason_and_field() {
        let refused = |status, message: Option<&str>, code: Option<&str>| {
            let (message, code) = (message.map(str::to_owned), code.map(str::to_owned));
            let refusal = Refusal { status, message, param: Some("n".to_owned()), code };
            let error = from_failure("m", Failure::Refused(refusal));
            (error.code(), error.message().to_owned(), error.param_name().map(str::to_owned))
        };
        let (code, text, param) = refused(400, Some("n is 7."), None);
        assert_eq!((code, text.as_str()), (Code::InvalidParameter, "The model 'm' refuses the request: n is 7."));
        assert_eq!(param.as_deref(), Some("n"));
        assert_eq!(refused(400, Some("This model's maximum context length is 5"), None).0, Code::ContextLengthExceeded);
        assert_eq!(refused(422, None, Some("context_length_exceeded")).0, Code::ContextLengthExceeded);
        assert_eq!(refused(413, None, None).0, Code::RequestTooLarge);
    }
}
