//! Conversations (endpoint 6 and the rest of the resource). Their items are in `conversation_items`.
//!
//! Only `GET /conversations/{conversation_id}` returns the messages. Writes return the other fields.

use actix_web::{delete, get, patch, post, put, web};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};

use super::conversation_items::from_items::{self, StoredItems, in_items};
use super::message_schema::{self, Message};
use super::responses::input_schema::InputItem;
use utoipa_actix_web::service_config::ServiceConfig;

use crate::error::{Error, Result};
use crate::http::etag::{IfMatchHeader, with_etag};
use crate::http::extractors::{ApiParams, ApiPath, lenient, nullable, object_text};
use crate::http::header_list::with_lists;
use crate::http::idempotent_body::IdempotentJson;
use crate::http::resource_ids::parse_project_id;
use crate::http::response::{ApiResult, Deleted, Head, List, Mount, Time};
use crate::http::response_budget::BUILT_FROM_TEXT;
use crate::http::{Api, authentication::Caller};
use crate::ids::ConversationId;
use crate::service::conversations::{Conversation, ConversationSummary, NewConversation, Replacement};
use crate::service::pagination::PageRequest;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(replace).service(append);
    config.service(update).service(update_with_post).service(delete);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateConversation {
    /// The transcript so far, in order; empty if absent. At most 4,096 messages.
    #[schema(value_type = Option<Vec<Message>>)]
    messages: Option<Vec<Box<RawValue>>>,
    /// The transcript so far as OpenAI's items; an alternative to `messages`. At most 4,096 items.
    #[schema(value_type = Option<Vec<InputItem>>)]
    items: Option<Vec<Value>>,
    /// Application-defined metadata, at most 16 KiB.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// The project that owns it; absent: the key's own project.
    project_id: Option<String>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceConversation {
    /// The whole transcript, in order. At most 4,096 messages.
    #[schema(value_type = Vec<Message>)]
    messages: Vec<Box<RawValue>>,
    /// Absent or null clears it.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// The expected stored version; 0: the conversation must not exist.
    version: Option<u64>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AppendMessages {
    /// The messages to append, at least one.
    #[schema(value_type = Vec<Message>)]
    messages: Vec<Box<RawValue>>,
    /// The expected stored version.
    version: Option<u64>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateConversation {
    /// New metadata; null clears it, absent keeps it.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Option<Map<String, Value>>>,
    /// The expected stored version.
    version: Option<u64>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListConversations {
    /// The project to list; absent: the key's own project.
    project_id: Option<String>,
    /// Only conversations with this text in a message or in the metadata, case-insensitive: 1–200 characters. A page
    /// may then be short or empty even if more pages follow.
    search: Option<String>,
    /// Max records per page: 1–100; 20 if absent.
    #[param(minimum = 1, maximum = 100)]
    #[serde(default, deserialize_with = "lenient")]
    limit: Option<i64>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The last ID of the previous page, as OpenAI's clients send it.
    after: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ConversationBody {
    project_id: String,
    /// Incremented by every write; also sent as `ETag`.
    version: u64,
    message_count: u32,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    created_at: Time,
    updated_at: Time,
}

/// A conversation with its messages, as they were sent.
#[derive(Serialize, utoipa::ToSchema)]
pub struct TranscriptBody {
    #[serde(flatten)]
    conversation: ConversationBody,
    #[schema(value_type = Vec<Message>)]
    messages: Vec<Box<RawValue>>,
}

/// A conversation in a list, with a preview.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ListedBody {
    #[serde(flatten)]
    conversation: ConversationBody,
    /// The beginning of its first user message.
    preview: Option<String>,
}

fn head(conversation: &Conversation) -> Head<ConversationId> {
    Head { id: conversation.id, object: "conversation", state: None }
}

fn body(conversation: Conversation, mount: Mount) -> ConversationBody {
    ConversationBody {
        project_id: conversation.project.to_string(),
        version: conversation.version,
        message_count: conversation.messages,
        metadata: conversation.metadata.and_then(|text| RawValue::from_string(text).ok()),
        created_at: mount.time(conversation.created_at),
        updated_at: mount.time(conversation.updated_at),
    }
}

/// A conversation without its messages, as the whole body.
pub fn reply(caller: &Caller, conversation: Conversation) -> ApiResult {
    let version = conversation.version;
    with_etag(caller.reply(head(&conversation), body(conversation, caller.mount)), version)
}

/// Create a conversation.
#[utoipa::path(tag = "conversations", request_body = CreateConversation,
    responses((status = 200, body = ConversationBody)))]
#[post("/conversations")]
async fn create(sent: IdempotentJson<CreateConversation>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: CreateConversation { messages, items, metadata, project_id } } = sent;
    let project = project_id.as_deref().map(parse_project_id).transpose()?;
    let has_items = items.is_some();
    let StoredItems { messages, ignored } = initial_messages(messages, items)?;
    let new = NewConversation { project, messages, metadata: metadata.map(object_text) };
    let created = api.services.conversations.create(&caller.access, new).await;
    let conversation = created.map_err(|error| if has_items { in_items(error) } else { error })?;
    reply(&caller, conversation).map(|response| with_lists(response, &ignored, &[]))
}

/// The messages of a new conversation.
fn initial_messages(messages: Option<Vec<Box<RawValue>>>, items: Option<Vec<Value>>) -> Result<StoredItems> {
    match (messages, items) {
        (Some(_), Some(_)) => {
            Err(Error::invalid("items", "'items' and 'messages' are both given. Send the transcript in one of them."))
        }
        (None, Some(items)) => from_items::from_field(&items),
        (messages, None) => {
            let messages = message_schema::to_json(&messages.unwrap_or_default());
            Ok(StoredItems { messages, ignored: Vec::new() })
        }
    }
}

/// List a project's conversations, newest first, without their messages; or search them.
#[utoipa::path(tag = "conversations", params(ListConversations), responses((status = 200, body = [ListedBody])))]
#[get("/conversations")]
async fn list(caller: Caller, params: ApiParams<ListConversations>, api: web::Data<Api>) -> ApiResult {
    let ListConversations { project_id, search, limit, cursor, after } = params.0;
    let project = project_id.as_deref().map(parse_project_id).transpose()?;
    let page = PageRequest { limit, cursor, after };
    let read = |limit| api.services.conversations.list(&caller.access, project, search.as_deref(), page.clone(), limit);
    let page = caller.room.read(BUILT_FROM_TEXT, read).await?;
    let item = |ConversationSummary { conversation, preview }: ConversationSummary| {
        let head = head(&conversation);
        caller.mount.item(head, ListedBody { conversation: body(conversation, caller.mount), preview })
    };
    caller.list(api.list_id(), List::new(page.items.into_iter().map(item).collect(), page.next_cursor))
}

/// Read a conversation with its whole transcript.
#[utoipa::path(tag = "conversations", params(("conversation_id" = String, Path)),
    responses((status = 200, body = TranscriptBody)))]
#[get("/conversations/{conversation_id}")]
async fn get(caller: Caller, id: ApiPath<ConversationId>, api: web::Data<Api>) -> ApiResult {
    let read = |limit| api.services.conversations.get(&caller.access, id.0, limit);
    let transcript = caller.room.read(BUILT_FROM_TEXT, read).await?;
    let (head, version) = (head(&transcript.conversation), transcript.conversation.version);
    let conversation = body(transcript.conversation, caller.mount);
    let body = TranscriptBody { conversation, messages: message_schema::from_json(transcript.messages) };
    with_etag(caller.reply(head, body), version)
}

/// Replace the stored transcript as a whole. An unknown id creates the conversation in the key's
/// project.
#[utoipa::path(tag = "conversations", request_body = ReplaceConversation,
    params(("conversation_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = ConversationBody)))]
#[put("/conversations/{conversation_id}")]
async fn replace(
    id: ApiPath<ConversationId>,
    if_match: IfMatchHeader,
    sent: IdempotentJson<ReplaceConversation>,
    api: web::Data<Api>,
) -> ApiResult {
    let IdempotentJson { caller, body: ReplaceConversation { messages, metadata, version } } = sent;
    let new = Replacement { messages: message_schema::to_json(&messages), metadata: metadata.map(object_text) };
    let conversation = api.services.conversations.replace(&caller.access, id.0, new, if_match.and(version)).await?;
    reply(&caller, conversation)
}

/// Append messages to the transcript.
#[utoipa::path(tag = "conversations", request_body = AppendMessages,
    params(("conversation_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = ConversationBody)))]
#[post("/conversations/{conversation_id}/messages")]
async fn append(
    id: ApiPath<ConversationId>,
    if_match: IfMatchHeader,
    sent: IdempotentJson<AppendMessages>,
    api: web::Data<Api>,
) -> ApiResult {
    let IdempotentJson { caller, body: AppendMessages { messages, version } } = sent;
    let messages = message_schema::to_json(&messages);
    let conversation = api.services.conversations.append(&caller.access, id.0, messages, if_match.and(version)).await?;
    reply(&caller, conversation)
}

/// Change a conversation's metadata; the messages stay.
#[utoipa::path(tag = "conversations", request_body = UpdateConversation,
    params(("conversation_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = ConversationBody)))]
#[patch("/conversations/{conversation_id}")]
async fn update(
    id: ApiPath<ConversationId>,
    if_match: IfMatchHeader,
    sent: IdempotentJson<UpdateConversation>,
    api: web::Data<Api>,
) -> ApiResult {
    change(id.0, if_match, sent, &api).await
}

/// Change a conversation's metadata, as OpenAI's clients do; the same as PATCH.
#[utoipa::path(tag = "conversations", request_body = UpdateConversation,
    params(("conversation_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = ConversationBody)))]
#[post("/conversations/{conversation_id}")]
async fn update_with_post(
    id: ApiPath<ConversationId>,
    if_match: IfMatchHeader,
    sent: IdempotentJson<UpdateConversation>,
    api: web::Data<Api>,
) -> ApiResult {
    change(id.0, if_match, sent, &api).await
}

async fn change(
    id: ConversationId,
    if_match: IfMatchHeader,
    sent: IdempotentJson<UpdateConversation>,
    api: &Api,
) -> ApiResult {
    let IdempotentJson { caller, body: UpdateConversation { metadata, version } } = sent;
    let metadata = metadata.map(|metadata| metadata.map(object_text));
    let conversation = api.services.conversations.update(&caller.access, id, metadata, if_match.and(version)).await?;
    reply(&caller, conversation)
}

/// Delete a conversation with all its messages.
#[utoipa::path(tag = "conversations",
    params(("conversation_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Deleted)))]
#[delete("/conversations/{conversation_id}")]
async fn delete(
    caller: Caller,
    id: ApiPath<ConversationId>,
    if_match: IfMatchHeader,
    api: web::Data<Api>,
) -> ApiResult {
    api.services.conversations.delete(&caller.access, id.0, if_match.and(None)).await?;
    let head = Head { id: id.0, object: "conversation.deleted", state: None };
    caller.reply(head, Deleted { deleted: true })
}
