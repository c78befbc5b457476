//! Limits of queues that count work rather than requests: tokens to embed, images to generate.

use std::time::Duration;

use super::Runtime;
use crate::error::Refused;

/// The retry delay in seconds while the model's speed is unknown.
const DEFAULT_RETRY_SECONDS: f64 = 5.;

/// Queued work and the work of a new request, in tokens or images.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    /// Of the new request.
    pub new: usize,
    /// Queued by all tenants.
    pub waiting: usize,
    /// Queued by the request's tenant.
    pub own: usize,
}

impl Backlog {
    /// Whether the new request exceeds `limit`, or its tenant's share of `limit / tenant_divisor`. An empty queue
    /// accepts any request.
    pub fn is_full(&self, limit: usize, tenant_divisor: usize) -> bool {
        let Self { new, waiting, own } = *self;
        (waiting > 0 && waiting + new > limit) || (own > 0 && own + new > limit / tenant_divisor)
    }
}

impl Runtime {
    /// Refuses a new request for `model` if its work exceeds what `limit` leaves in the queue, without the requests
    /// that `drop_cancelled` removes. `seconds`: how long the queued work takes.
    pub fn admit_work<Q>(
        &self,
        model: &str,
        limit: usize,
        queue: &mut Q,
        backlog: impl Fn(&Q) -> Backlog,
        drop_cancelled: impl FnOnce(&mut Q),
        seconds: impl FnOnce(&Q) -> Option<f64>,
    ) -> Result<(), Refused> {
        if self.is_shutting_down() {
            return Err(Refused::ShuttingDown);
        }
        let is_full = |queue: &Q| backlog(queue).is_full(limit, self.settings.tenant_divisor);
        if is_full(queue) {
            drop_cancelled(queue);
        }
        if is_full(queue) {
            self.metrics.refuse(model, "model_queue");
            return Err(Refused::QueueFull { retry_after: retry_after(seconds(queue)) });
        }
        Ok(())
    }
}

/// The retry delay: half the time in `seconds` that the queued work takes, between 1 s and 10 min.
pub fn retry_after(seconds: Option<f64>) -> Duration {
    Duration::from_secs_f64(seconds.map_or(DEFAULT_RETRY_SECONDS, |seconds| (seconds / 2.).clamp(1., 600.).ceil()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_retry_delay_is_half_the_queue_time_within_bounds() {
        assert_eq!(retry_after(None), Duration::from_secs(5));
        assert_eq!(retry_after(Some(0.5)), Duration::from_secs(1));
        assert_eq!(retry_after(Some(31.)), Duration::from_secs(16));
        assert_eq!(retry_after(Some(1e9)), Duration::from_secs(600));
    }

    #[test]
    fn an_empty_queue_takes_any_request() {
        let full = |new, waiting, own| Backlog { new, waiting, own }.is_full(10, 2);
        assert!(!full(50, 0, 0));
        assert!(!full(5, 5, 0) && full(6, 5, 0));
        assert!(!full(2, 3, 3) && full(3, 3, 3));
    }
}
