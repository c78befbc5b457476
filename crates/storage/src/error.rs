//! The error type that clients see, and the table of its codes.
//!
//! All layers from `storage` to `http` return [`Error`]. Its `message` tells the caller what was wrong, with which
//! value, and what would be right. Details for the operator go into [`Error::with_cause`] and are logged with the
//! request id.
//!
//! The engine and the model readers have errors of their own, which `calls` translates. The text that a client sees is
//! therefore written where the condition is known.

use std::fmt;
use std::time::Duration;

use outpost_common::disk_space::DiskFull;

/// `Result` with the client-visible [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident => $status:literal $kind:literal $code:literal,)+) => {
        /// An error code: a row of the table with HTTP status, `error.type` and `error.code`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $name,)+ }

        impl Code {
            /// Every row of the table, in its order.
            pub const ALL: &'static [Code] = &[$(Code::$name,)+];

            /// HTTP status of the response.
            pub fn status(self) -> u16 { match self { $(Code::$name => $status,)+ } }

            /// `error.type` in the body.
            pub fn kind(self) -> &'static str { match self { $(Code::$name => $kind,)+ } }

            /// `error.code` in the body.
            pub fn as_str(self) -> &'static str { match self { $(Code::$name => $code,)+ } }
        }
    };
}

codes! {
    /// Malformed JSON; a missing, unknown or out-of-range field; a bad cursor.
    InvalidParameter      => 400 "invalid_request_error" "invalid_parameter",
    /// Prompt plus requested output does not fit the model's context, or the memory for it.
    ContextLengthExceeded => 400 "invalid_request_error" "context_length_exceeded",
    /// The response that a request continues is not stored. The status is that of OpenAI's API.
    PreviousResponseNotFound => 400 "invalid_request_error" "previous_response_not_found",
    MissingApiKey         => 401 "authentication_error"  "missing_api_key",
    InvalidApiKey         => 401 "authentication_error"  "invalid_api_key",
    ExpiredApiKey         => 401 "authentication_error"  "expired_api_key",
    RevokedApiKey         => 401 "authentication_error"  "revoked_api_key",
    /// A link that signs a browser in was used, has expired, or comes from a page of another server.
    InvalidSignInLink     => 401 "authentication_error"  "invalid_sign_in_link",
    /// The resource exists, in another project.
    ProjectMismatch       => 403 "permission_error"      "project_mismatch",
    InsufficientScope     => 403 "permission_error"      "insufficient_scope",
    ModelNotAllowed       => 403 "permission_error"      "model_not_allowed",
    /// The signature of a URL is not valid.
    InvalidSignature      => 403 "permission_error"      "invalid_signature",
    /// The server was started without `--allow-pull`.
    PullsDisabled         => 403 "permission_error"      "pulls_disabled",
    NotFound              => 404 "invalid_request_error" "not_found",
    ModelNotFound         => 404 "invalid_request_error" "model_not_found",
    MethodNotAllowed      => 405 "invalid_request_error" "method_not_allowed",
    RequestTimeout        => 408 "invalid_request_error" "request_timeout",
    Conflict              => 409 "conflict_error"        "conflict",
    RequestTooLarge       => 413 "invalid_request_error" "request_too_large",
    UnsupportedEncoding   => 415 "invalid_request_error" "unsupported_content_encoding",
    HeaderTooLarge        => 431 "invalid_request_error" "request_header_too_large",
    /// The request's host name is not one that this server answers to.
    Misdirected           => 421 "invalid_request_error" "misdirected_request",
    /// `If-Match` names another version than the stored one.
    PreconditionFailed    => 412 "conflict_error"        "precondition_failed",
    /// The idempotency key was used before with a different request.
    IdempotencyConflict   => 422 "invalid_request_error" "idempotency_conflict",
    RateLimited           => 429 "rate_limit_error"      "rate_limit_exceeded",
    /// A budget or quota is exhausted; retrying does not help.
    InsufficientQuota     => 429 "rate_limit_error"      "insufficient_quota",
    /// A bug. The client sees only the request id.
    Internal              => 500 "server_error"          "internal_error",
    /// A hub or registry cannot be reached, answers with an error, or sends something wrong.
    PullFailed            => 502 "server_error"          "pull_failed",
    Overloaded            => 503 "server_error"          "overloaded",
    ModelUnavailable      => 503 "server_error"          "model_unavailable",
    StorageUnavailable    => 503 "server_error"          "storage_unavailable",
    ShuttingDown          => 503 "server_error"          "shutting_down",
    /// The disk has no more space than the server keeps back. Requests that store no content go on.
    InsufficientStorage   => 507 "server_error"          "insufficient_storage",
}

impl Code {
    /// True for failed writes that may succeed later: the disk or the database is not available, full, or too slow.
    pub fn is_failed_write(self) -> bool {
        matches!(self, Code::StorageUnavailable | Code::InsufficientStorage | Code::Overloaded)
    }
}

/// An error that ends a request.
#[derive(Debug)]
pub struct Error {
    code: Code,
    message: String,
    param: Option<String>,
    retry_after: Option<Duration>,
    cause: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error with the message that the client reads.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let retry_after = (code.status() == 503).then_some(Duration::from_secs(1));
        Self { code, message: message.into(), param: None, retry_after, cause: None }
    }

    /// A 400 about one field; `param` is its path in the request (`messages[2].role`).
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Code::InvalidParameter, message).param(param)
    }

    /// A 404. `what` is the kind of resource.
    pub fn not_found(what: &str, id: impl fmt::Display) -> Self {
        Self::new(
            Code::NotFound,
            format!("No {what} '{id}' exists. Check the id, or list the {what}s that this key can see."),
        )
    }

    /// A 500. The cause is only logged.
    pub fn internal(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::new(Code::Internal, "The server made an error. Quote the request id when you report it.")
            .with_cause(cause)
    }

    /// Sets the field that the error is about.
    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Sets when a retry can succeed; sent as `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Attaches the cause for the operator's log; the client never sees it.
    #[must_use]
    pub fn with_cause(mut self, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    pub fn code(&self) -> Code {
        self.code
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn param_name(&self) -> Option<&str> {
        self.param.as_deref()
    }

    /// How long the client should wait before a retry, if known.
    pub fn wait(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The cause to log.
    pub fn cause(&self) -> Option<&(dyn std::error::Error + Send + Sync + 'static)> {
        self.cause.as_deref()
    }
}

impl From<DiskFull> for Error {
    fn from(full: DiskFull) -> Self {
        Self::new(Code::InsufficientStorage, full.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(feature = "actix-web")]
impl actix_web::ResponseError for Error {
    fn status_code(&self) -> actix_web::http::StatusCode {
        let status = actix_web::http::StatusCode::from_u16(self.code().status());
        status.unwrap_or(actix_web::http::StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// Only the status. The HTTP layer fills in the body, where it knows the request id.
    fn error_response(&self) -> actix_web::HttpResponse {
        actix_web::HttpResponse::new(self.status_code())
    }
}

#[cfg(test)]
mod tests {
    use super::Code;
    use std::collections::HashSet;

    #[test]
    fn every_code_is_named_once() {
        let names: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
    }
}
