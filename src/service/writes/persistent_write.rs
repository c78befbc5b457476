//! Writes of what the server has done by itself, which no client could send again.

use std::time::Duration;

use crate::error::Result;
use crate::storage::{Store, WriteTx};

/// The time until a write is tried again if the disk fails.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Runs `write` until it succeeds, or fails for another reason than the disk or a full queue. `what` is written, for the
/// log. `write` gets the number of earlier attempts, one of which may have become durable
/// although it failed.
pub(in crate::service) async fn write(
    store: &Store,
    what: String,
    write: impl FnMut(&WriteTx, u64) -> Result<()> + Clone + Send + 'static,
) -> Result<()> {
    let mut attempts = 0;
    loop {
        let mut attempt = write.clone();
        match store.write(move |tx| attempt(tx, attempts)).await {
            Err(error) if error.code().is_failed_write() => {
                tracing::warn!(what, %error, "a write failed and is tried again");
                tokio::time::sleep(RETRY_DELAY).await;
                attempts += 1;
            }
            written => return written,
        }
    }
}
