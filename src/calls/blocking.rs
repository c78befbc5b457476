//! CPU- and disk-bound work off the async threads.

use crate::error::{Error, Result};

/// Runs CPU- or disk-bound work off the async threads.
pub(super) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(Error::internal(panic.to_string())))
}
