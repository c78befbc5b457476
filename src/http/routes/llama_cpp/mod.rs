//! llama.cpp's own endpoints: a gap in a text, as editors send it, plain texts, and the properties of the server.
//!
//! Clients of these paths often send no `model`. Where only one can be meant, the server uses it; chat completions and
//! the other endpoints of the contract require a model.

mod encoder;
mod props;
mod request;
mod response;

use actix_web::{HttpRequest, post, web};
use utoipa_actix_web::service_config::ServiceConfig;

use self::encoder::CompletionEncoder;
use self::request::{CheckedRequest, CompletionRequest, InfillRequest};
use self::response::{CompletionBody, Form};
use crate::calls::turn::Turn;
use crate::calls::turn::output::{KeptTokens, OutputItems};
use crate::http::extractors::ApiJson;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::Delivery;
use crate::http::{Api, authentication::Caller, request_logging};

pub fn routes(config: &mut ServiceConfig) {
    config.service(infill).service(complete).service(props::read);
}

/// Fill a gap in a text, in the format of llama.cpp; with `stream: true` as server-sent events.
///
/// The model must have been trained for it. Fields without effect are named in the header `x-outpost-ignored`.
#[utoipa::path(tag = "llama-cpp", request_body = InfillRequest, responses((
    status = 200,
    description = "With `stream: true` events, the last with `stop: true`.",
    content((CompletionBody = "application/json"), (String = "text/event-stream")),
)))]
#[post("/infill")]
async fn infill(caller: Caller, body: ApiJson<InfillRequest>, request: HttpRequest, api: web::Data<Api>) -> ApiResult {
    respond(&caller, body.0.check()?, &request, &api).await
}

/// Continue a text, in the format of llama.cpp; with `stream: true` as server-sent events.
///
/// Fields without effect are named in the header `x-outpost-ignored`.
#[utoipa::path(tag = "llama-cpp", request_body = CompletionRequest, responses((
    status = 200,
    description = "With `stream: true` events, the last with `stop: true`.",
    content((CompletionBody = "application/json"), (String = "text/event-stream")),
)))]
#[post("/completion")]
async fn complete(
    caller: Caller,
    body: ApiJson<CompletionRequest>,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    respond(&caller, body.0.check()?, &request, &api).await
}

async fn respond(caller: &Caller, checked: CheckedRequest, request: &HttpRequest, api: &Api) -> ApiResult {
    let CheckedRequest { call, is_streamed, fields, ignored } = checked;
    let running = api.completions.start(&caller.access, call, caller.recorder.clone()).await?;
    let turn = Turn::new(running, OutputItems::or_empty(KeptTokens::None), api.clock_rng.clone());
    let form = Form { fields, clock_rng: api.clock_rng.clone() };
    let delivery = Delivery { caller, request_id: request_logging::request_id(request), is_streamed, ignored };
    delivery.send(CompletionEncoder { turn, form }).await
}
