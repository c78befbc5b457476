//! API keys (endpoints 1 to 4 and the rest of the resource).

use actix_web::{delete, get, patch, post, put, web};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::clock_rng::Timestamp;
use crate::http::extractors::{ApiParams, ApiPath, lenient, nullable};
use crate::http::idempotent_body::{IdempotentJson, Nothing};
use crate::http::resource_ids::parse_project_id;
use crate::http::response::{ApiResult, Head, List, Mount, Time};
use crate::http::{Api, authentication::Caller};
use crate::ids::KeyId;
use crate::service::access::Scope;
use crate::service::keys::secret::Secret;
use crate::service::keys::{Key, KeyFields, NewKey, Rotation};
use crate::service::pagination::PageRequest;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(own).service(get).service(rotate).service(update).service(revoke);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateKey {
    /// Label of the key, 1–256 characters.
    #[schema(min_length = 1, max_length = 256)]
    name: String,
    /// The project that owns the key.
    project_id: String,
    /// RFC 3339 time with an offset, in the future; absent: never.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    /// What the key may do: `admin`, `project`, `inference`. Default `project` and `inference`.
    scopes: Option<Vec<String>>,
    /// Ids of the models that the key may call; absent: all.
    models: Option<Vec<String>>,
}

#[derive(Deserialize, utoipa::ToSchema, Default)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// How long the previous secret remains valid: 0–2,592,000 s, 0 if absent.
    #[schema(minimum = 0, maximum = 2_592_000)]
    grace_period_seconds: Option<i64>,
    /// Reason, for the audit log.
    reason: Option<String>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateKey {
    /// New label, 1–256 characters.
    #[schema(min_length = 1, max_length = 256)]
    name: String,
    /// New expiration; null clears it, absent keeps it.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Option<Timestamp>>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListKeys {
    /// The project whose keys are listed.
    project_id: String,
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
pub struct KeyBody {
    name: String,
    project_id: String,
    scopes: Vec<&'static str>,
    models: Option<Vec<String>>,
    redacted_value: String,
    created_at: Time,
    updated_at: Time,
    expires_at: Option<Time>,
    revoked_at: Option<Time>,
    rotated_at: Option<Time>,
    /// End of the validity of the previous secret.
    previous_valid_until: Option<Time>,
    /// When the key was last used in a request, successful or not.
    last_used_at: Option<Time>,
}

/// A key with its secret, which is shown only once.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NewKeyBody {
    #[serde(flatten)]
    key: KeyBody,
    /// Null in a replayed response (idempotency).
    secret: Option<String>,
    /// The same secret under OpenAI's name.
    value: Option<String>,
    /// Why the secret is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

/// The caller's own key, and the project that it belongs to.
#[derive(Serialize, utoipa::ToSchema)]
pub struct OwnKeyBody {
    #[serde(flatten)]
    key: KeyBody,
    project: OwnProject,
}

#[derive(Serialize, utoipa::ToSchema)]
struct OwnProject {
    id: String,
    name: String,
    environment: Option<String>,
}

const TOLD_BEFORE: &str =
    "The secret was in the first answer to this idempotency key and is not repeated. If it was lost, rotate the key.";

fn head(key: &Key, now: Timestamp) -> Head<KeyId> {
    Head { id: key.id, object: "organization.project.api_key", state: Some(key.state(now)) }
}

fn body(key: Key, mount: Mount) -> KeyBody {
    let time = |at: Option<Timestamp>| at.map(|at| mount.time(at));
    let KeyFields { scopes, models, created_at, updated_at, expires_at, revoked_at, rotated_at, redacted } = key.fields;
    KeyBody {
        name: key.name,
        project_id: key.project.to_string(),
        scopes: scopes.iter().map(Scope::as_str).collect(),
        models,
        redacted_value: redacted,
        created_at: mount.time(created_at),
        updated_at: mount.time(updated_at),
        expires_at: time(expires_at),
        revoked_at: time(revoked_at),
        rotated_at: time(rotated_at),
        previous_valid_until: time(key.previous_valid_until),
        last_used_at: time(key.last_used_at),
    }
}

fn reply(caller: &Caller, api: &Api, key: Key) -> ApiResult {
    caller.reply(head(&key, api.clock_rng.now()), body(key, caller.mount))
}

fn reply_with_secret(caller: &Caller, api: &Api, key: Key, secret: Option<&Secret>) -> ApiResult {
    let head = head(&key, api.clock_rng.now());
    let note = secret.is_none().then_some(TOLD_BEFORE);
    let secret = secret.map(|secret| secret.expose().to_owned());
    caller.reply(head, NewKeyBody { key: body(key, caller.mount), value: secret.clone(), secret, note })
}

/// Create a key. Its secret is shown only in this response.
#[utoipa::path(tag = "api keys", request_body = CreateKey, responses((status = 200, body = NewKeyBody)))]
#[post("/api-keys")]
async fn create(sent: IdempotentJson<CreateKey>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: CreateKey { name, project_id, expires_at, scopes, models } } = sent;
    let new = NewKey { name, project: parse_project_id(&project_id)?, expires_at, scopes, models };
    let (key, secret) = api.services.keys.create(&caller.access, new).await?;
    reply_with_secret(&caller, &api, key, secret.as_ref())
}

/// List a project's keys, newest first. Secrets are never included.
#[utoipa::path(tag = "api keys", params(ListKeys), responses((status = 200, body = [KeyBody])))]
#[get("/api-keys")]
async fn list(caller: Caller, params: ApiParams<ListKeys>, api: web::Data<Api>) -> ApiResult {
    let ListKeys { project_id, limit, cursor, after } = params.0;
    let page = api
        .services
        .keys
        .list(&caller.access, parse_project_id(&project_id)?, PageRequest { limit, cursor, after })
        .await?;
    let now = api.clock_rng.now();
    let item = |key: Key| caller.mount.item(head(&key, now), body(key, caller.mount));
    caller.list(api.list_id(), List::new(page.items.into_iter().map(item).collect(), page.next_cursor))
}

/// Read the metadata of the request's own key; allowed for every key.
#[utoipa::path(tag = "api keys", responses((status = 200, body = OwnKeyBody)))]
#[get("/me")]
async fn own(caller: Caller, _: ApiParams<Nothing>, api: web::Data<Api>) -> ApiResult {
    let (key, project) = api.services.keys.own(&caller.access).await?;
    let project =
        OwnProject { id: project.id.to_string(), name: project.record.name, environment: project.record.environment };
    let head = head(&key, api.clock_rng.now());
    caller.reply(head, OwnKeyBody { key: body(key, caller.mount), project })
}

/// Read a key's metadata.
#[utoipa::path(tag = "api keys", params(("api_key_id" = String, Path)), responses((status = 200, body = KeyBody)))]
#[get("/api-keys/{api_key_id}")]
async fn get(caller: Caller, id: ApiPath<KeyId>, api: web::Data<Api>) -> ApiResult {
    let key = api.services.keys.get(&caller.access, id.0).await?;
    reply(&caller, &api, key)
}

/// Rotate a key: a new secret, the same id, project, label and scopes.
#[utoipa::path(tag = "api keys", params(("api_key_id" = String, Path)), request_body = RotateKey,
    responses((status = 200, body = NewKeyBody)))]
#[put("/api-keys/{api_key_id}")]
async fn rotate(id: ApiPath<KeyId>, sent: IdempotentJson<RotateKey>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: RotateKey { grace_period_seconds, reason } } = sent;
    let rotation = Rotation { grace_period_seconds, reason };
    let (key, secret) = api.services.keys.rotate(&caller.access, id.0, rotation).await?;
    reply_with_secret(&caller, &api, key, secret.as_ref())
}

/// Change a key's label, and its expiration if given.
#[utoipa::path(tag = "api keys", params(("api_key_id" = String, Path)), request_body = UpdateKey,
    responses((status = 200, body = KeyBody)))]
#[patch("/api-keys/{api_key_id}")]
async fn update(id: ApiPath<KeyId>, sent: IdempotentJson<UpdateKey>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: UpdateKey { name, expires_at } } = sent;
    let key = api.services.keys.update(&caller.access, id.0, name, expires_at.into()).await?;
    reply(&caller, &api, key)
}

/// Revoke a key, from the next request on.
#[utoipa::path(tag = "api keys", params(("api_key_id" = String, Path)), responses((status = 200, body = KeyBody)))]
#[delete("/api-keys/{api_key_id}")]
async fn revoke(caller: Caller, id: ApiPath<KeyId>, api: web::Data<Api>) -> ApiResult {
    let key = api.services.keys.revoke(&caller.access, id.0).await?;
    reply(&caller, &api, key)
}
