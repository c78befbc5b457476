//! Stored responses.

use actix_web::{HttpResponse, delete, get, post, web};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use super::input_items::{self, ItemList, ListParams};
use super::response::ResponseBody;
use crate::http::extractors::{ApiParams, ApiPath, lenient};
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller};
use crate::ids::ResponseId;
use crate::service::json_fields::invalid_field;

pub fn routes(config: &mut ServiceConfig) {
    config.service(get).service(delete).service(list_input_items).service(cancel);
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct GetParams {
    /// Only false: the events of a stream are not kept.
    #[serde(default, deserialize_with = "lenient")]
    stream: Option<bool>,
}

/// Confirmation of a deletion.
#[derive(Serialize, utoipa::ToSchema)]
struct DeletedResponse {
    id: String,
    /// `response`.
    object: &'static str,
    /// Always true.
    deleted: bool,
}

/// Read a stored response.
#[utoipa::path(tag = "responses", params(("response_id" = String, Path), GetParams),
    responses((status = 200, body = ResponseBody)))]
#[get("/responses/{response_id}")]
async fn get(caller: Caller, id: ApiPath<ResponseId>, params: ApiParams<GetParams>, api: web::Data<Api>) -> ApiResult {
    if params.0.stream == Some(true) {
        let text = "is true, but the events of a response are not kept. Read the whole response without it";
        return invalid_field("stream", text);
    }
    let stored = api.services.responses.get(&caller.access, id.0).await?;
    Ok(HttpResponse::Ok().content_type("application/json").body(stored.response))
}

/// Delete a stored response. Responses that continue it stay, but can no longer be continued.
#[utoipa::path(tag = "responses", params(("response_id" = String, Path)),
    responses((status = 200, body = DeletedResponse)))]
#[delete("/responses/{response_id}")]
async fn delete(caller: Caller, id: ApiPath<ResponseId>, api: web::Data<Api>) -> ApiResult {
    api.services.responses.delete(&caller.access, id.0).await?;
    Ok(HttpResponse::Ok().json(DeletedResponse { id: id.0.to_string(), object: "response", deleted: true }))
}

/// List the items of a stored response's own input.
#[utoipa::path(tag = "responses", params(("response_id" = String, Path), ListParams),
    responses((status = 200, body = ItemList)))]
#[get("/responses/{response_id}/input_items")]
async fn list_input_items(
    caller: Caller,
    id: ApiPath<ResponseId>,
    params: ApiParams<ListParams>,
    api: web::Data<Api>,
) -> ApiResult {
    let stored = api.services.responses.get(&caller.access, id.0).await?;
    Ok(HttpResponse::Ok().json(input_items::page(&stored, params.0)?))
}

/// Cancel a response that is generated in the background. There are none on this server, so this is always an error.
#[utoipa::path(tag = "responses", params(("response_id" = String, Path)),
    responses((status = 400, description = "The response was not generated in the background.")))]
#[post("/responses/{response_id}/cancel")]
async fn cancel(caller: Caller, id: ApiPath<ResponseId>, api: web::Data<Api>) -> ApiResult {
    api.services.responses.get(&caller.access, id.0).await?;
    let text = "names a response that was not created with background: true. Only such responses can be cancelled; close the connection to cancel another one";
    invalid_field("response_id", text)
}
