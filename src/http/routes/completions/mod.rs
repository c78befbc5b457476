//! Text completions: OpenAI's legacy endpoint.

mod encoder;
mod request;
mod response;

use actix_web::{HttpRequest, post, web};
use utoipa_actix_web::service_config::ServiceConfig;

use self::encoder::CompletionEncoder;
use crate::calls::turn::Turn;
use crate::calls::turn::output::{KeptTokens, OutputItems};
use crate::http::extractors::ApiJson;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::Delivery;
use crate::http::{Api, authentication::Caller, request_logging};
use crate::ids::RequestId;

pub fn routes(config: &mut ServiceConfig) {
    config.service(complete_text);
}

/// Continue texts, without the model's chat template; with `stream: true` as server-sent events.
#[utoipa::path(tag = "completions", request_body = request::CompletionRequest, responses((
    status = 200,
    description = "With `stream: true` events: OpenAI's chunks, then `data: [DONE]`.",
    content((response::TextCompletion = "application/json"), (String = "text/event-stream")),
)))]
#[post("/completions")]
async fn complete_text(
    caller: Caller,
    body: ApiJson<request::CompletionRequest>,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    respond(&caller, body.0.check(api.unknown_fields)?, request_logging::request_id(&request), &api).await
}

/// Completes texts that no client waits for.
pub async fn complete_for_batch(caller: &Caller, request: request::CompletionRequest, api: &Api) -> ApiResult {
    respond(caller, request.check(api.unknown_fields)?, None, api).await
}

async fn respond(
    caller: &Caller,
    checked: request::CheckedRequest,
    request_id: Option<RequestId>,
    api: &Api,
) -> ApiResult {
    let request::CheckedRequest { call, stream, ignored } = checked;
    let running = api.completions.start(&caller.access, call, caller.recorder.clone()).await?;
    let kept = if stream.is_some() { KeptTokens::None } else { KeptTokens::All };
    let turn = Turn::new(running, OutputItems::or_empty(kept), api.clock_rng.clone());
    let delivery = Delivery { caller, request_id, is_streamed: stream.is_some(), ignored };
    delivery.send(CompletionEncoder::new(turn, stream.unwrap_or_default())).await
}
