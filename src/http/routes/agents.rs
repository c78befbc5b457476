//! Agents (endpoint 10 and the rest of the resource).

use actix_web::{delete, get, patch, post, web};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use utoipa_actix_web::service_config::ServiceConfig;

use super::truncation::Truncation;
use crate::http::etag::{IfMatchHeader, with_etag};
use crate::http::extractors::{ApiParams, ApiPath, lenient, nullable, object_text};
use crate::http::idempotent_body::IdempotentJson;
use crate::http::page_params::{Paging, ProjectPaging};
use crate::http::resource_ids::parse_project_id;
use crate::http::response::{ApiResult, Deleted, Head, Item, List, Mount, Time};
use crate::http::response_budget::BUILT_FROM_TEXT;
use crate::http::{Api, authentication::Caller};
use crate::ids::AgentId;
use crate::service::agents::{Agent, AgentFields, Memory, VersionId};
use crate::service::pagination::PageRequest;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(versions).service(update).service(delete);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAgent {
    /// The project that owns it; absent: the key's own project.
    project_id: Option<String>,
    /// Label, 1–256 characters.
    #[schema(min_length = 1, max_length = 256)]
    name: Option<String>,
    /// Model that chats with this agent use when they name none.
    model: Option<String>,
    /// Behaviour and task boundaries, at most 256,000 characters: the first system message of a chat.
    instructions: Option<String>,
    /// Function tools, at most 128, as OpenAI defines them.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Box<RawValue>>,
    memory: Option<MemoryBody>,
    /// Application-defined metadata, at most 16 KiB.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

/// Absent fields are unchanged; null clears a field.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateAgent {
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    name: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    model: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    instructions: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Option<Box<RawValue>>>,
    /// Replaces the stored value as a whole.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<MemoryBody>)]
    memory: Option<Option<MemoryBody>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Option<Map<String, Value>>>,
    /// The expected stored version.
    version: Option<u64>,
}

/// How much of a conversation the agent sees.
#[derive(Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryBody {
    /// `auto`: the oldest turns are dropped if the conversation exceeds the model's context.
    truncation: Option<Truncation>,
    /// Max number of recent messages, 1–4,096; absent: all.
    last_messages: Option<u32>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct GetAgent {
    /// A version of the agent; absent: the current one.
    #[serde(default, deserialize_with = "lenient")]
    version: Option<u64>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct AgentBody {
    project_id: String,
    /// Incremented by every change; also sent as `ETag`.
    version: u64,
    name: Option<String>,
    model: Option<String>,
    instructions: Option<String>,
    #[schema(value_type = Vec<Object>)]
    tools: Option<Box<RawValue>>,
    memory: Option<MemoryBody>,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    created_at: Time,
    /// When this version was created.
    updated_at: Time,
}

impl UpdateAgent {
    /// Replaces the fields that were sent.
    fn into_change(self) -> impl Fn(AgentFields) -> AgentFields {
        let tools = self.tools.map(|tools| tools.map(|json| json.get().to_owned()));
        let memory = self.memory.map(|memory| memory.map(Memory::from));
        let metadata = self.metadata.map(|metadata| metadata.map(object_text));
        let Self { name, model, instructions, .. } = self;
        move |old| AgentFields {
            name: name.clone().unwrap_or(old.name),
            model: model.clone().unwrap_or(old.model),
            instructions: instructions.clone().unwrap_or(old.instructions),
            tools: tools.clone().unwrap_or(old.tools),
            memory: memory.unwrap_or(old.memory),
            metadata: metadata.clone().unwrap_or(old.metadata),
        }
    }
}

impl From<MemoryBody> for Memory {
    fn from(body: MemoryBody) -> Self {
        Self { truncate: body.truncation.map(Truncation::is_auto), last_messages: body.last_messages }
    }
}

impl From<Memory> for MemoryBody {
    fn from(memory: Memory) -> Self {
        let truncation = memory.truncate.map(|auto| if auto { Truncation::Auto } else { Truncation::Disabled });
        Self { truncation, last_messages: memory.last_messages }
    }
}

fn head(agent: &Agent) -> Head<AgentId> {
    Head { id: agent.id, object: "agent", state: None }
}

fn body(agent: Agent, mount: Mount) -> AgentBody {
    let raw = |text: String| RawValue::from_string(text).ok();
    let AgentFields { name, model, instructions, tools, memory, metadata } = agent.fields;
    AgentBody {
        project_id: agent.project.to_string(),
        version: agent.version,
        name,
        model,
        instructions,
        tools: raw(tools.unwrap_or_else(|| "[]".to_owned())),
        memory: memory.map(MemoryBody::from),
        metadata: metadata.and_then(raw),
        created_at: mount.time(agent.created_at),
        updated_at: mount.time(agent.updated_at),
    }
}

fn item(agent: Agent, mount: Mount) -> Item<AgentBody> {
    mount.item(head(&agent), body(agent, mount))
}

fn reply(caller: &Caller, agent: Agent) -> ApiResult {
    let version = agent.version;
    with_etag(caller.reply(head(&agent), body(agent, caller.mount)), version)
}

/// Create an agent.
#[utoipa::path(tag = "agents", request_body = CreateAgent, responses((status = 200, body = AgentBody)))]
#[post("/agents")]
async fn create(sent: IdempotentJson<CreateAgent>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: new } = sent;
    let project = new.project_id.as_deref().map(parse_project_id).transpose()?;
    let fields = AgentFields {
        name: new.name,
        model: new.model,
        instructions: new.instructions,
        tools: new.tools.map(|json| json.get().to_owned()),
        memory: new.memory.map(Memory::from),
        metadata: new.metadata.map(object_text),
    };
    let agent = api.services.agents.create(&caller.access, project, fields).await?;
    reply(&caller, agent)
}

/// List a project's agents, newest first.
#[utoipa::path(tag = "agents", params(ProjectPaging), responses((status = 200, body = [AgentBody])))]
#[get("/agents")]
async fn list(caller: Caller, params: ApiParams<ProjectPaging>, api: web::Data<Api>) -> ApiResult {
    let (project, page) = params.0.into_parts()?;
    let read = |limit| api.services.agents.list(&caller.access, project, page.clone(), limit);
    let page = caller.room.read(BUILT_FROM_TEXT, read).await?;
    let data = page.items.into_iter().map(|agent| item(agent, caller.mount)).collect();
    caller.list(api.list_id(), List::new(data, page.next_cursor))
}

/// Read an agent, in its current or an earlier version.
#[utoipa::path(tag = "agents", params(("agent_id" = String, Path), GetAgent),
    responses((status = 200, body = AgentBody)))]
#[get("/agents/{agent_id}")]
async fn get(caller: Caller, id: ApiPath<AgentId>, params: ApiParams<GetAgent>, api: web::Data<Api>) -> ApiResult {
    let read = |limit| api.services.agents.get(&caller.access, id.0, params.0.version, limit);
    let agent = caller.room.read(BUILT_FROM_TEXT, read).await?;
    reply(&caller, agent)
}

/// List an agent's versions, newest first. The last 1,000 are kept.
#[utoipa::path(tag = "agents", params(("agent_id" = String, Path), Paging),
    responses((status = 200, body = [AgentBody])))]
#[get("/agents/{agent_id}/versions")]
async fn versions(caller: Caller, id: ApiPath<AgentId>, paging: ApiParams<Paging>, api: web::Data<Api>) -> ApiResult {
    let paging = PageRequest::from(paging.0);
    let read = |limit| api.services.agents.versions(&caller.access, id.0, paging.clone(), limit);
    let page = caller.room.read(BUILT_FROM_TEXT, read).await?;
    let item = |agent: Agent| {
        let id = VersionId { agent: agent.id, version: agent.version };
        caller.mount.item(Head { id, object: "agent.version", state: None }, body(agent, caller.mount))
    };
    caller.list(api.list_id(), List::new(page.items.into_iter().map(item).collect(), page.next_cursor))
}

/// Update an agent; every change creates a version.
#[utoipa::path(tag = "agents", request_body = UpdateAgent,
    params(("agent_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = AgentBody)))]
#[patch("/agents/{agent_id}")]
async fn update(
    id: ApiPath<AgentId>,
    if_match: IfMatchHeader,
    sent: IdempotentJson<UpdateAgent>,
    api: web::Data<Api>,
) -> ApiResult {
    let IdempotentJson { caller, body: sent } = sent;
    let precondition = if_match.and(sent.version);
    let agent = api.services.agents.update(&caller.access, id.0, sent.into_change(), precondition).await?;
    reply(&caller, agent)
}

/// Delete an agent with all its versions.
#[utoipa::path(tag = "agents", params(("agent_id" = String, Path), ("If-Match" = Option<String>, Header)),
    responses((status = 200, body = Deleted)))]
#[delete("/agents/{agent_id}")]
async fn delete(caller: Caller, id: ApiPath<AgentId>, if_match: IfMatchHeader, api: web::Data<Api>) -> ApiResult {
    api.services.agents.delete(&caller.access, id.0, if_match.and(None)).await?;
    caller.reply(Head { id: id.0, object: "agent.deleted", state: None }, Deleted { deleted: true })
}
