//! candle's errors as errors of a computation.

use candle_core::Error;

use crate::error::ModelError;

/// An error of the device is [`ModelError::Device`]; others are bugs, [`ModelError::Compute`]. An error of a gradient that
/// was turned into candle's is itself again.
impl From<Error> for ModelError {
    fn from(error: Error) -> Self {
        let cause = cause(&error);
        if let Error::WrappedContext { wrapped, .. } = cause
            && let Some(error) = wrapped.downcast_ref::<Self>()
        {
            return error.clone();
        }
        match cause {
            Error::Cuda(_) | Error::Metal(_) => Self::Device(cause.to_string()),
            _ => Self::Compute(cause.to_string()),
        }
    }
}

impl From<ModelError> for Error {
    fn from(error: ModelError) -> Self {
        Self::WrappedContext { wrapped: Box::new(error), context: String::new() }
    }
}

/// The error without context and backtrace.
fn cause(error: &Error) -> &Error {
    match error {
        Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
            cause(inner)
        }
        Error::WrappedContext { wrapped, .. } => wrapped.downcast_ref().map_or(error, cause),
        _ => error,
    }
}
