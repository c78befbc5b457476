//! Stored responses.

use std::sync::Arc;

use actix_web::{HttpResponse, delete, get, post, web};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa_actix_web::service_config::ServiceConfig;

use super::background::{json_body, with_status};
use super::follow;
use super::input_items::{self, ItemList, ListParams};
use super::response::ResponseBody;
use crate::calls::responses::live::{LiveEnd, LiveResponse, OutputSteps};
use crate::error::Error;
use crate::http::extractors::{ApiParams, ApiPath, lenient};
use crate::http::response::ApiResult;
use crate::http::response_budget::{BUILT_FROM_TEXT, BUILT_FROM_VALUES};
use crate::http::{Api, authentication::Caller};
use crate::ids::ResponseId;
use crate::service::responses::StoredResponse;
use crate::service::validation::json_fields::invalid_field;

pub fn routes(config: &mut ServiceConfig) {
    config.service(get).service(delete).service(list_input_items).service(cancel);
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
struct GetParams {
    /// Whether the events of its generation are sent, again or while it is generated. The response must have been created
    /// with `background` and `stream`.
    #[serde(default, deserialize_with = "lenient")]
    stream: Option<bool>,
    /// With `stream`: only events with a `sequence_number` above this one are sent, and the last one.
    #[serde(default, deserialize_with = "lenient")]
    starting_after: Option<u64>,
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
    let GetParams { stream, starting_after } = params.0;
    if stream == Some(true) {
        return stream_again(&caller, id.0, starting_after, &api).await;
    }
    if starting_after.is_some() {
        return invalid_field("starting_after", "needs stream=true");
    }
    let is_running = api.live_responses.is_running(id.0);
    let read = |limit| api.services.responses.get_with_state(&caller.access, id.0, limit);
    let (StoredResponse { response, .. }, open) = caller.room.read(BUILT_FROM_TEXT, read).await?;
    // It is stored as queued until it ends.
    Ok(json_body(match open {
        Some(open) if is_running || open.is_running => with_status(&response, "in_progress")?,
        _ => response,
    }))
}

async fn stream_again(caller: &Caller, id: ResponseId, after: Option<u64>, api: &web::Data<Api>) -> ApiResult {
    let responses = &api.services.responses;
    let live = api.live_responses.get_or_create(id);
    let read = |limit| responses.get_with_state(&caller.access, id, limit);
    let (stored, open) = caller.room.read(BUILT_FROM_VALUES, read).await?;
    let steps = match open {
        None => responses.steps(&caller.access, id).await?,
        Some(_) => None,
    };
    let live = match steps {
        Some(steps) => Arc::new(LiveResponse::ended(OutputSteps::parse(&steps)?)),
        None if open.is_some_and(|open| open.keeps_steps) => live,
        None => {
            let text = "is true, but only responses that were created with background: true and stream: true can be streamed again. Read the whole response without it";
            return invalid_field("stream", text);
        }
    };
    Ok(follow::respond(api.clone(), caller.access.clone(), stored, live, after))
}

/// Delete a stored response. Responses that continue it stay, but can no longer be continued.
#[utoipa::path(tag = "responses", params(("response_id" = String, Path)),
    responses((status = 200, body = DeletedResponse)))]
#[delete("/responses/{response_id}")]
async fn delete(caller: Caller, id: ApiPath<ResponseId>, api: web::Data<Api>) -> ApiResult {
    api.services.responses.delete(&caller.access, id.0).await?;
    api.live_responses.close(id.0, LiveEnd::Closed);
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
    let read = |limit| api.services.responses.get(&caller.access, id.0, limit);
    let stored = caller.room.read(BUILT_FROM_VALUES, read).await?;
    Ok(HttpResponse::Ok().json(input_items::page(&stored, params.0)?))
}

/// Cancel a response that is generated in the background. One that has ended stays as it is.
#[utoipa::path(tag = "responses", params(("response_id" = String, Path)),
    responses((status = 200, body = ResponseBody)))]
#[post("/responses/{response_id}/cancel")]
async fn cancel(caller: Caller, id: ApiPath<ResponseId>, api: web::Data<Api>) -> ApiResult {
    let cancelled = |response: &str| with_status(response, "cancelled");
    let response = api.services.responses.cancel(&caller.access, id.0, cancelled).await?;
    let fields: Value = serde_json::from_str(&response).map_err(Error::internal)?;
    if fields.get("background") != Some(&Value::Bool(true)) {
        let text = "names a response that was not created with background: true. Only such responses can be cancelled; close the connection to cancel another one";
        return invalid_field("response_id", text);
    }
    api.live_responses.close(id.0, LiveEnd::Closed);
    Ok(json_body(response))
}
