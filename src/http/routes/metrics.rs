//! Metrics for monitoring systems.

use actix_web::{HttpRequest, HttpResponse, get, web};

use crate::http::{Api, authentication, response::ApiResult};

/// The media type of OpenMetrics text.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

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
    Ok(HttpResponse::Ok().content_type(OPEN_METRICS).body(api.models.metrics()))
}
