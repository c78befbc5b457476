//! Calls that change models, besides [`pull`](super::pull) and [`create`](super::create). Operators install models with `outpost
//! models`, so most of these calls only say so. Tuned and derived models can be deleted.

use actix_web::{HttpResponse, delete, get, post, web};
use utoipa_actix_web::service_config::ServiceConfig;

use super::body::OllamaJson;
use super::model_name::model_id;
use super::models::NamedModel;
use crate::error::{Code, Error, Result};
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(remove).service(push).service(has_blob).service(put_blob);
}

/// Delete a model that the project has trained, or with the scope `admin` a derived model.
#[utoipa::path(tag = "ollama", request_body = NamedModel, responses((status = 200, description = "The model is deleted.")))]
#[delete("/delete")]
async fn remove(caller: Caller, body: OllamaJson<NamedModel>, api: web::Data<Api>) -> ApiResult {
    let name = body.0.into_name()?;
    api.models.delete(&caller.access, model_id(&name)).await?;
    Ok(HttpResponse::Ok().finish())
}

/// Not supported.
#[utoipa::path(tag = "ollama", responses((status = 400, description = "Models cannot be pushed.")))]
#[post("/push")]
async fn push(_: Caller) -> ApiResult {
    unsupported("pushed to a registry")
}

/// Not supported: there are no blobs.
#[utoipa::path(tag = "ollama", params(("digest" = String, Path)), responses((status = 404, description = "There are no blobs.")))]
#[get("/blobs/{digest}")]
async fn has_blob(_: Caller) -> ApiResult {
    let text =
        "This server has no blobs. The operator installs models with 'outpost models pull' or 'outpost models import'.";
    Err(Error::new(Code::NotFound, text))
}

/// Not supported.
#[utoipa::path(tag = "ollama", params(("digest" = String, Path)), responses((status = 400, description = "Blobs cannot be created.")))]
#[post("/blobs/{digest}")]
async fn put_blob(_: Caller) -> ApiResult {
    unsupported("uploaded")
}

/// `done`: what cannot be done with models.
fn unsupported<T>(done: &str) -> Result<T> {
    let text = format!(
        "Files of models cannot be {done} over this API. The operator installs models on the server with 'outpost models pull' or 'outpost models import'; fine-tuning jobs (POST /v1/fine_tuning/jobs) make new ones."
    );
    Err(Error::new(Code::InvalidParameter, text))
}
