//! The items of conversations, as in OpenAI's Conversations API. They are another view of the stored messages: a message has
//! one or more items.
//!
//! Storing both items and messages would need rules for keeping them equal. As a view, all clients can read and
//! continue every conversation. The price is what an item has and a message does not: the ID that a client chose, the
//! work of hosted tools, and reasoning without an answer.

pub mod from_items;
mod item_id;
mod to_items;

use actix_web::{HttpResponse, delete, get, post, web};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa_actix_web::service_config::ServiceConfig;

use super::conversations::{self, ConversationBody};
use super::responses::input_items::{ListParams, bad_after};
use super::responses::input_schema::InputItem;
use crate::error::Result;
use crate::http::etag::{IfMatchHeader, with_etag};
use crate::http::extractors::{ApiParams, ApiPath};
use crate::http::header_list::with_lists;
use crate::http::idempotent_body::IdempotentJson;
use crate::http::resource_ids::parse_id;
use crate::http::response::{ApiResult, Head, Mount};
use crate::http::response_budget::BUILT_FROM_VALUES;
use crate::http::{Api, authentication::Caller};
use crate::ids::ConversationId;
use crate::service::conversations::Appended;
use from_items::{StoredItems, in_items};
use item_id::ConversationItemId;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(delete);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct CreateItems {
    /// The items to append, at most 4,096: `message`, `function_call`, `function_call_output`, `reasoning`, `compaction`, and
    /// `custom_tool_call` and `custom_tool_call_output`, which are stored as calls of functions. Items of other tools are left
    /// out.
    #[schema(value_type = Vec<InputItem>)]
    items: Vec<Value>,
    /// The expected stored version.
    version: Option<u64>,
}

/// Items of a conversation.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ConversationItemList)]
struct ItemList {
    #[schema(value_type = Vec<ItemSchema>)]
    data: Vec<Value>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// An item of a conversation: a `message`, or with another `type` an item with the fields of that type.
#[derive(utoipa::ToSchema)]
#[schema(as = ConversationItem)]
#[expect(dead_code, reason = "a shape for the document; items are encoded from JSON")]
struct ItemSchema {
    /// `message`, `reasoning`, `function_call` or `function_call_output`.
    r#type: String,
    /// Of a message.
    role: Option<String>,
    /// Of a message or of reasoning.
    #[schema(value_type = Option<Vec<Object>>)]
    content: Option<Vec<Value>>,
}

impl ItemList {
    fn new(data: Vec<Value>, has_more: bool) -> Self {
        let id = |item: Option<&Value>| item.and_then(|item| item["id"].as_str()).map(str::to_owned);
        Self { first_id: id(data.first()), last_id: id(data.last()), data, has_more }
    }

    /// The page that `params` ask for of a transcript.
    fn page(conversation: ConversationId, mut rows: Vec<(u32, String)>, params: ListParams) -> Result<Self> {
        let (limit, is_descending) = (params.limit()?, params.is_descending());
        if is_descending {
            rows.reverse();
        }
        let after = params.after.as_deref();
        let position = after.map(|text| {
            let id: Option<ConversationItemId> = text.parse().ok();
            id.filter(|id| id.conversation == conversation).map_or_else(|| bad_after(text), Ok)
        });
        let position = position.transpose()?;
        let rows = rows.into_iter().skip_while(|(row, _)| position.is_some_and(|id| id.row != *row));
        let (mut data, mut skips) = (Vec::new(), after);
        for (row, json) in rows {
            let mut items = to_items::items(conversation, row, &json)?;
            if is_descending {
                items.reverse();
            }
            for item in items {
                if skips.is_some() {
                    skips = skips.filter(|id| item["id"] != *id);
                } else if data.len() == limit {
                    return Ok(Self::new(data, true));
                } else {
                    data.push(item);
                }
            }
            if let Some(id) = skips {
                return bad_after(id);
            }
        }
        skips.map_or_else(|| Ok(Self::new(data, false)), bad_after)
    }
}

/// The IDs in the path of an item. A malformed one is a 404.
fn item_id(path: &(String, String)) -> Result<ConversationItemId> {
    let conversation: ConversationId = parse_id(&path.0)?;
    let item: ConversationItemId = parse_id(&path.1)?;
    Some(item)
        .filter(|item| item.conversation == conversation)
        .ok_or_else(|| to_items::not_found(conversation, &path.1))
}

/// Append items to a conversation.
#[utoipa::path(tag = "conversation-items", request_body = CreateItems,
    params(("conversation_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = ItemList)))]
#[post("/conversations/{conversation_id}/items")]
async fn create(
    id: ApiPath<ConversationId>,
    if_match: IfMatchHeader,
    sent: IdempotentJson<CreateItems>,
    api: web::Data<Api>,
) -> ApiResult {
    let IdempotentJson { caller, body: CreateItems { items, version } } = sent;
    let StoredItems { messages, ignored } = from_items::from_field(&items)?;
    let bytes: usize = messages.iter().map(String::len).sum();
    caller.room.reserve((bytes as u64).saturating_mul(BUILT_FROM_VALUES)).await?;
    let stored = messages.clone();
    let written = api.services.conversations.append_rows(&caller.access, id.0, stored, if_match.and(version)).await;
    let Appended { conversation, first_row } = written.map_err(in_items)?;
    let mut data = Vec::new();
    for (row, json) in (first_row..).zip(&messages) {
        data.extend(to_items::items(id.0, row, json)?);
    }
    let reply = caller.result(api.list_id(), "list", ItemList::new(data, false));
    with_etag(reply.map(|reply| with_lists(reply, &ignored, &[])), conversation.version)
}

/// List the items of a conversation.
#[utoipa::path(tag = "conversation-items", params(("conversation_id" = String, Path), ListParams),
    responses((status = 200, body = ItemList)))]
#[get("/conversations/{conversation_id}/items")]
async fn list(
    caller: Caller,
    id: ApiPath<ConversationId>,
    params: ApiParams<ListParams>,
    api: web::Data<Api>,
) -> ApiResult {
    let read = |limit| api.services.conversations.rows(&caller.access, id.0, limit);
    let rows = caller.room.read(BUILT_FROM_VALUES, read).await?;
    caller.result(api.list_id(), "list", ItemList::page(id.0, rows, params.0)?)
}

/// Read an item of a conversation.
#[utoipa::path(tag = "conversation-items",
    params(("conversation_id" = String, Path), ("item_id" = String, Path)),
    responses((status = 200, body = ItemSchema)))]
#[get("/conversations/{conversation_id}/items/{item_id}")]
async fn get(caller: Caller, path: web::Path<(String, String)>, api: web::Data<Api>) -> ApiResult {
    let id = item_id(&path)?;
    let read = |limit| api.services.conversations.message(&caller.access, id.conversation, id.row, limit);
    let message = caller.room.read(BUILT_FROM_VALUES, read).await?;
    let item = to_items::item(id, message.as_deref())?;
    match (caller.mount, item) {
        (Mount::Spec, Value::Object(mut fields)) => {
            // The envelope has these fields itself.
            fields.retain(|name, _| !["id", "status"].contains(&name.as_str()));
            caller.reply(Head { id, object: "conversation.item", state: Some("completed") }, fields)
        }
        (_, item) => Ok(HttpResponse::Ok().json(item)),
    }
}

/// Delete an item of a conversation. The IDs of the others stay the same.
#[utoipa::path(tag = "conversation-items",
    params(("conversation_id" = String, Path), ("item_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = ConversationBody)))]
#[delete("/conversations/{conversation_id}/items/{item_id}")]
async fn delete(
    caller: Caller,
    path: web::Path<(String, String)>,
    if_match: IfMatchHeader,
    api: web::Data<Api>,
) -> ApiResult {
    let id = item_id(&path)?;
    let service = &api.services.conversations;
    let edit = move |json: Option<&str>| to_items::without(id, json);
    let conversation = service.delete_item(&caller.access, id.conversation, id.row, if_match.and(None), edit).await?;
    conversations::reply(&caller, conversation)
}
