//! The engine's metrics: counters, gauges and histograms by model.
//!
//! `prometheus-client` encodes them as OpenMetrics text. Gauges are set at each scrape.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::text::scheduler::Counts;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

/// Where draft tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// N-gram lookup in the sequence's own tokens.
    Ngram,
    /// A draft model.
    DraftModel,
    /// The layer for multi-token prediction of the model itself.
    Mtp,
}

/// What happens to a block of the prefix cache on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixDiskEvent {
    Read,
    Written,
    /// Deleted to make room for others.
    Evicted,
    /// Found to have other contents than those that were written.
    Damaged,
    /// Not written, because the disk is full or failed.
    Unwritten,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PrefixDiskLabel {
    event: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DraftLabel {
    model: String,
    by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabel {
    model: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemoryLabel {
    device: String,
    r#use: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkloadLabel {
    workload: &'static str,
}

type Seconds = Family<ModelLabel, Histogram, fn() -> Histogram>;

/// A family's `Default` cannot set the buckets.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2., 18))
}

/// Token counts of one step of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Prompt tokens that were computed.
    pub prompt: u64,
    pub generated: u64,
    /// Prompt tokens taken from the prefix cache.
    pub cached: u64,
}

/// The name of a metric and what it tells.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    pub name: &'static str,
    pub help: &'static str,
}

/// The metrics that a kind of models has besides those of all kinds.
#[derive(Clone, Copy, Debug, Default)]
pub struct KindMetrics {
    /// A gauge of what waits in its queues.
    pub waiting: Option<Description>,
    /// A counter of results, by model.
    pub count: Option<Description>,
    /// A counter of seconds of audio, by model.
    pub seconds: Option<Description>,
}

impl KindMetrics {
    pub const NONE: Self = Self { waiting: None, count: None, seconds: None };
}

pub struct Metrics {
    registry: Registry,
    queued: Family<ModelLabel, Gauge>,
    /// By the names that [`KindMetrics`] have.
    waiting: BTreeMap<&'static str, Gauge>,
    counts: BTreeMap<&'static str, Family<ModelLabel, Counter>>,
    seconds: BTreeMap<&'static str, Family<ModelLabel, Counter<f64, AtomicU64>>>,
    running: Family<ModelLabel, Gauge>,
    prompt: Family<ModelLabel, Counter>,
    generated: Family<ModelLabel, Counter>,
    cached: Family<ModelLabel, Counter>,
    drafted: Family<DraftLabel, Counter>,
    accepted: Family<DraftLabel, Counter>,
    refused: Family<RefusalLabel, Counter>,
    preempted: Counter,
    prefix_disk: Family<PrefixDiskLabel, Counter>,
    prefix_disk_bytes: Gauge,
    panics: Family<WorkloadLabel, Counter>,
    time_to_first_token: Seconds,
    time_between_tokens: Seconds,
    memory: Family<MemoryLabel, Gauge>,
    speed: Gauge<f64, AtomicU64>,
    uptime: Gauge,
}

impl Metrics {
    /// `server`: labels of the server that do not change while it runs.
    pub fn new(server: Vec<(&'static str, String)>, kinds: impl IntoIterator<Item = KindMetrics>) -> Self {
        let mut registry = Registry::with_prefix("outpost");
        let mut all = Self {
            queued: Family::default(),
            waiting: BTreeMap::new(),
            counts: BTreeMap::new(),
            seconds: BTreeMap::new(),
            running: Family::default(),
            prompt: Family::default(),
            generated: Family::default(),
            cached: Family::default(),
            drafted: Family::default(),
            accepted: Family::default(),
            refused: Family::default(),
            preempted: Counter::default(),
            prefix_disk: Family::default(),
            prefix_disk_bytes: Gauge::default(),
            panics: Family::default(),
            time_to_first_token: Seconds::new_with_constructor(histogram),
            time_between_tokens: Seconds::new_with_constructor(histogram),
            memory: Family::default(),
            speed: Gauge::default(),
            uptime: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("requests_queued", "Queued requests", all.queued.clone());
        for KindMetrics { waiting, count, seconds } in kinds {
            if let Some(Description { name, help }) = waiting {
                registry.register(name, help, all.waiting.entry(name).or_default().clone());
            }
            if let Some(Description { name, help }) = count {
                registry.register(name, help, all.counts.entry(name).or_default().clone());
            }
            if let Some(Description { name, help }) = seconds {
                registry.register_with_unit(name, help, Unit::Seconds, all.seconds.entry(name).or_default().clone());
            }
        }
        registry.register("answers_running", "Sequences being generated", all.running.clone());
        registry.register("prompt_tokens", "Prompt tokens computed", all.prompt.clone());
        registry.register("cached_prompt_tokens", "Prompt tokens taken from the prefix cache", all.cached.clone());
        registry.register("generated_tokens", "Tokens generated", all.generated.clone());
        registry.register("drafted_tokens", "Draft tokens proposed, by source", all.drafted.clone());
        registry.register("accepted_tokens", "Draft tokens accepted", all.accepted.clone());
        registry.register("refusals", "Requests refused, by reason", all.refused.clone());
        let help = "Panics on the compute thread, by workload";
        registry.register("workload_panics", help, all.panics.clone());
        registry.register("preemptions", "Sequences preempted", all.preempted.clone());
        let help = "Blocks of the prefix cache on disk, by what happened to them";
        registry.register("prefix_cache_disk_blocks", help, all.prefix_disk.clone());
        let (help, gauge) = ("Size of the prefix cache on disk", all.prefix_disk_bytes.clone());
        registry.register_with_unit("prefix_cache_disk", help, Unit::Bytes, gauge);
        let seconds = |registry: &mut Registry, name: &str, help: &str, family: &Seconds| {
            registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        };
        seconds(
            &mut registry,
            "time_to_first_token",
            "Time from a request to its first token",
            &all.time_to_first_token,
        );
        seconds(
            &mut registry,
            "time_between_tokens",
            "Time between two tokens of a sequence",
            &all.time_between_tokens,
        );
        registry.register_with_unit("memory", "Memory for models, by device and use", Unit::Bytes, all.memory.clone());
        registry.register("tokens_per_second", "Tokens computed per second, moving average", all.speed.clone());
        registry.register("server", "Version and hardware of the server", Info::new(server));
        registry.register_with_unit("uptime", "Time since the server started", Unit::Seconds, all.uptime.clone());
        Self { registry, ..all }
    }

    pub fn step(&self, model: &str, step: Step) {
        let label = ModelLabel { model: model.to_owned() };
        let add = |family: &Family<ModelLabel, Counter>, count: u64| {
            family.get_or_create(&label).inc_by(count);
        };
        add(&self.prompt, step.prompt);
        add(&self.generated, step.generated);
        add(&self.cached, step.cached);
    }

    /// Sets what waits in the queues of a kind of models.
    pub fn set_waiting(&self, metric: Description, waiting: usize) {
        if let Some(gauge) = self.waiting.get(metric.name) {
            gauge.set(to_gauge(waiting as u64));
        }
    }

    /// Counts one result of a model.
    pub fn count(&self, metric: Description, model: &str) {
        if let Some(family) = self.counts.get(metric.name) {
            family.get_or_create(&ModelLabel { model: model.to_owned() }).inc();
        }
    }

    /// Counts seconds of audio of a model.
    pub fn add_seconds(&self, metric: Description, model: &str, seconds: f64) {
        if let Some(family) = self.seconds.get(metric.name) {
            family.get_or_create(&ModelLabel { model: model.to_owned() }).inc_by(seconds);
        }
    }

    /// Counts `drafted` draft tokens, of which `accepted` were accepted.
    pub fn record_drafts(&self, model: &str, by: DraftSource, drafted: usize, accepted: usize) {
        let by = match by {
            DraftSource::Ngram => "lookup",
            DraftSource::DraftModel => "draft",
            DraftSource::Mtp => "mtp",
        };
        let label = DraftLabel { model: model.to_owned(), by };
        self.drafted.get_or_create(&label).inc_by(drafted as u64);
        self.accepted.get_or_create(&label).inc_by(accepted as u64);
    }

    pub fn first_token(&self, model: &str, took: Duration) {
        self.time_to_first_token.get_or_create(&ModelLabel { model: model.to_owned() }).observe(took.as_secs_f64());
    }

    pub fn next_token(&self, model: &str, took: Duration) {
        self.time_between_tokens.get_or_create(&ModelLabel { model: model.to_owned() }).observe(took.as_secs_f64());
    }

    pub fn refuse(&self, model: &str, reason: &'static str) {
        self.refused.get_or_create(&RefusalLabel { model: model.to_owned(), reason }).inc();
    }

    pub fn preempt(&self, count: u64) {
        self.preempted.inc_by(count);
    }

    /// Counts a block of the prefix cache on disk.
    pub fn count_prefix_disk(&self, event: PrefixDiskEvent) {
        let event = match event {
            PrefixDiskEvent::Read => "read",
            PrefixDiskEvent::Written => "written",
            PrefixDiskEvent::Evicted => "evicted",
            PrefixDiskEvent::Damaged => "damaged",
            PrefixDiskEvent::Unwritten => "unwritten",
        };
        self.prefix_disk.get_or_create(&PrefixDiskLabel { event }).inc();
    }

    pub fn set_prefix_disk_bytes(&self, bytes: u64) {
        self.prefix_disk_bytes.set(to_gauge(bytes));
    }

    pub fn panic(&self, workload: &'static str) {
        self.panics.get_or_create(&WorkloadLabel { workload }).inc();
    }

    /// Sets a model's queued and running counts.
    pub fn load(&self, model: &str, counts: &Counts) {
        let label = ModelLabel { model: model.to_owned() };
        self.queued.get_or_create(&label).set(to_gauge(counts.queued as u64));
        self.running.get_or_create(&label).set(to_gauge(counts.running as u64));
    }

    /// Sets the bytes of a device's memory that are in use for one purpose.
    pub fn memory(&self, device: &str, r#use: &'static str, bytes: u64) {
        self.memory.get_or_create(&MemoryLabel { device: device.to_owned(), r#use }).set(to_gauge(bytes));
    }

    pub fn set_uptime(&self, uptime: Duration) {
        self.uptime.set(to_gauge(uptime.as_secs()));
    }

    pub fn speed(&self, tokens_per_second: f64) {
        self.speed.set(tokens_per_second);
    }

    pub fn encode(&self) -> String {
        let mut out = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

fn to_gauge(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{Description, DraftSource, KindMetrics, Metrics, Step};
    use std::time::Duration;

    #[test]
    fn encoded_text_has_the_recorded_values() {
        let metric = |name| Description { name, help: "help" };
        let kind = KindMetrics {
            waiting: Some(metric("images_queued")),
            count: Some(metric("images")),
            seconds: Some(metric("audio_spoken")),
        };
        let metrics = Metrics::new(vec![("cpu", "a \"fast\" CPU".to_owned())], [kind]);
        metrics.set_waiting(metric("images_queued"), 4);
        metrics.count(metric("images"), "m");
        metrics.add_seconds(metric("audio_spoken"), "m", 1.5);
        metrics.step("m", Step { prompt: 7, generated: 3, cached: 16 });
        metrics.record_drafts("m", DraftSource::DraftModel, 5, 2);
        metrics.step("m", Step { generated: 1, ..Step::default() });
        metrics.first_token("m", Duration::from_millis(3));
        metrics.refuse("m", "model_queue");
        metrics.memory("cpu", "weights", 5);
        let text = metrics.encode();
        for line in [
            "outpost_prompt_tokens_total{model=\"m\"} 7",
            "outpost_generated_tokens_total{model=\"m\"} 4",
            "outpost_cached_prompt_tokens_total{model=\"m\"} 16",
            "outpost_drafted_tokens_total{model=\"m\",by=\"draft\"} 5",
            "outpost_accepted_tokens_total{model=\"m\",by=\"draft\"} 2",
            "outpost_time_to_first_token_seconds_bucket{le=\"0.004\",model=\"m\"} 1",
            "outpost_time_to_first_token_seconds_bucket{le=\"0.002\",model=\"m\"} 0",
            "outpost_refusals_total{model=\"m\",reason=\"model_queue\"} 1",
            "outpost_server_info{cpu=\"a \\\"fast\\\" CPU\"} 1",
            "outpost_uptime_seconds 0",
            "outpost_images_queued 4",
            "outpost_images_total{model=\"m\"} 1",
            "outpost_audio_spoken_seconds_total{model=\"m\"} 1.5",
            "outpost_memory_bytes{device=\"cpu\",use=\"weights\"} 5",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
