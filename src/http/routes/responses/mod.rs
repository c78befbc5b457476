//! OpenAI's Responses API: <https://platform.openai.com/docs/api-reference/responses>. The same calls as chat completions.
//!
//! Both mounts have OpenAI's bodies, because clients of this API expect nothing else.
//!
//! A response has an `object` and a `status` of its own, which the envelope's would hide.

mod background;
mod compaction;
mod continuation;
mod conversation_field;
mod custom_tools;
mod encoder;
mod follow;
pub(super) mod input;
pub(super) mod input_items;
pub(super) mod input_schema;
mod output;
pub(super) mod reasoning;
mod request;
mod response;
mod stored;
mod stream;
mod summary_item;
mod validation;

use actix_web::{HttpRequest, HttpResponse, post, web};
use serde::Serialize;
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::turn::Turn;
use crate::calls::turn::output::OutputItems;
use crate::http::etag::IfMatchHeader;
use crate::http::extractors::{ApiJson, SentJson};
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::turn_response::Delivery;
use crate::http::{Api, authentication::Caller, request_logging};
use crate::ids::{RequestId, ResponseId};
use crate::service::responses::ChainLink;
pub use background::BackgroundResponseCodec;
use conversation_field::with_field_names;
use encoder::{RunningResponse, Storage};
use request::{Checked, ResponsesRequest};
use response::ResponseEncoder;
use validation::validate;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(count_tokens).service(compaction::compact).configure(stored::routes);
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = InputTokenCount)]
struct TokenCount {
    /// `response.input_tokens`.
    object: &'static str,
    input_tokens: u32,
}

/// Generate a response, in the format of OpenAI's Responses API; with `stream: true` as server-sent events.
///
/// The response is stored for 30 days unless `store` is false. With `background: true`, it is generated later. Fields, tools and items that this server does not know are
/// left out and named in the header `x-outpost-ignored`.
#[utoipa::path(tag = "responses", request_body = ResponsesRequest, params(("If-Match" = Option<String>, Header,
    description = "The version that the conversation must have.")), responses((
    status = 200,
    description = "With `stream: true` events, from `response.created` to `response.completed`.",
    content((response::ResponseBody = "application/json"), (String = "text/event-stream")),
)))]
#[post("/responses")]
async fn create(
    caller: Caller,
    sent: SentJson<ResponsesRequest>,
    if_match: IfMatchHeader,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    let (checked, link) = validate(sent.body, if_match.0, &caller.access, &api).await?;
    match checked.settings.background {
        true => background::create(&caller, checked, link, &sent.bytes, &api).await,
        false => respond(&caller, checked, link, request_logging::request_id(&request), &api).await,
    }
}

/// Generates a response that no client waits for. It is not stored.
pub async fn create_for_batch(caller: &Caller, request: ResponsesRequest, api: &Api) -> ApiResult {
    let (checked, link) = validate(request.for_batch(), None, &caller.access, api).await?;
    respond(caller, checked, link, None, api).await
}

async fn respond(
    caller: &Caller,
    checked: Checked,
    link: ChainLink,
    request_id: Option<RequestId>,
    api: &Api,
) -> ApiResult {
    let Checked { call, settings, reasoning, is_streamed, input, ignored } = checked;
    let storage = match settings.store {
        true => {
            let bytes: usize = input.iter().map(|item| item.to_string().len()).sum();
            api.services.responses.admit(&caller.access, bytes as u64).await?;
            let (responses, access) = (api.services.responses.clone(), caller.access.clone());
            Some(Storage { responses, access, link, input })
        }
        false => None,
    };
    let started = api.chat.start(&caller.access, call, caller.recorder.clone()).await;
    let chat = started.map_err(with_field_names)?;
    let encoder = ResponseEncoder {
        id: ResponseId::from_bytes(chat.id.to_bytes()),
        created_at: chat.created,
        settings,
        reasoning,
    };
    let output = OutputItems::new(custom_tools::names(&encoder.settings.tools));
    let turn = Turn::new(chat, output, api.clock_rng.clone());
    Delivery { caller, request_id, is_streamed, ignored }.send(RunningResponse::new(turn, encoder, storage)).await
}

/// Count the tokens of a response's prompt, with instructions, tools and what it continues.
#[utoipa::path(tag = "responses", request_body = ResponsesRequest, responses((status = 200, body = TokenCount)))]
#[post("/responses/input_tokens")]
async fn count_tokens(caller: Caller, body: ApiJson<ResponsesRequest>, api: web::Data<Api>) -> ApiResult {
    let (Checked { call, ignored, .. }, _) = validate(body.0, None, &caller.access, &api).await?;
    let counted = api.chat.count_tokens(&caller.access, call, &caller.recorder).await;
    let count = TokenCount { object: "response.input_tokens", input_tokens: counted.map_err(with_field_names)? };
    Ok(with_lists(HttpResponse::Ok().json(count), &ignored, &[]))
}
