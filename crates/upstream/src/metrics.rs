//! Metrics of upstream models, by model and target. Targets are named by host and port, never by URL or key.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use super::pool::{Permit, Pool};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TargetLabel {
    model: String,
    target: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailureLabel {
    model: String,
    target: String,
    reason: &'static str,
}

/// Why a request to a target failed, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No connection, or a connection that broke off.
    Connection,
    /// A timeout.
    Timeout,
    /// A status that is not the request's fault.
    Status,
    /// The target asks to be left alone for a while.
    Busy,
    /// A response that makes no sense.
    Malformed,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::Busy => "busy",
            Self::Malformed => "malformed",
        }
    }
}

/// Counters, gauges and a histogram. Gauges are set at each scrape.
pub struct Metrics {
    registry: Registry,
    requests: Family<TargetLabel, Counter>,
    failures: Family<FailureLabel, Counter>,
    outstanding: Family<TargetLabel, Gauge>,
    open: Family<TargetLabel, Gauge>,
    first_byte: Family<TargetLabel, Histogram, fn() -> Histogram>,
}

fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2., 18))
}

fn label(permit: &Permit) -> TargetLabel {
    TargetLabel { model: permit.model().id.clone(), target: permit.target().address.authority().to_owned() }
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("outpost_upstream");
        let (requests, failures, outstanding, open) =
            (Family::default(), Family::default(), Family::default(), Family::default());
        let first_byte = Family::new_with_constructor(histogram as fn() -> Histogram);
        registry.register("requests", "Requests sent to a target", Clone::clone(&requests));
        registry.register("failures", "Requests that failed because of a target, by reason", Clone::clone(&failures));
        registry.register("requests_running", "Running requests of a target", Clone::clone(&outstanding));
        let help = "Whether requests are kept away from a target because it fails: 1 if they are";
        registry.register("breaker_open", help, Clone::clone(&open));
        let help = "Time from a request to the first bytes of its response";
        registry.register_with_unit("time_to_first_byte", help, Unit::Seconds, Clone::clone(&first_byte));
        Self { registry, requests, failures, outstanding, open, first_byte }
    }

    pub fn sent(&self, permit: &Permit) {
        self.requests.get_or_create(&label(permit)).inc();
    }

    pub fn failed(&self, permit: &Permit, reason: Reason) {
        let TargetLabel { model, target } = label(permit);
        self.failures.get_or_create(&FailureLabel { model, target, reason: reason.name() }).inc();
    }

    pub fn answered(&self, permit: &Permit, took: Duration) {
        self.first_byte.get_or_create(&label(permit)).observe(took.as_secs_f64());
    }

    /// The metrics as OpenMetrics text.
    pub fn encode(&self, pools: &[Arc<Pool>]) -> String {
        for pool in pools {
            for status in pool.statuses() {
                let label = TargetLabel { model: pool.model.id.clone(), target: status.authority.to_owned() };
                self.outstanding.get_or_create(&label).set(status.outstanding.into());
                self.open.get_or_create(&label).set(status.is_open.into());
            }
        }
        let mut out = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}
