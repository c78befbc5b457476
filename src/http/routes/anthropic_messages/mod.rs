//! Anthropic's Messages API: <https://docs.anthropic.com/en/api/messages>. The same calls as chat completions.
//!
//! Bodies and errors are Anthropic's on both mounts: its clients read `type` and `content` at the top level, and `/v1`
//! is the only path that they call. The same holds for the list of models if a client sends `anthropic-version`. A
//! request becomes a `ChatCall`, and the only thing that the call knows of this API is its `Dialect`, which names the
//! fields in errors.

pub mod api_format;
mod content;
mod encoder;
mod message_schema;
mod output;
mod request;
mod response;
mod thinking;

use actix_web::{HttpRequest, HttpResponse, post, web};
use serde::Serialize;
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::turn::Turn;
use crate::calls::turn::output::{KeptTokens, OutputItems};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::Delivery;
use crate::http::{Api, authentication::Caller, request_logging};
use encoder::MessageEncoder;
use request::Checked;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(count_tokens);
}

#[derive(Serialize, utoipa::ToSchema)]
struct TokenCount {
    input_tokens: u32,
}

/// Generate a message, in the format of Anthropic's API; with `stream: true` as server-sent events.
///
/// The key is taken from `x-api-key` or `Authorization`. Errors have Anthropic's format. Fields that this server does not know
/// and tools that only Anthropic's servers have are left out and named in the header `x-outpost-ignored`.
#[utoipa::path(tag = "messages", request_body = request::MessagesRequest, responses((
    status = 200,
    description = "With `stream: true` events, from `message_start` to `message_stop`.",
    content((response::MessageBody = "application/json"), (String = "text/event-stream")),
)))]
#[post("/messages")]
async fn create(
    caller: Caller,
    body: ApiJson<request::MessagesRequest>,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    let Checked { call, is_streamed, ignored } = body.0.check(true)?;
    let running = api.chat.start(&caller.access, call, caller.recorder.clone()).await?;
    let turn = Turn::new(running, OutputItems::or_empty(KeptTokens::None), api.clock_rng.clone());
    let request_id = request_logging::request_id(&request);
    Delivery { caller: &caller, request_id, is_streamed, ignored }.send(MessageEncoder::new(turn)).await
}

/// Count the tokens of a message's prompt, with system prompt and tools.
#[utoipa::path(tag = "messages", request_body = request::MessagesRequest, responses((status = 200, body = TokenCount)))]
#[post("/messages/count_tokens")]
async fn count_tokens(caller: Caller, body: ApiJson<request::MessagesRequest>, api: web::Data<Api>) -> ApiResult {
    let Checked { call, ignored, .. } = body.0.check(false)?;
    let input_tokens = api.chat.count_tokens(&caller.access, call, &caller.recorder).await?;
    Ok(with_lists(HttpResponse::Ok().json(TokenCount { input_tokens }), &ignored, &[]))
}
