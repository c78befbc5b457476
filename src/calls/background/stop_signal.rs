//! Tells a background loop to end.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::{Code, Error};

/// Stops a loop, from any thread.
#[derive(Clone)]
pub struct LoopStopper(Arc<watch::Sender<bool>>);

/// The receiving end, which the loop watches.
#[derive(Clone)]
pub(in crate::calls) struct StopSignal(watch::Receiver<bool>);

/// A signal and what sets it.
pub(in crate::calls) fn stop_signal() -> (LoopStopper, StopSignal) {
    let (sender, receiver) = watch::channel(false);
    (LoopStopper(Arc::new(sender)), StopSignal(receiver))
}

/// The error of work that is given up because the loop is to end.
pub(in crate::calls) fn stopping() -> Error {
    Error::new(Code::ShuttingDown, "The server is shutting down.")
}

impl LoopStopper {
    /// Ends the loop soon. Work that is not complete is resumed after the next start.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl StopSignal {
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the loop is to end.
    pub async fn wait(&self) {
        // If the sender is gone, the server is gone.
        let _ = self.0.clone().wait_for(|stop| *stop).await;
    }
}
