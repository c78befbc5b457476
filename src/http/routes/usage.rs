//! A project's usage: endpoint 8.

use actix_web::{HttpRequest, HttpResponse, get, web};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::clock_rng::Timestamp;
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::http::content_negotiation::preferred;
use crate::http::extractors::{ApiParams, ApiPath};
use crate::http::response::{ApiResult, Mount, Time};
use crate::http::response_budget::BUILT_FROM_TEXT;
use crate::http::{Api, authentication::Caller};
use crate::ids::{ProjectId, UsageId};
use crate::service::usage::{Bucket, Dimension, Group, Outcome, Report, ReportQuery, ReportedSums, Width, seconds};

pub fn routes(config: &mut ServiceConfig) {
    config.service(get);
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UsageParams {
    /// Start of the window, RFC 3339 with an offset, inclusive; absent: 30 days before its end.
    #[param(value_type = Option<String>, format = DateTime)]
    start_time: Option<Timestamp>,
    /// End of the window, exclusive; absent: now.
    #[param(value_type = Option<String>, format = DateTime)]
    end_time: Option<Timestamp>,
    /// `1m`, `1h` or `1d`; absent: one day, or more if the report would exceed 1,500 buckets.
    bucket_width: Option<String>,
    /// Some of `model`, `api_key_id`, `endpoint`, separated by commas.
    group_by: Option<String>,
}

// Named differently from the usage of a chat, because OpenAPI schemas share one namespace.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = ProjectUsage)]
pub struct UsageBody {
    project_id: String,
    start_time: Time,
    end_time: Time,
    /// `1m`, `1h`, `1d`, or a number of days such as `7d`.
    bucket_width: String,
    #[serde(flatten)]
    totals: Figures,
    storage: Storage,
    /// The totals by group, if groups were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<UsageResult>>,
    /// Every bucket of the window, in order of time, including empty ones.
    data: Vec<BucketBody>,
    has_more: bool,
}

/// Usage figures.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Figures {
    /// All requests, successful or not.
    requests: u64,
    requests_by_outcome: Outcomes,
    /// Requests whose tokens are estimated, because the server of an upstream model has not told their number. Absent if
    /// there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated_requests: Option<u64>,
    tokens: Tokens,
    image_generations: u64,
    audio_processing: Audio,
}

#[derive(Serialize, utoipa::ToSchema)]
struct Outcomes {
    succeeded: u64,
    /// 4xx other than 429.
    refused: u64,
    /// 429.
    limited: u64,
    /// 5xx.
    failed: u64,
    /// The client disconnected early.
    abandoned: u64,
}

#[derive(Serialize, utoipa::ToSchema)]
struct Tokens {
    input: u64,
    /// The cached part of `input`.
    cached: u64,
    output: u64,
    /// `input` and `output`.
    total: u64,
}

#[derive(Serialize, utoipa::ToSchema)]
struct Audio {
    /// `input_seconds` and `output_seconds`.
    seconds: f64,
    /// Audio that was sent: transcriptions and translations.
    input_seconds: f64,
    /// Audio that was generated: speech.
    output_seconds: f64,
}

#[derive(Serialize, utoipa::ToSchema)]
struct Storage {
    /// Bytes of content stored now.
    bytes: u64,
    /// Bytes of content stored at the end of the window.
    bytes_at_end: u64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct BucketBody {
    object: &'static str,
    start_time: Time,
    end_time: Time,
    /// One per group with usage; exactly one without `group_by`.
    results: Vec<UsageResult>,
}

/// Figures of one group.
#[derive(Serialize, utoipa::ToSchema)]
pub struct UsageResult {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_key_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(flatten)]
    figures: Figures,
}

impl From<&ReportedSums> for Figures {
    fn from(sums: &ReportedSums) -> Self {
        let count = |outcome: Outcome| sums.requests[outcome as usize];
        let amounts = &sums.amounts;
        Self {
            requests: sums.total_requests(),
            requests_by_outcome: Outcomes {
                succeeded: count(Outcome::Succeeded),
                refused: count(Outcome::Refused),
                limited: count(Outcome::Limited),
                failed: count(Outcome::Failed),
                abandoned: count(Outcome::Abandoned),
            },
            estimated_requests: Some(sums.estimated_requests).filter(|count| *count > 0),
            tokens: Tokens {
                input: amounts.input,
                cached: amounts.cached,
                output: amounts.output,
                total: amounts.tokens(),
            },
            image_generations: amounts.images,
            audio_processing: Audio {
                seconds: seconds(amounts.audio_millis),
                input_seconds: seconds(sums.audio.input),
                output_seconds: seconds(sums.audio.output),
            },
        }
    }
}

fn width(text: Option<&str>) -> Result<Option<Width>> {
    Ok(Some(match text {
        None => return Ok(None),
        Some("1m") => Width::Minute,
        Some("1h") => Width::Hour,
        Some("1d") => Width::Day,
        Some(other) => {
            let text = format!("'bucket_width' is '{}'; it must be 1m, 1h or 1d.", shorten(other));
            return Err(Error::invalid("bucket_width", text));
        }
    }))
}

fn result((group, sums): (Group, ReportedSums), by: &[Dimension]) -> UsageResult {
    let Group { model, api_key, endpoint } = group;
    // If usage is grouped by model, requests without a model are one group, with a null model.
    let model = by.contains(&Dimension::Model).then_some(model);
    UsageResult { model, api_key_id: api_key, endpoint, figures: Figures::from(&sums) }
}

fn body(project: ProjectId, report: Report, by: &[Dimension], mount: Mount) -> UsageBody {
    let results = |found: Vec<(Group, ReportedSums)>| found.into_iter().map(|one| result(one, by)).collect();
    let bucket = |bucket: Bucket| BucketBody {
        object: "bucket",
        start_time: mount.time(bucket.start),
        end_time: mount.time(bucket.end),
        results: results(bucket.results),
    };
    UsageBody {
        project_id: project.to_string(),
        start_time: mount.time(report.start),
        end_time: mount.time(report.end),
        bucket_width: report.width.to_string(),
        totals: Figures::from(&report.totals),
        storage: Storage { bytes: report.storage_now, bytes_at_end: report.storage_at_end },
        groups: (!by.is_empty()).then(|| results(report.groups)),
        data: report.buckets.into_iter().map(bucket).collect(),
        has_more: false,
    }
}

/// The buckets as CSV: a line for each result.
fn csv(report: Report) -> Result<HttpResponse> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for bucket in report.buckets {
        for (group, sums) in bucket.results {
            let row = CsvRow::new((bucket.start, bucket.end), group, &sums);
            writer.serialize(row).map_err(Error::internal)?;
        }
    }
    let text = writer.into_inner().map_err(|error| Error::internal(error.to_string()))?;
    Ok(HttpResponse::Ok().content_type("text/csv; charset=utf-8").body(text))
}

#[derive(Serialize)]
struct CsvRow {
    start_time: Timestamp,
    end_time: Timestamp,
    model: Option<String>,
    api_key_id: Option<String>,
    endpoint: Option<String>,
    requests: u64,
    succeeded: u64,
    refused: u64,
    limited: u64,
    failed: u64,
    abandoned: u64,
    input_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    image_generations: u64,
    audio_seconds: f64,
    audio_input_seconds: f64,
    audio_output_seconds: f64,
}

impl CsvRow {
    fn new((start_time, end_time): (Timestamp, Timestamp), group: Group, sums: &ReportedSums) -> Self {
        let [succeeded, refused, limited, failed, abandoned] = sums.requests;
        let amounts = &sums.amounts;
        Self {
            start_time,
            end_time,
            model: group.model,
            api_key_id: group.api_key,
            endpoint: group.endpoint,
            requests: sums.total_requests(),
            succeeded,
            refused,
            limited,
            failed,
            abandoned,
            input_tokens: amounts.input,
            cached_tokens: amounts.cached,
            output_tokens: amounts.output,
            image_generations: amounts.images,
            audio_seconds: seconds(amounts.audio_millis),
            audio_input_seconds: seconds(sums.audio.input),
            audio_output_seconds: seconds(sums.audio.output),
        }
    }
}

/// Read a project's usage in a window: totals, and buckets. As CSV with `Accept: text/csv`.
#[utoipa::path(tag = "usage", params(("project_id" = String, Path), UsageParams), responses((
    status = 200,
    description = "As CSV, with `Accept: text/csv`, a line for each bucket and group.",
    content((UsageBody = "application/json"), (String = "text/csv")),
)))]
#[get("/projects/{project_id}/usage")]
async fn get(
    caller: Caller,
    id: ApiPath<ProjectId>,
    params: ApiParams<UsageParams>,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    let UsageParams { start_time, end_time, bucket_width, group_by } = params.0;
    let by = group_by.as_deref().map(Dimension::parse_list).transpose()?.unwrap_or_default();
    let query =
        ReportQuery { start: start_time, end: end_time, width: width(bucket_width.as_deref())?, group_by: by.clone() };
    let read = |limit| api.services.usage.report(&caller.access, id.0, query.clone(), limit);
    let report = caller.room.read(BUILT_FROM_TEXT, read).await?;
    if preferred(&request, &["application/json", "text/csv"]) == "text/csv" {
        return csv(report);
    }
    let body = body(id.0, report, &by, caller.mount);
    Ok(caller.mount.result(UsageId::generate(&*api.clock_rng), "page", body))
}
