//! Batches, in OpenAI's format.

use actix_web::web::Data;
use actix_web::{get, post};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, value::RawValue};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::clock_rng::Timestamp;
use crate::display::shorten;
use crate::error::{Error, Result};
use crate::http::extractors::{ApiParams, ApiPath, object_text};
use crate::http::idempotent_body::{IdempotentJson, Nothing};
use crate::http::page_params::ProjectPaging;
use crate::http::resource_ids::{parse_field_id, parse_project_id};
use crate::http::response::{ApiResult, Head, Item, List, Mount};
use crate::http::{Api, authentication::Caller};
use crate::ids::BatchId;
use crate::service::batches::{Batch, BatchEndpoint, BatchError, BatchRecord, BatchState, NewBatch};

/// The only completion window, as in OpenAI's API.
const WINDOW: &str = "24h";

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(cancel);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateBatch {
    /// The project that owns the batch; absent: the key's own project.
    project_id: Option<String>,
    /// A file with the purpose `batch`: JSON lines with `custom_id`, `method`, `url` and `body`.
    input_file_id: String,
    /// `/v1/chat/completions`, `/v1/responses`, `/v1/completions` or `/v1/embeddings`.
    endpoint: String,
    /// Always `24h`.
    completion_window: String,
    /// Application-defined metadata, at most 16 KiB.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// Not supported: files stay until they are deleted.
    #[schema(value_type = Option<Object>)]
    output_expires_after: Option<Value>,
}

impl CreateBatch {
    fn into_new(self) -> Result<NewBatch> {
        if self.completion_window != WINDOW {
            let window = shorten(&self.completion_window);
            let text = format!("'completion_window' is '{window}'; it must be '{WINDOW}'.");
            return Err(Error::invalid("completion_window", text));
        }
        if self.output_expires_after.is_some() {
            let text = "'output_expires_after' is not supported: files stay until they are deleted. Leave it out.";
            return Err(Error::invalid("output_expires_after", text));
        }
        Ok(NewBatch {
            project: self.project_id.as_deref().map(parse_project_id).transpose()?,
            endpoint: BatchEndpoint::from_path(&self.endpoint)?,
            input_file: parse_field_id(&self.input_file_id, "input_file_id")?,
            metadata: self.metadata.map(object_text),
        })
    }
}

/// Times are Unix seconds, as in OpenAI's API.
#[derive(Serialize, utoipa::ToSchema)]
pub struct BatchBody {
    project_id: String,
    endpoint: &'static str,
    /// Why the batch failed; null otherwise.
    errors: Option<BatchErrors>,
    input_file_id: String,
    completion_window: &'static str,
    /// The responses with a status below 400; null until the batch has ended, or without any.
    output_file_id: Option<String>,
    /// The other responses, and the requests that were not run.
    error_file_id: Option<String>,
    created_at: i64,
    in_progress_at: Option<i64>,
    expires_at: i64,
    finalizing_at: Option<i64>,
    completed_at: Option<i64>,
    failed_at: Option<i64>,
    expired_at: Option<i64>,
    cancelling_at: Option<i64>,
    cancelled_at: Option<i64>,
    request_counts: RequestCounts,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct BatchErrors {
    /// Always `list`.
    object: &'static str,
    data: Vec<BatchErrorBody>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct BatchErrorBody {
    code: String,
    message: String,
    param: Option<String>,
    /// The line of the input, counted from 1.
    line: Option<u32>,
}

/// The number of requests, and of those with a result.
#[derive(Serialize, utoipa::ToSchema)]
struct RequestCounts {
    total: u32,
    completed: u32,
    failed: u32,
}

fn head(batch: &Batch) -> Head<BatchId> {
    Head { id: batch.id, object: "batch", state: Some(batch.record.state.as_str()) }
}

fn body(batch: Batch) -> BatchBody {
    let BatchRecord { project, endpoint, input_file, metadata, state, output_file, error_file, times, .. } =
        batch.record;
    let BatchRecord { errors, total, completed, failed, .. } = batch.record;
    let seconds = |time: Option<Timestamp>| time.map(Timestamp::as_seconds);
    let ended_as = |ended| seconds(times.ended.filter(|_| state == ended));
    BatchBody {
        project_id: project.to_string(),
        endpoint: endpoint.path(),
        errors: body_of_errors(errors),
        input_file_id: input_file.to_string(),
        completion_window: WINDOW,
        output_file_id: output_file.map(|file| file.to_string()),
        error_file_id: error_file.map(|file| file.to_string()),
        created_at: times.created.as_seconds(),
        in_progress_at: seconds(times.in_progress),
        expires_at: times.expires.as_seconds(),
        finalizing_at: seconds(times.finalizing),
        completed_at: ended_as(BatchState::Completed),
        failed_at: ended_as(BatchState::Failed),
        expired_at: ended_as(BatchState::Expired),
        cancelling_at: seconds(times.cancelling),
        cancelled_at: ended_as(BatchState::Cancelled),
        request_counts: RequestCounts { total, completed, failed },
        metadata: metadata.and_then(|text| RawValue::from_string(text).ok()),
    }
}

fn body_of_errors(errors: Vec<BatchError>) -> Option<BatchErrors> {
    let body = |BatchError { code, message, param, line }| BatchErrorBody { code, message, param, line };
    (!errors.is_empty()).then(|| BatchErrors { object: "list", data: errors.into_iter().map(body).collect() })
}

fn item(batch: Batch, mount: Mount) -> Item<BatchBody> {
    mount.item(head(&batch), body(batch))
}

fn reply(caller: &Caller, batch: Batch) -> ApiResult {
    caller.reply(head(&batch), body(batch))
}

/// Create a batch: requests that are run in the background, with lower priority than others.
///
/// The input is validated first. The results become files when the batch ends.
#[utoipa::path(tag = "batches", request_body = CreateBatch, responses((status = 200, body = BatchBody)))]
#[post("/batches")]
async fn create(sent: IdempotentJson<CreateBatch>, api: Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body } = sent;
    let batch = api.services.batches.create(&caller.access, body.into_new()?).await?;
    reply(&caller, batch)
}

/// List a project's batches, newest first.
#[utoipa::path(tag = "batches", params(ProjectPaging), responses((status = 200, body = [BatchBody])))]
#[get("/batches")]
async fn list(caller: Caller, params: ApiParams<ProjectPaging>, api: Data<Api>) -> ApiResult {
    let (project, page) = params.0.into_parts()?;
    let page = api.services.batches.list(&caller.access, project, page).await?;
    let data = page.items.into_iter().map(|batch| item(batch, caller.mount)).collect();
    caller.list(api.list_id(), List::new(data, page.next_cursor))
}

/// Read a batch.
#[utoipa::path(tag = "batches", params(("batch_id" = String, Path)), responses((status = 200, body = BatchBody)))]
#[get("/batches/{batch_id}")]
async fn get(caller: Caller, id: ApiPath<BatchId>, api: Data<Api>) -> ApiResult {
    let batch = api.services.batches.get(&caller.access, id.0).await?;
    reply(&caller, batch)
}

/// Cancel a batch that has not ended. Requests that run are stopped; results that exist become files.
#[utoipa::path(tag = "batches", params(("batch_id" = String, Path)), responses((status = 200, body = BatchBody)))]
#[post("/batches/{batch_id}/cancel")]
async fn cancel(id: ApiPath<BatchId>, sent: IdempotentJson<Nothing>, api: Data<Api>) -> ApiResult {
    let batch = api.services.batches.cancel(&sent.caller.access, id.0).await?;
    reply(&sent.caller, batch)
}
