//! Requests whose results are computed one at a time.

use super::events::{JobEvent, Sender};
use crate::ids::Tenant;
use crate::runtime::Runtime;
use crate::settings::Settings;
use outpost_models::ModelError;
use outpost_models::backend::Pause;

/// A request whose results are computed one at a time.
pub trait Job {
    type Event: JobEvent;

    fn tenant(&self) -> Tenant;

    /// Results that are not computed yet.
    fn remaining(&self) -> usize;

    /// The cost of the next result; 0 if there is none.
    fn work(&self) -> f64;

    /// The cost of all results that are not computed yet.
    fn remaining_work(&self) -> f64;

    /// True after the first result was computed.
    fn has_begun(&self) -> bool;

    /// Goes on to the next result.
    fn advance(&mut self);
}

/// A job whose results a model computes.
pub trait ComputedJob: Job + Send + 'static {
    /// The name of the workload in logs and metrics.
    const WORKLOAD: &'static str;

    /// The points at which tests make it panic: before the next job, while it is computed, before it is queued again.
    const FAULT_POINTS: [&'static str; 3];

    /// The most results that may wait to be computed.
    fn queue_limit(settings: &Settings) -> usize;

    fn model_id(&self) -> &str;

    /// Computes the next result. `sender` takes reports of progress; `pause` is called every few milliseconds. `None`: there
    /// is no memory.
    ///
    /// # Errors
    /// If the computation fails, or `pause` returns an error.
    fn compute(
        &mut self,
        sender: &Sender<Self::Event>,
        pause: Pause,
        runtime: &Runtime,
    ) -> Result<Option<Self::Event>, ModelError>;

    /// Counts a result in the metrics.
    fn record(&self, result: &Self::Event, runtime: &Runtime);
}
