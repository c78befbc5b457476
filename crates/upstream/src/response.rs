//! The body of a response, read with a bound and a timeout.

use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};
use tokio::sync::watch;

use super::config::Timeouts;
use super::failure::Failure;
use super::metrics::{Metrics, Reason};
use super::pool::Permit;
use outpost_common::clock_rng::ClockRng;

/// The longest time for a body that is read as a whole, from its head on. Without it, a target that sends a byte now and
/// then would keep the request for as long as it likes.
const WHOLE_LIMIT: Duration = Duration::from_secs(600);
/// The longest time for the body of an error. What has arrived by then is enough.
const ERROR_LIMIT: Duration = Duration::from_secs(5);

/// How far the server has shut down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownPhase {
    #[default]
    Running,
    /// No new requests.
    Draining,
    /// Running requests fail.
    Aborting,
}

/// State that the responses of a client share.
pub struct Shared {
    pub clock_rng: Arc<dyn ClockRng>,
    pub metrics: Metrics,
    pub phase: watch::Sender<ShutdownPhase>,
}

/// The body of a target's response. Dropping it before its end closes the connection, which tells the target that the
/// response is no longer wanted.
pub struct Response {
    body: Incoming,
    content_type: String,
    permit: Permit,
    shared: Arc<Shared>,
    phase: watch::Receiver<ShutdownPhase>,
    max_bytes: u64,
    received: u64,
}

impl Response {
    /// `max_bytes`: of the body.
    pub(super) fn new(
        body: Incoming,
        content_type: String,
        max_bytes: u64,
        permit: Permit,
        shared: Arc<Shared>,
    ) -> Self {
        let phase = shared.phase.subscribe();
        Self { body, content_type, permit, shared, phase, max_bytes, received: 0 }
    }

    /// The media type without its parameters, in lowercase.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The next bytes; `None` at the end. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        let idle = self.timeouts().idle;
        self.next_within(idle).await
    }

    pub(super) fn timeouts(&self) -> Timeouts {
        self.permit.model().timeouts
    }

    pub(super) async fn next_within(&mut self, limit: Duration) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = tokio::select! {
                frame = tokio::time::timeout(limit, self.body.frame()) => frame,
                _ = self.phase.wait_for(|phase| *phase == ShutdownPhase::Aborting) => {
                    return Err(Failure::ShuttingDown);
                }
            };
            let data = match frame {
                Err(_) => return Err(self.fail(Reason::Timeout, "it sends nothing for too long")),
                Ok(None) => return Ok(None),
                Ok(Some(Err(error))) => return Err(self.fail(Reason::Connection, &error.to_string())),
                Ok(Some(Ok(frame))) => frame.into_data(),
            };
            // Trailers are skipped.
            let Ok(data) = data else { continue };
            self.received += data.len() as u64;
            if self.received > self.max_bytes {
                return Err(self.too_large());
            }
            return Ok(Some(data));
        }
    }

    /// The whole body.
    pub async fn whole(&mut self) -> Result<Vec<u8>, Failure> {
        let whole = tokio::time::timeout(WHOLE_LIMIT, self.read_whole()).await;
        whole.unwrap_or_else(|_| Err(self.fail(Reason::Timeout, "its response takes too long")))
    }

    async fn read_whole(&mut self) -> Result<Vec<u8>, Failure> {
        let mut whole = Vec::new();
        while let Some(bytes) = self.next().await? {
            whole.extend_from_slice(&bytes);
        }
        Ok(whole)
    }

    /// At most `max` bytes of the body, as far as it arrives within the limits.
    pub(super) async fn beginning(&mut self, max: usize) -> Vec<u8> {
        let mut begun = Vec::new();
        let reading = async {
            while begun.len() < max
                && let Ok(Some(bytes)) = self.next().await
            {
                begun.extend(bytes.iter().take(max - begun.len()));
            }
        };
        let _ = tokio::time::timeout(ERROR_LIMIT, reading).await;
        begun
    }

    /// Notes that the target does not answer as it should. The cause goes into the log.
    pub fn fail(&mut self, reason: Reason, cause: &str) -> Failure {
        note_failure(&self.shared, &mut self.permit, reason, cause);
        Failure::Broken
    }

    /// The response makes no sense. The cause goes into the log; it must not have anything of the response in it.
    pub fn malformed(&mut self, cause: &str) -> Failure {
        self.fail(Reason::Malformed, cause)
    }

    /// The response is larger than the request allows.
    pub fn too_large(&mut self) -> Failure {
        self.fail(Reason::Malformed, "its response is larger than the request allows");
        Failure::TooLarge
    }

    /// Notes that the target tells token counts that cannot be true. The log says so once for each target.
    pub fn doubt_usage(&self) {
        if self.permit.doubt_usage() {
            let (model, target) = (self.permit.model().id.as_str(), self.permit.target().address.authority());
            tracing::warn!(
                model,
                target,
                "a target tells a usage that cannot be true; such usage is estimated instead"
            );
        }
    }

    pub(super) fn permit(&mut self) -> &mut Permit {
        &mut self.permit
    }
}

/// Counts a failure of a target and logs its cause.
pub fn note_failure(shared: &Shared, permit: &mut Permit, reason: Reason, cause: &str) {
    let (model, target) = (permit.model().id.as_str(), permit.target().address.authority());
    tracing::warn!(model, target, cause, "a request to an upstream target failed");
    shared.metrics.failed(permit, reason);
    permit.fail(shared.clock_rng.uptime());
}
