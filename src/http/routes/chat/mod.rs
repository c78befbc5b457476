//! Chat completions: endpoint 5, and the completions that it stores.

mod conversation_fields;
mod guided_output;
mod output_format;
mod request;
mod response;
mod stored;
mod storing;
mod stream;

use actix_web::{HttpRequest, post, web};
use storing::{Delivery, Storage, StoringChat};
use utoipa_actix_web::service_config::ServiceConfig;

pub use output_format::FunctionTool;

use crate::http::etag::IfMatchHeader;
use crate::http::extractors::ApiJson;
use crate::http::response::{ApiResult, Head};
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
    respond(caller, request::CheckedRequest { storing: None, ..checked }, None, api).await
}

async fn respond(
    caller: &Caller,
    checked: request::CheckedRequest,
    request_id: Option<RequestId>,
    api: &Api,
) -> ApiResult {
    let storage = match checked.storing {
        Some(storing) => {
            api.services.chat_completions.admit(&caller.access, storing.bytes()).await?;
            let completions = api.services.chat_completions.clone();
            Some(Storage { completions, access: caller.access.clone(), storing })
        }
        None => None,
    };
    let mut chat = api.chat.start(&caller.access, checked.call, caller.recorder.clone()).await?;
    let (truncated, unenforced) = (chat.truncated, std::mem::take(&mut chat.unenforced));
    let head = Head { id: chat.id, object: "chat.completion", state: None };
    let (is_streamed, includes_reasoning) = (checked.stream.is_some(), checked.includes_reasoning);
    let delivery = Delivery { storage, is_streamed, includes_reasoning };
    let mut running = StoringChat::new(chat, delivery, api.clock_rng.clone());
    let response = match checked.stream {
        Some(options) => {
            caller.recorder.defer();
            stream::respond(running, options, request_id)
        }
        None => caller.reply(head, running.finish().await?)?,
    };
    Ok(conversation_fields::with_headers(response, truncated, &checked.ignored, &unenforced))
}
