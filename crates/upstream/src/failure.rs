//! Why a request to an upstream model failed.

use std::time::Duration;

use super::refusal::Refusal;

/// Why a request failed. The reasons that name a target are in the log; nothing here does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The target finds a fault in the request.
    #[error("the target refused the request: {0:?}")]
    Refused(Refusal),
    /// Every target has as many requests as it may have, or has asked to be left alone for a while.
    #[error("every target is busy")]
    Busy { wait: Duration },
    /// No target has given an answer.
    #[error("no target is available")]
    Unavailable { wait: Duration },
    /// The response ended early, or was invalid, after it had begun.
    #[error("the response broke off")]
    Broken,
    /// The response is larger than the request allows.
    #[error("the response is too large")]
    TooLarge,
    #[error("the server is shutting down")]
    ShuttingDown,
}
