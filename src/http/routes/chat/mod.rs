//! Chat completions: endpoint 5, and the completions that it stores.

mod conversation_fields;
mod encoder;
mod guided_output;
mod output_format;
mod request;
mod response;
mod stored;

use actix_web::{HttpRequest, post, web};
use utoipa_actix_web::service_config::ServiceConfig;

use self::encoder::{ChatEncoder, Storage};
use self::request::CheckedRequest;
pub use output_format::FunctionTool;

use crate::http::etag::IfMatchHeader;
use crate::http::extractors::ApiJson;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::Delivery;
use crate::http::{Api, authentication::Caller, request_logging};
use crate::ids::RequestId;

pub fn routes(config: &mut ServiceConfig) {
    config.service(complete).configure(stored::routes);
}

/// Generate an assistant message; with `stream: true` as server-sent events. With `store: true`, it is stored for 30 days.
#[utoipa::path(tag = "chat", request_body = request::ChatRequest, params(("If-Match" = Option<String>, Header,
    description = "The version that the conversation of `conversation_id` must have.")), responses((
    status = 200,
    description = "With `stream: true` events: OpenAI's chunks, then `data: [DONE]`.",
    content((response::Completion = "application/json"), (String = "text/event-stream")),
)))]
#[post("/chat/completions")]
async fn complete(
    caller: Caller,
    body: ApiJson<request::ChatRequest>,
    if_match: IfMatchHeader,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    let checked = body.0.check(if_match.0, api.unknown_fields)?;
    respond(&caller, checked, request_logging::request_id(&request), &api).await
}

/// Completes a chat that no client waits for. It is not stored.
pub async fn complete_for_batch(caller: &Caller, request: request::ChatRequest, api: &Api) -> ApiResult {
    let checked = request.check(None, api.unknown_fields)?;
    respond(caller, CheckedRequest { storing: None, ..checked }, None, api).await
}

async fn respond(caller: &Caller, checked: CheckedRequest, request_id: Option<RequestId>, api: &Api) -> ApiResult {
    let storage = match checked.storing {
        Some(storing) => {
            api.services.chat_completions.admit(&caller.access, storing.bytes()).await?;
            let completions = api.services.chat_completions.clone();
            Some(Storage { completions, access: caller.access.clone(), storing })
        }
        None => None,
    };
    let CheckedRequest { call, stream, includes_reasoning, ignored, .. } = checked;
    let chat = api.chat.start(&caller.access, call, caller.recorder.clone()).await?;
    let delivery = Delivery { caller, request_id, is_streamed: stream.is_some(), ignored };
    delivery.send(ChatEncoder::new(chat, storage, includes_reasoning, stream, api)).await
}
