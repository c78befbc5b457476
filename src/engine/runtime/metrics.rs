//! What the engine tells a monitoring system: counts, gauges and histograms by model.
//!
//! The text is OpenMetrics, made by `prometheus-client`. Gauges are read when somebody asks.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::engine::text::scheduler::Counts;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Model {
    model: String,
}

/// Who guesses tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// The text's own past.
    NgramProposer,
    /// A draft model.
    Draft,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Guess {
    model: String,
    by: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refusal {
    model: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Use {
    r#use: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Work {
    workload: &'static str,
}

type Seconds = Family<Model, Histogram, fn() -> Histogram>;

/// Names a model's series; `Default` of a family cannot say which buckets.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2., 18))
}

/// What one step made of a model's rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Prompt tokens that were computed.
    pub prompt: u64,
    pub generated: u64,
    /// Prompt tokens that were taken over from the prefix cache.
    pub cached: u64,
}

pub struct Metrics {
    registry: Registry,
    queued: Family<Model, Gauge>,
    queued_texts: Gauge,
    queued_pictures: Gauge,
    pictures: Family<Model, Counter>,
    running: Family<Model, Gauge>,
    prompt: Family<Model, Counter>,
    generated: Family<Model, Counter>,
    cached: Family<Model, Counter>,
    drafted: Family<Guess, Counter>,
    accepted: Family<Guess, Counter>,
    refused: Family<Refusal, Counter>,
    preempted: Counter,
    panics: Family<Work, Counter>,
    first: Seconds,
    between: Seconds,
    memory: Family<Use, Gauge>,
    speed: Gauge<f64, std::sync::atomic::AtomicU64>,
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("outpost");
        let all = Self {
            queued: Family::default(),
            queued_texts: Gauge::default(),
            queued_pictures: Gauge::default(),
            pictures: Family::default(),
            running: Family::default(),
            prompt: Family::default(),
            generated: Family::default(),
            cached: Family::default(),
            drafted: Family::default(),
            accepted: Family::default(),
            refused: Family::default(),
            preempted: Counter::default(),
            panics: Family::default(),
            first: Seconds::new_with_constructor(histogram),
            between: Seconds::new_with_constructor(histogram),
            memory: Family::default(),
            speed: Gauge::default(),
            registry: Registry::default(),
        };
        registry.register("requests_queued", "Requests of which nothing has run yet", all.queued.clone());
        let help = "Tokens of texts that wait to be embedded or ranked";
        registry.register("text_tokens_queued", help, all.queued_texts.clone());
        let help = "Pictures that wait to be painted";
        registry.register("images_queued", help, all.queued_pictures.clone());
        registry.register("images", "Pictures painted", all.pictures.clone());
        registry.register("answers_running", "Answers being generated", all.running.clone());
        registry.register("prompt_tokens", "Prompt tokens computed", all.prompt.clone());
        registry.register("cached_prompt_tokens", "Prompt tokens taken from the prefix cache", all.cached.clone());
        registry.register("generated_tokens", "Tokens generated", all.generated.clone());
        registry.register("drafted_tokens", "Tokens guessed ahead, by who guessed", all.drafted.clone());
        registry.register("accepted_tokens", "Guessed tokens that came true", all.accepted.clone());
        registry.register("refusals", "Requests refused at once, by reason", all.refused.clone());
        let help = "Panics on the compute thread, by workload";
        registry.register("workload_panics", help, all.panics.clone());
        registry.register("preemptions", "Answers put back to wait", all.preempted.clone());
        let seconds = |registry: &mut Registry, name: &str, help: &str, family: &Seconds| {
            registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        };
        seconds(&mut registry, "time_to_first_token", "From the request to its first token", &all.first);
        seconds(&mut registry, "time_between_tokens", "Between two tokens of an answer", &all.between);
        registry.register_with_unit("memory", "Memory for models, by use", Unit::Bytes, all.memory.clone());
        registry.register("tokens_per_second", "Tokens computed a second, lately", all.speed.clone());
        Self { registry, ..all }
    }

    pub fn step(&self, model: &str, step: Step) {
        let label = Model { model: model.to_owned() };
        let add = |family: &Family<Model, Counter>, count: u64| {
            family.get_or_create(&label).inc_by(count);
        };
        add(&self.prompt, step.prompt);
        add(&self.generated, step.generated);
        add(&self.cached, step.cached);
    }

    /// So many tokens of texts wait.
    pub fn texts(&self, waiting: usize) {
        self.queued_texts.set(whole(waiting as u64));
    }

    /// So many pictures wait.
    pub fn waiting_pictures(&self, waiting: usize) {
        self.queued_pictures.set(whole(waiting as u64));
    }

    /// One more was painted.
    pub fn picture(&self, model: &str) {
        self.pictures.get_or_create(&Model { model: model.to_owned() }).inc();
    }

    /// Of `drafted` tokens that were guessed, `accepted` came true.
    pub fn guess(&self, model: &str, by: DraftSource, drafted: usize, accepted: usize) {
        let by = if by == DraftSource::Draft { "draft" } else { "lookup" };
        let label = Guess { model: model.to_owned(), by };
        self.drafted.get_or_create(&label).inc_by(drafted as u64);
        self.accepted.get_or_create(&label).inc_by(accepted as u64);
    }

    pub fn first_token(&self, model: &str, took: Duration) {
        self.first.get_or_create(&Model { model: model.to_owned() }).observe(took.as_secs_f64());
    }

    pub fn next_token(&self, model: &str, took: Duration) {
        self.between.get_or_create(&Model { model: model.to_owned() }).observe(took.as_secs_f64());
    }

    pub fn refuse(&self, model: &str, reason: &'static str) {
        self.refused.get_or_create(&Refusal { model: model.to_owned(), reason }).inc();
    }

    pub fn preempt(&self, count: u64) {
        self.preempted.inc_by(count);
    }

    pub fn panic(&self, workload: &'static str) {
        self.panics.get_or_create(&Work { workload }).inc();
    }

    /// A model's queue and running answers, as they are now.
    pub fn load(&self, model: &str, counts: &Counts) {
        let label = Model { model: model.to_owned() };
        self.queued.get_or_create(&label).set(whole(counts.queued as u64));
        self.running.get_or_create(&label).set(whole(counts.running as u64));
    }

    /// Bytes that something takes now.
    pub fn memory(&self, r#use: &'static str, bytes: u64) {
        self.memory.get_or_create(&Use { r#use }).set(whole(bytes));
    }

    pub fn speed(&self, tokens_per_second: f64) {
        self.speed.set(tokens_per_second);
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing into a string does not fail.
        let _ = text::encode(&mut out, &self.registry);
        out
    }
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{DraftSource, Metrics, Step};
    use std::time::Duration;

    #[test]
    fn the_text_says_what_was_counted() {
        let metrics = Metrics::new();
        metrics.step("m", Step { prompt: 7, generated: 3, cached: 16 });
        metrics.guess("m", DraftSource::Draft, 5, 2);
        metrics.step("m", Step { generated: 1, ..Step::default() });
        metrics.first_token("m", Duration::from_millis(3));
        metrics.refuse("m", "model_queue");
        metrics.memory("weights", 5);
        let text = metrics.text();
        for line in [
            "outpost_prompt_tokens_total{model=\"m\"} 7",
            "outpost_generated_tokens_total{model=\"m\"} 4",
            "outpost_cached_prompt_tokens_total{model=\"m\"} 16",
            "outpost_drafted_tokens_total{model=\"m\",by=\"draft\"} 5",
            "outpost_accepted_tokens_total{model=\"m\",by=\"draft\"} 2",
            "outpost_time_to_first_token_seconds_bucket{le=\"0.004\",model=\"m\"} 1",
            "outpost_time_to_first_token_seconds_bucket{le=\"0.002\",model=\"m\"} 0",
            "outpost_refusals_total{model=\"m\",reason=\"model_queue\"} 1",
            "outpost_memory_bytes{use=\"weights\"} 5",
            "# EOF",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
