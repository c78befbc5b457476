//! The audit log.

use actix_web::http::header;
use actix_web::web::{Bytes, Data};
use actix_web::{HttpRequest, HttpResponse, get};
use futures_util::{TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa_actix_web::service_config::ServiceConfig;

use crate::clock_rng::Timestamp;
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::http::content_negotiation::preferred;
use crate::http::extractors::{ApiParams, lenient};
use crate::http::response::{ApiResult, Head, Item, List, Mount, Time};
use crate::http::{Api, authentication::Caller};
use crate::service::audit::{AuditEvent, AuditFilter};
use crate::service::export::{Export, Format};
use crate::service::pagination::PageRequest;

pub fn routes(config: &mut ServiceConfig) {
    config.service(list);
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListAudit {
    /// Project whose events are listed; absent: all events, which needs the scope `admin`.
    project_id: Option<String>,
    /// Only events caused by this key.
    actor: Option<String>,
    /// An action such as `api_key.rotated`, or a resource such as `api_key` for all its actions.
    action: Option<String>,
    /// Only events on the resource with this id.
    target: Option<String>,
    /// RFC 3339 time with an offset, inclusive.
    #[param(value_type = Option<String>, format = DateTime)]
    start_time: Option<Timestamp>,
    /// RFC 3339 time with an offset, exclusive.
    #[param(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
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
pub struct AuditBody {
    at: Time,
    project_id: String,
    /// The key that caused it; null for the server itself.
    actor: Option<String>,
    /// The action, for example `api_key.rotated`.
    action: String,
    /// The id of the affected resource.
    target: String,
    /// Details: the reason, old and new values.
    #[schema(value_type = Option<Object>)]
    detail: Option<Box<RawValue>>,
}

impl ListAudit {
    fn into_parts(self) -> Result<(AuditFilter, PageRequest)> {
        let actor = self.actor.map(|text| text.parse().map_err(|_| bad_actor(&text))).transpose()?;
        let filter = AuditFilter {
            project: self.project_id.as_deref().map(crate::http::resource_ids::parse_project_id).transpose()?,
            actor,
            action: self.action,
            target: self.target,
            start: self.start_time,
            end: self.end_time,
        };
        Ok((filter, PageRequest { limit: self.limit, cursor: self.cursor, after: self.after }))
    }
}

fn bad_actor(text: &str) -> Error {
    Error::invalid("actor", format!("'actor' is '{}'; it must be the id of an API key (key_…).", shorten(text)))
}

fn item(event: AuditEvent, mount: Mount) -> Item<AuditBody> {
    let body = AuditBody {
        at: mount.time(event.at),
        project_id: event.project.to_string(),
        actor: event.actor.map(|key| key.to_string()),
        action: event.action,
        target: event.target,
        detail: event.detail.and_then(|text| RawValue::from_string(text).ok()),
    };
    mount.item(Head { id: event.id, object: "audit_event", state: None }, body)
}

/// List audit events, newest first. A page ends after scanning 10,000 events without a match, so it may be short or
/// empty and still have a `next_cursor`. `Accept: text/csv` or `application/jsonl` exports all matching events, without
/// pages.
#[utoipa::path(tag = "audit", params(ListAudit), responses((status = 200, content(
    ([AuditBody] = "application/json"), (String = "text/csv"), (String = "application/jsonl")))))]
#[get("/audit-events")]
async fn list(request: HttpRequest, caller: Caller, params: ApiParams<ListAudit>, api: Data<Api>) -> ApiResult {
    let (filter, page) = params.0.into_parts()?;
    let kind = preferred(&request, &["application/json", "text/csv", "application/jsonl", "application/x-ndjson"]);
    let format = match kind {
        "text/csv" => Format::Csv,
        "application/jsonl" | "application/x-ndjson" => Format::Jsonl,
        _ => {
            let page = api.services.audit.list(&caller.access, filter, page).await?;
            let data = page.items.into_iter().map(|event| item(event, caller.mount)).collect();
            return caller.list(api.list_id(), List::new(data, page.next_cursor));
        }
    };
    unpaged(&page, kind)?;
    Ok(export(api.services.audit.export(&caller.access, filter, format).await?, kind))
}

/// An export has no pages, so a limit is rejected instead of ignored.
fn unpaged(page: &PageRequest, kind: &str) -> Result<()> {
    let PageRequest { limit, cursor, after } = page;
    let given = [("limit", limit.is_some()), ("cursor", cursor.is_some()), ("after", after.is_some())];
    given.into_iter().find(|(_, given)| *given).map_or(Ok(()), |(name, _)| {
        Err(Error::invalid(
            name,
            format!(
                "'{name}' cannot be combined with 'Accept: {kind}', which exports all matching events. Leave it out."
            ),
        ))
    })
}

fn export(export: Export, kind: &'static str) -> HttpResponse {
    let rows = stream::try_unfold(export, |mut export: Export| async move {
        let rows = export.next().await?;
        Ok::<_, Error>(rows.map(|rows| (Bytes::from(rows), export)))
    });
    let rows = rows.inspect_err(|error| tracing::warn!(%error, "an export of the audit log broke off"));
    let name = if kind == "text/csv" { "audit-events.csv" } else { "audit-events.jsonl" };
    HttpResponse::Ok()
        .content_type(format!("{kind}; charset=utf-8"))
        .insert_header((header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")))
        .streaming(Box::pin(rows))
}
