//! Queues that are bounded by the work that waits in them, not by requests: tokens to embed, images to generate.

use std::time::Duration;

/// When to come again, in seconds, while it is not known how fast the model is.
const UNKNOWN: f64 = 5.;

/// Work that waits, and work that a new request adds; in tokens, or in images.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    pub new: usize,
    /// Of all tenants.
    pub waiting: usize,
    /// Of the request's tenant.
    pub own: usize,
}

impl Backlog {
    /// Whether there is no room for the new work: the queue holds `limit`, and of one tenant one part in `tenant_divisor`.
    /// An empty queue takes whatever one request may ask for.
    pub fn is_full(&self, limit: usize, tenant_divisor: usize) -> bool {
        let Self { new, waiting, own } = *self;
        (waiting > 0 && waiting + new > limit) || (own > 0 && own + new > limit / tenant_divisor)
    }
}

/// When to come again: half of the work that stands before a new request, which takes `seconds`, is done by then.
pub fn retry_after(seconds: Option<f64>) -> Duration {
    Duration::from_secs_f64(seconds.map_or(UNKNOWN, |seconds| (seconds / 2.).clamp(1., 600.).ceil()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_refused_before_anything_is_known_comes_again_soon() {
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
