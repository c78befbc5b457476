//! Metrics for monitoring systems.

use actix_web::{HttpRequest, HttpResponse, get, web};
use prometheus_client::encoding::text;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::disk_space::{DiskLevel, DiskReserve};
use crate::http::response_budget::ResponseBudget;
use crate::http::{Api, authentication, response::ApiResult};
use crate::storage::Store;

/// The media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The last line of the text.
const END: &str = "# EOF\n";

/// Queues, tokens, latencies and memory by model, as OpenMetrics text for Prometheus and similar systems.
/// Needs an admin key, unless the server was started with `--open-metrics`.
#[utoipa::path(tag = "health", responses(
    (status = 200, description = "OpenMetrics text.", content_type = "application/openmetrics-text", body = String),
))]
#[get("/metrics")]
pub async fn metrics(request: HttpRequest, api: web::Data<Api>) -> ApiResult {
    if !api.open_metrics {
        authentication::authenticate_request(&api, &request).await?.require_admin()?;
    }
    let responses = response_metrics(&api.response_budget);
    let own = [Some(api.models.metrics()), api.pulls.metrics(), cluster_metrics(&api.store)];
    let parts = own.into_iter().chain([disk_metrics(&api.disk), Some(responses)]).flatten();
    // The end of the text is marked once.
    let mut text: String = parts.map(|part| part.trim_end_matches(END).to_owned()).collect();
    text.push_str(END);
    Ok(HttpResponse::Ok().content_type(OPEN_METRICS).body(text))
}

/// The metrics of a database that servers share; `None` if this process has the store for itself.
fn cluster_metrics(store: &Store) -> Option<String> {
    let cluster = store.cluster()?;
    Some(gauges(
        "outpost_store",
        &[
            ("nodes", "Servers that share the database and are alive", signed(cluster.alive())),
            (
                "current",
                "Whether the database answers, and changes by other servers are known",
                cluster.is_current().into(),
            ),
        ],
    ))
}

/// The space of the disk with the data folder; `None` if the file system does not report it.
fn disk_metrics(disk: &DiskReserve) -> Option<String> {
    let status = disk.status().ok()?;
    let refused = match status.level() {
        DiskLevel::Ample => 0,
        DiskLevel::Low => 1,
        DiskLevel::Critical => 2,
    };
    Some(gauges(
        "outpost_disk",
        &[
            ("free_bytes", "Free space of the disk with the data folder", signed(status.space.free)),
            ("min_free_bytes", "Free space below which content is refused", signed(status.min_free)),
            ("level", "What is refused: 0 nothing, 1 uploads, pulls and generated images, 2 all content", refused),
        ],
    ))
}

fn response_metrics(budget: &ResponseBudget) -> String {
    let (held, total) = budget.usage();
    gauges(
        "outpost_unsent_responses",
        &[
            ("bytes", "Memory for large responses that are built and not yet sent", signed(held)),
            ("budget_bytes", "The most memory for such responses", signed(total)),
        ],
    )
}

/// Gauges with name, help and value, as OpenMetrics text.
fn gauges(prefix: &str, gauges: &[(&str, &str, i64)]) -> String {
    let mut registry = Registry::with_prefix(prefix);
    for (name, help, value) in gauges {
        let gauge: Gauge = Gauge::default();
        gauge.set(*value);
        registry.register(*name, *help, gauge);
    }
    let mut out = String::new();
    // Writing into a string does not fail.
    let _ = text::encode(&mut out, &registry);
    out
}

fn signed(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}
