//! Liveness and readiness checks. No key needed.

use actix_web::{HttpResponse, get, web};
use serde_json::json;

use crate::error::{Code, Error};
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
    api.store.ready().await?;
    let disk = api.disk.status().map(|status| status.level().as_str()).ok();
    Ok(HttpResponse::Ok().json(json!({ "status": "ready", "disk": disk })))
}
