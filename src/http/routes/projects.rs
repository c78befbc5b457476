//! Projects (endpoints 14 and 15 and the rest of the resource).

use actix_web::{get, post, put, web};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::http::extractors::{ApiParams, ApiPath, object_text};
use crate::http::response::{ApiResult, Head, Item, List, Mount, Time};
use crate::http::{
    Api,
    authentication::Caller,
    idempotent_body::{IdempotentJson, Nothing},
    page_params::Paging,
};
use crate::ids::ProjectId;
use crate::service::projects::{NewProject, Project, ProjectRecord};

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(replace).service(archive);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateProject {
    /// Human-readable name, 1–256 characters.
    #[schema(min_length = 1, max_length = 256)]
    name: String,
    /// Environment label, for example `production`.
    environment: Option<String>,
    /// Application-defined metadata.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceProject {
    /// Human-readable name, 1–256 characters.
    #[schema(min_length = 1, max_length = 256)]
    name: String,
    /// Environment label; absent or null clears it.
    environment: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ProjectBody {
    name: String,
    environment: Option<String>,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    created_at: Time,
    updated_at: Time,
    archived_at: Option<Time>,
}

fn head(project: &Project) -> Head<ProjectId> {
    let state = if project.record.archived_at.is_some() { "archived" } else { "active" };
    Head { id: project.id, object: "organization.project", state: Some(state) }
}

fn body(project: Project, mount: Mount) -> ProjectBody {
    let ProjectRecord { name, environment, metadata, created_at, updated_at, archived_at } = project.record;
    ProjectBody {
        name,
        environment,
        metadata: metadata.and_then(|text| RawValue::from_string(text).ok()),
        created_at: mount.time(created_at),
        updated_at: mount.time(updated_at),
        archived_at: archived_at.map(|at| mount.time(at)),
    }
}

fn item(project: Project, mount: Mount) -> Item<ProjectBody> {
    mount.item(head(&project), body(project, mount))
}

fn reply(caller: &Caller, project: Project) -> ApiResult {
    caller.reply(head(&project), body(project, caller.mount))
}

/// Create a project. Needs a key with the scope `admin`.
#[utoipa::path(tag = "projects", request_body = CreateProject, responses((status = 200, body = ProjectBody)))]
#[post("/projects")]
async fn create(sent: IdempotentJson<CreateProject>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: CreateProject { name, environment, metadata } } = sent;
    let metadata = metadata.map(object_text);
    let project = api.services.projects.create(&caller.access, NewProject { name, environment, metadata }).await?;
    reply(&caller, project)
}

/// List projects, newest first: all of them for an admin, else the key's own.
#[utoipa::path(tag = "projects", params(Paging), responses((status = 200, body = [ProjectBody])))]
#[get("/projects")]
async fn list(caller: Caller, paging: ApiParams<Paging>, api: web::Data<Api>) -> ApiResult {
    let page = api.services.projects.list(&caller.access, paging.0.into()).await?;
    let data = page.items.into_iter().map(|project| item(project, caller.mount)).collect();
    caller.list(api.list_id(), List::new(data, page.next_cursor))
}

/// Read a project.
#[utoipa::path(tag = "projects", params(("project_id" = String, Path)), responses((status = 200, body = ProjectBody)))]
#[get("/projects/{project_id}")]
async fn get(caller: Caller, id: ApiPath<ProjectId>, api: web::Data<Api>) -> ApiResult {
    let project = api.services.projects.get(&caller.access, id.0).await?;
    reply(&caller, project)
}

/// Replace a project's editable settings.
#[utoipa::path(tag = "projects", params(("project_id" = String, Path)), request_body = ReplaceProject,
    responses((status = 200, body = ProjectBody)))]
#[put("/projects/{project_id}")]
async fn replace(id: ApiPath<ProjectId>, sent: IdempotentJson<ReplaceProject>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: ReplaceProject { name, environment } } = sent;
    let project = api.services.projects.replace(&caller.access, id.0, name, environment).await?;
    reply(&caller, project)
}

/// Archive a project and disable its keys. Needs a key with the scope `admin`.
#[utoipa::path(tag = "projects", params(("project_id" = String, Path)), responses((status = 200, body = ProjectBody)))]
#[post("/projects/{project_id}/archive")]
async fn archive(id: ApiPath<ProjectId>, sent: IdempotentJson<Nothing>, api: web::Data<Api>) -> ApiResult {
    let caller = sent.caller;
    let project = api.services.projects.archive(&caller.access, id.0).await?;
    reply(&caller, project)
}
