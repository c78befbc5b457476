//! A kind of work on the compute thread: text generation, embeddings, images.

use crate::engine::error::Failure;

/// What the compute thread needs to know of a kind of work.
///
/// Its methods run on the compute thread, one at a time. A method that panics is followed by
/// [`recover`](Self::recover).
pub trait Workload: Send {
    /// The name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Drops requests that were cancelled, and those whose clients do not read.
    fn sweep(&mut self);

    /// Computes for a bounded time, a few milliseconds where others have work. `busy`: another workload has computed
    /// in this round. `false`: there was nothing to do.
    fn step(&mut self, busy: bool) -> bool;

    /// Whether clients must be looked at from time to time although there is nothing to compute.
    fn needs_polling(&self) -> bool {
        false
    }

    /// Fails requests: those of which nothing has run, and with `running` all others, too.
    fn fail(&mut self, failure: &Failure, running: bool);

    /// After a panic: fails the requests that may be affected with `failure` and drops all state that may be wrong.
    fn recover(&mut self, failure: &Failure);
}
