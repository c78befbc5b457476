//! Stored chat completions.

use actix_web::{HttpRequest, delete, get, post, web};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa_actix_web::service_config::ServiceConfig;

use super::response::Completion;
use crate::error::{Error, Result};
use crate::http::extractors::{ApiJson, ApiParams, ApiPath, lenient, query_pairs};
use crate::http::response::{ApiResult, Deleted, Head};
use crate::http::response_budget::BUILT_FROM_VALUES;
use crate::http::routes::responses::input_items::{bad_after, page_size};
use crate::http::{Api, authentication::Caller};
use crate::ids::CompletionId;
use crate::service::chat_completions::{ChatCompletionQuery, StoredChatCompletion};

pub fn routes(config: &mut ServiceConfig) {
    config.service(list).service(get).service(update).service(delete).service(list_messages);
}

/// Which completions are listed. `metadata[NAME]=VALUE` in the query string lists those with this entry.
#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct CompletionListParams {
    /// Only completions of this model.
    model: Option<String>,
    /// Max entries per page: 1–100; 20 if absent.
    #[param(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "lenient")]
    limit: Option<i64>,
    /// `asc`, the default: the oldest first; `desc`: the latest first.
    #[param(inline)]
    order: Option<Order>,
    /// The last ID of the previous page.
    after: Option<String>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct MessageListParams {
    /// Max entries per page: 1–100; 20 if absent.
    #[param(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "lenient")]
    limit: Option<i64>,
    /// `asc`, the default: in their order; `desc`: the last first.
    #[param(inline)]
    order: Option<Order>,
    /// The last ID of the previous page.
    after: Option<String>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq, utoipa::ToSchema)]
#[schema(as = ChatCompletionOrder)]
#[serde(rename_all = "lowercase")]
enum Order {
    #[default]
    Asc,
    Desc,
}

impl Order {
    fn is_descending(order: Option<Self>) -> bool {
        order.unwrap_or_default() == Self::Desc
    }
}

/// A page of completions, or of messages.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ChatCompletionList)]
struct Page {
    #[schema(value_type = Vec<Object>)]
    data: Vec<Value>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

impl Page {
    fn new(data: Vec<Value>, has_more: bool) -> Self {
        let id = |entry: Option<&Value>| entry.and_then(|entry| entry["id"].as_str()).map(str::to_owned);
        Self { first_id: id(data.first()), last_id: id(data.last()), data, has_more }
    }
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = ChatCompletionUpdate)]
#[serde(deny_unknown_fields)]
struct Update {
    /// Replaces the metadata; null removes it.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
}

/// The fields of a stored completion, without its ID and type.
fn fields(stored: &StoredChatCompletion) -> Result<Map<String, Value>> {
    let mut fields: Map<String, Value> = serde_json::from_str(&stored.completion).map_err(Error::internal)?;
    let metadata: Option<Value> =
        stored.metadata.as_deref().map(serde_json::from_str).transpose().map_err(Error::internal)?;
    fields.insert("metadata".to_owned(), metadata.unwrap_or_else(|| json!({})));
    Ok(fields)
}

fn head(id: CompletionId) -> Head<CompletionId> {
    Head { id, object: "chat.completion", state: None }
}

/// List the stored chat completions of the key's project.
#[utoipa::path(tag = "chat", params(CompletionListParams), responses((status = 200, body = Page)))]
#[get("/chat/completions")]
async fn list(
    caller: Caller,
    params: ApiParams<CompletionListParams>,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    let CompletionListParams { model, limit, order, after } = params.0;
    let query = ChatCompletionQuery {
        after: after.as_deref().map(|text| text.parse().or_else(|_| bad_after(text))).transpose()?,
        limit: page_size(limit)?,
        is_descending: Order::is_descending(order),
        model,
        metadata: metadata_filter(&request)?,
    };
    let read = |limit| api.services.chat_completions.list(&caller.access, query.clone(), limit);
    let page = caller.room.read(BUILT_FROM_VALUES, read).await?;
    let entry = |stored: &StoredChatCompletion| {
        let mut fields = fields(stored)?;
        fields.insert("id".to_owned(), json!(stored.id));
        fields.insert("object".to_owned(), json!("chat.completion"));
        Ok(Value::Object(fields))
    };
    let data = page.completions.iter().map(entry).collect::<Result<_>>()?;
    caller.result(api.list_id(), "list", Page::new(data, page.has_more))
}

/// The entries of `metadata[NAME]=VALUE` in the query string.
fn metadata_filter(request: &HttpRequest) -> Result<Vec<(String, String)>> {
    let entry = |(name, value): (String, String)| {
        let name = name.strip_prefix("metadata[")?.strip_suffix(']')?;
        Some((name.to_owned(), value))
    };
    Ok(query_pairs(request.query_string())?.into_iter().filter_map(entry).collect())
}

/// Read a stored chat completion.
#[utoipa::path(tag = "chat", params(("completion_id" = String, Path)), responses((status = 200, body = Completion)))]
#[get("/chat/completions/{completion_id}")]
async fn get(caller: Caller, id: ApiPath<CompletionId>, api: web::Data<Api>) -> ApiResult {
    let read = |limit| api.services.chat_completions.get(&caller.access, id.0, limit);
    let stored = caller.room.read(BUILT_FROM_VALUES, read).await?;
    caller.reply(head(stored.id), fields(&stored)?)
}

/// Replace the metadata of a stored chat completion.
#[utoipa::path(tag = "chat", params(("completion_id" = String, Path)), responses((status = 200, body = Completion)))]
#[post("/chat/completions/{completion_id}")]
async fn update(caller: Caller, id: ApiPath<CompletionId>, body: ApiJson<Update>, api: web::Data<Api>) -> ApiResult {
    let metadata = body.0.metadata.map(|metadata| metadata.to_string());
    let completions = &api.services.chat_completions;
    completions.set_metadata(&caller.access, id.0, metadata).await?;
    let read = |limit| completions.get(&caller.access, id.0, limit);
    let stored = caller.room.read(BUILT_FROM_VALUES, read).await?;
    caller.reply(head(stored.id), fields(&stored)?)
}

/// Delete a stored chat completion.
#[utoipa::path(tag = "chat", params(("completion_id" = String, Path)), responses((status = 200, body = Deleted)))]
#[delete("/chat/completions/{completion_id}")]
async fn delete(caller: Caller, id: ApiPath<CompletionId>, api: web::Data<Api>) -> ApiResult {
    api.services.chat_completions.delete(&caller.access, id.0).await?;
    let head = Head { id: id.0, object: "chat.completion.deleted", state: None };
    caller.reply(head, Deleted { deleted: true })
}

/// List the messages of a stored chat completion's request.
#[utoipa::path(tag = "chat", params(("completion_id" = String, Path), MessageListParams),
    responses((status = 200, body = Page)))]
#[get("/chat/completions/{completion_id}/messages")]
async fn list_messages(
    caller: Caller,
    id: ApiPath<CompletionId>,
    params: ApiParams<MessageListParams>,
    api: web::Data<Api>,
) -> ApiResult {
    let MessageListParams { limit, order, after } = params.0;
    let limit = page_size(limit)?;
    let read = |limit| api.services.chat_completions.get(&caller.access, id.0, limit);
    let stored = caller.room.read(BUILT_FROM_VALUES, read).await?;
    let messages = stored.messages.iter().enumerate().map(|(index, json)| message(stored.id, index, json));
    let mut messages: Vec<Value> = messages.collect::<Result<_>>()?;
    if Order::is_descending(order) {
        messages.reverse();
    }
    if let Some(after) = &after {
        match messages.iter().position(|message| message["id"] == **after) {
            Some(index) => drop(messages.drain(..=index)),
            None => return bad_after(after),
        }
    }
    let has_more = messages.len() > limit;
    messages.truncate(limit);
    caller.result(api.list_id(), "list", Page::new(messages, has_more))
}

/// A message with its ID. A content of parts is also in `content_parts`, and its text in `content`.
fn message(completion: CompletionId, index: usize, json: &str) -> Result<Value> {
    let mut fields: Map<String, Value> = serde_json::from_str(json).map_err(Error::internal)?;
    fields.insert("id".to_owned(), json!(format!("{completion}-{index}")));
    let parts = fields.get("content").filter(|content| content.is_array()).cloned();
    if let Some(parts) = parts.as_ref().and_then(Value::as_array) {
        let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        fields.insert("content".to_owned(), json!(text));
    }
    fields.insert("content_parts".to_owned(), json!(parts));
    Ok(Value::Object(fields))
}
