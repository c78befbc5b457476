//! Liveness and readiness checks. No key needed.

use actix_web::{HttpResponse, get, web};
use serde_json::json;

use crate::error::{Code, Error, Result};
use crate::http::{Api, response::ApiResult};

#[utoipa::path(tag = "health", security(()), responses((status = 200, description = "The process is alive.")))]
#[get("/healthz")]
pub async fn alive() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "status": "ok" }))
}

#[utoipa::path(tag = "health", security(()), responses(
    (status = 200, description = "Ready for work. `disk` is `ample`, `low` (uploads, pulls and generated images with a URL are refused) or `critical` (nothing but keys, limits and usage is stored)."),
    (status = 503, description = "Shutting down, the engine is recovering from an internal error, a device no longer works, or the store cannot be reached."),
))]
#[get("/readyz")]
pub async fn ready(api: web::Data<Api>) -> ApiResult {
    check(&api).await?;
    let disk = api.disk.status().map(|status| status.level().as_str()).ok();
    Ok(HttpResponse::Ok().json(json!({ "status": "ready", "disk": disk })))
}

#[utoipa::path(tag = "health", security(()), responses(
    (status = 200, description = "Ready for work. llama.cpp's and vLLM's name of `/readyz`."),
    (status = 503, description = "As `/readyz`."),
))]
#[get("/health")]
pub async fn health(api: web::Data<Api>) -> ApiResult {
    ok(&api).await
}

#[utoipa::path(tag = "health", security(()), responses(
    (status = 200, description = "Ready for work. The name of `/readyz` for load balancers and hosting platforms."),
    (status = 503, description = "As `/readyz`."),
))]
#[get("/ping")]
pub async fn ping(api: web::Data<Api>) -> ApiResult {
    ok(&api).await
}

#[utoipa::path(tag = "health", security(()), responses((status = 200, description = "The version of the server.")))]
#[get("/version")]
pub async fn version() -> HttpResponse {
    HttpResponse::Ok().json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

async fn ok(api: &Api) -> ApiResult {
    check(api).await?;
    Ok(HttpResponse::Ok().json(json!({ "status": "ok" })))
}

/// An error if the server cannot do its work.
async fn check(api: &Api) -> Result<()> {
    if api.draining() {
        return Err(Error::new(Code::ShuttingDown, "The server is shutting down."));
    }
    if !api.models.is_healthy() {
        return Err(Error::new(
            Code::Overloaded,
            "The engine is recovering from an internal error. Try again shortly.",
        ));
    }
    if let Some(device) = api.models.lost_device() {
        let text = format!("The device {device} no longer works. Restart the server.");
        return Err(Error::new(Code::Overloaded, text));
    }
    api.store.ready().await
}
