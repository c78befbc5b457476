//! The error type of checkpoints and computations.

use super::gguf::GgufError;

pub type Result<T> = std::result::Result<T, ModelError>;

/// Errors of loading a model and of computations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The checkpoint is damaged or not supported.
    #[error("{0}")]
    Checkpoint(String),
    /// The model does not support these parameters.
    #[error("{0}")]
    Parameters(String),
    /// A computation failed, which is a bug.
    #[error("{0}")]
    Compute(String),
    /// The device failed: it has no memory left, or its driver reports an error.
    #[error("the device failed: {0}")]
    Device(String),
    /// The caller interrupted the computation.
    #[error("cancelled")]
    Interrupted,
}

impl ModelError {
    pub(crate) fn checkpoint(message: impl Into<String>) -> Self {
        Self::Checkpoint(message.into())
    }
}

impl From<GgufError> for ModelError {
    fn from(error: GgufError) -> Self {
        Self::Checkpoint(error.to_string())
    }
}

/// The reason of a failed computation.
impl From<String> for ModelError {
    fn from(reason: String) -> Self {
        Self::Compute(reason)
    }
}

/// Rejects a checkpoint because of its config.
pub(super) fn reject_config<T>(message: String) -> Result<T> {
    Err(ModelError::Checkpoint(format!("the metadata describes no model: {message}")))
}
