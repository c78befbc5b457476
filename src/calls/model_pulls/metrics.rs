//! Metrics of pulls.

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use crate::service::audit::pull_log::PullEnd;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Counters of the pulls that have ended.
pub(super) struct Metrics {
    registry: Registry,
    pulls: Family<ResultLabel, Counter>,
    installed: Counter,
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("outpost_model_pulls");
        let (pulls, installed) = (Family::default(), Counter::default());
        registry.register("ended", "Pulls of models that have ended, by result", Clone::clone(&pulls));
        let help = "Size of the models that pulls have installed";
        registry.register_with_unit("installed", help, Unit::Bytes, Clone::clone(&installed));
        Self { registry, pulls, installed }
    }

    /// `bytes`: of the model that is installed.
    pub fn ended(&self, end: PullEnd, bytes: u64) {
        self.pulls.get_or_create(&ResultLabel { result: end.as_str() }).inc();
        self.installed.inc_by(bytes);
    }

    /// The metrics as OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}
