//! The audit log.

use actix_web::{get, web};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::http::input::{ApiParams, loose};
use crate::http::reply::{Head, List, Reply, Time};
use crate::http::{Api, caller::Caller};
use crate::service::audit::{AuditEvent, AuditFilter};
use crate::service::page::PageRequest;

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListAudit {
    /// Whose events; absent: the whole installation's, which needs the scope `admin`.
    project_id: Option<String>,
    /// Most records in a page: 1–100, 20 if absent.
    #[serde(default, deserialize_with = "loose")]
    limit: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// The last id of the page before, as OpenAI's clients send it.
    after: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct AuditBody {
    at: Time,
    project_id: String,
    /// The key that did it; null for the server itself.
    actor: Option<String>,
    /// What was done, for example `api_key.rotated`.
    action: String,
    /// The id of what it was done to.
    target: String,
    /// Particulars: the reason, old and new values.
    #[schema(value_type = Option<Object>)]
    detail: Option<Box<RawValue>>,
}

/// List audit events, newest first.
#[utoipa::path(tag = "audit", params(ListAudit), responses((status = 200, body = [AuditBody])))]
#[get("/audit-events")]
pub async fn list(caller: Caller, params: ApiParams<ListAudit>, api: web::Data<Api>) -> Reply {
    let ListAudit { project_id, limit, cursor, after } = params.0;
    let project = project_id.as_deref().map(super::api_keys::project).transpose()?;
    let filter = AuditFilter { project };
    let page = api.audit.list(&caller.access, filter, PageRequest { limit, cursor, after }).await?;
    let item = |event: AuditEvent| {
        let head = Head { id: event.id, object: "audit_event", state: None };
        caller.mount.item(
            head,
            AuditBody {
                at: caller.mount.time(event.at),
                project_id: event.project.to_string(),
                actor: event.actor.map(|key| key.to_string()),
                action: event.action,
                target: event.target,
                detail: event.detail.and_then(|text| RawValue::from_string(text).ok()),
            },
        )
    };
    caller.list(api.list_id(), List::new(page.items.into_iter().map(item).collect(), page.next_cursor))
}
