//! A project's limits: endpoint 7, and reading them.

use actix_web::{get, patch, web};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::http::extractors::{ApiPath, nullable};
use crate::http::response::{ApiResult, Head, Mount, Time};
use crate::http::{Api, authentication::Caller, idempotent_body::IdempotentJson};
use crate::ids::ProjectId;
use crate::service::limits::{LimitsPatch, ProjectLimits, QuotasPatch, RatesPatch};
use crate::service::writes::patch::Patch;
use crate::storage::limits::{Quotas, Rates};

pub fn routes(config: &mut ServiceConfig) {
    config.service(get).service(update);
}

/// Absent fields are unchanged; null removes a limit.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateLimits {
    /// Requests per minute, 1–1,000,000.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    requests_per_minute: Option<Option<i64>>,
    /// Burst size: 1 to 10 times the rate; the rate itself if not set.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    burst_limit: Option<Option<i64>>,
    /// Tokens per minute, prompts and completions together.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    tokens_per_minute: Option<Option<i64>>,
    /// Seconds of audio per minute, sent and generated together.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    audio_seconds_per_minute: Option<Option<i64>>,
    /// Tokens in a calendar month (UTC).
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    token_budget: Option<Option<i64>>,
    /// The highest limits that the project can set itself. Needs the scope `admin`.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<UpdateRates>)]
    ceiling: Option<Option<UpdateRates>>,
    /// The project's quotas. Needs the scope `admin`; null restores the defaults.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<UpdateQuotas>)]
    quotas: Option<Option<UpdateQuotas>>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateRates {
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    requests_per_minute: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    burst_limit: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    tokens_per_minute: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    audio_seconds_per_minute: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    token_budget: Option<Option<i64>>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateQuotas {
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    api_keys: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    conversations: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    agents: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    files: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    fine_tuning_jobs: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    responses: Option<Option<i64>>,
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<i64>)]
    storage_bytes: Option<Option<i64>>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct LimitsBody {
    project_id: String,
    #[serde(flatten)]
    own: RatesBody,
    ceiling: RatesBody,
    /// Effective limits: the project's own, capped by the ceiling.
    effective: RatesBody,
    quotas: HeldBody,
    /// Current usage of the quotas.
    holds: HeldBody,
    /// Tokens used in this calendar month, which `token_budget` bounds.
    tokens_this_month: u64,
    updated_at: Option<Time>,
}

/// Null means no limit.
#[derive(Serialize, utoipa::ToSchema)]
struct RatesBody {
    requests_per_minute: Option<u64>,
    burst_limit: Option<u64>,
    tokens_per_minute: Option<u64>,
    audio_seconds_per_minute: Option<u64>,
    token_budget: Option<u64>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct HeldBody {
    api_keys: u64,
    conversations: u64,
    agents: u64,
    files: u64,
    fine_tuning_jobs: u64,
    /// Stored responses.
    responses: u64,
    storage_bytes: u64,
}

impl From<UpdateRates> for RatesPatch {
    fn from(requested: UpdateRates) -> Self {
        Self {
            requests_per_minute: requested.requests_per_minute.into(),
            burst_limit: requested.burst_limit.into(),
            tokens_per_minute: requested.tokens_per_minute.into(),
            audio_seconds_per_minute: requested.audio_seconds_per_minute.into(),
            token_budget: requested.token_budget.into(),
        }
    }
}

impl From<UpdateQuotas> for QuotasPatch {
    fn from(requested: UpdateQuotas) -> Self {
        Self {
            api_keys: requested.api_keys.into(),
            conversations: requested.conversations.into(),
            agents: requested.agents.into(),
            files: requested.files.into(),
            jobs: requested.fine_tuning_jobs.into(),
            responses: requested.responses.into(),
            bytes: requested.storage_bytes.into(),
        }
    }
}

impl From<UpdateLimits> for LimitsPatch {
    fn from(requested: UpdateLimits) -> Self {
        let own = RatesPatch {
            requests_per_minute: requested.requests_per_minute.into(),
            burst_limit: requested.burst_limit.into(),
            tokens_per_minute: requested.tokens_per_minute.into(),
            audio_seconds_per_minute: requested.audio_seconds_per_minute.into(),
            token_budget: requested.token_budget.into(),
        };
        let ceiling = Patch::from(requested.ceiling).map(RatesPatch::from);
        let quotas = Patch::from(requested.quotas).map(QuotasPatch::from);
        Self { own, ceiling, quotas }
    }
}

impl From<Rates> for RatesBody {
    fn from(rates: Rates) -> Self {
        let Rates { requests_per_minute, burst_limit, tokens_per_minute, audio_seconds_per_minute, token_budget } =
            rates;
        Self { requests_per_minute, burst_limit, tokens_per_minute, audio_seconds_per_minute, token_budget }
    }
}

fn quotas(quotas: Quotas) -> HeldBody {
    HeldBody {
        api_keys: quotas.api_keys.unwrap_or_default(),
        conversations: quotas.conversations.unwrap_or_default(),
        agents: quotas.agents.unwrap_or_default(),
        files: quotas.files.unwrap_or_default(),
        fine_tuning_jobs: quotas.jobs.unwrap_or_default(),
        responses: quotas.responses.unwrap_or_default(),
        storage_bytes: quotas.bytes.unwrap_or_default(),
    }
}

fn reply(caller: &Caller, limits: ProjectLimits) -> ApiResult {
    let head = Head { id: limits.project, object: "organization.project.rate_limits", state: None };
    caller.reply(head, body(limits, caller.mount))
}

fn body(limits: ProjectLimits, mount: Mount) -> LimitsBody {
    let held = limits.quota_usage;
    LimitsBody {
        project_id: limits.project.to_string(),
        // A burst that was not set follows the rate.
        own: Rates { burst_limit: limits.own.burst_limit.or(limits.own.requests_per_minute), ..limits.own }.into(),
        ceiling: limits.ceiling.into(),
        effective: limits.effective.into(),
        quotas: quotas(limits.quotas),
        holds: HeldBody {
            api_keys: held.api_keys,
            conversations: held.conversations,
            agents: held.agents,
            files: held.files,
            fine_tuning_jobs: held.jobs,
            responses: held.responses,
            storage_bytes: held.bytes,
        },
        tokens_this_month: limits.tokens_this_month,
        updated_at: limits.updated_at.map(|at| mount.time(at)),
    }
}

/// Read a project's limits, quotas and quota usage.
#[utoipa::path(tag = "limits", params(("project_id" = String, Path)), responses((status = 200, body = LimitsBody)))]
#[get("/projects/{project_id}/rate-limits")]
async fn get(caller: Caller, id: ApiPath<ProjectId>, api: web::Data<Api>) -> ApiResult {
    let limits = api.services.limits.get(&caller.access, id.0).await?;
    reply(&caller, limits)
}

/// Change a project's limits, from the next request on.
#[utoipa::path(tag = "limits", params(("project_id" = String, Path)), request_body = UpdateLimits,
    responses((status = 200, body = LimitsBody)))]
#[patch("/projects/{project_id}/rate-limits")]
async fn update(id: ApiPath<ProjectId>, sent: IdempotentJson<UpdateLimits>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body } = sent;
    let limits = api.services.limits.update(&caller.access, id.0, body.into()).await?;
    reply(&caller, limits)
}
