//! The interface of the compute thread's workloads: text generation, embeddings, images.
//!
//! The runtime knows only this trait. It gives each workload a turn of bounded length on the compute thread, and owns
//! what they share: the thread, the memory budget and the metrics. A new kind of work therefore needs no code in the
//! runtime.

use crate::error::Failure;

/// A kind of work that the compute thread runs.
///
/// Its methods run on the compute thread, one at a time. A method that panics is followed by
/// [`recover`](Self::recover).
pub trait Workload: Send {
    /// The name in logs and metrics.
    fn name(&self) -> &'static str;

    /// Drops requests that were cancelled or whose clients have stalled.
    fn sweep(&mut self);

    /// Computes for a bounded time: a few milliseconds if other workloads have work. `busy`: another workload has
    /// computed in this round. Returns `false` if there was nothing to do.
    fn step(&mut self, busy: bool) -> bool;

    /// True if [`sweep`](Self::sweep) must run from time to time even if there is nothing to compute, such as to drop
    /// stalled clients.
    fn needs_polling(&self) -> bool {
        false
    }

    /// Fails queued requests and, with `running`, running ones too.
    fn fail(&mut self, failure: &Failure, running: bool);

    /// Called after a panic: fails the affected requests with `failure` and discards state that may be inconsistent.
    fn recover(&mut self, failure: &Failure);
}
