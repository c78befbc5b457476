//! Fine-tuning jobs (endpoint 9 and the rest of OpenAI's resource).

use actix_web::web::Data;
use actix_web::{get, patch, post};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::hyperparameters::{Hyperparameters, Method, MethodBody, ParametersBody};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::clock_rng::Timestamp;
use crate::error::{Error, Result};
use crate::http::extractors::{ApiParams, ApiPath, nullable, object_text};
use crate::http::page_params::{Paging, ProjectPaging};
use crate::http::resource_ids::{parse_field_id, parse_project_id};
use crate::http::response::{ApiResult, Head, Item, List, Mount, Time};
use crate::http::{
    Api,
    authentication::Caller,
    idempotent_body::{IdempotentJson, Nothing},
};
use crate::ids::JobId;
use crate::service::fine_tuning::NewJob;
use crate::service::fine_tuning::{Job, JobEvent, JobPatch};
use crate::service::patch::Patch;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(update).service(cancel).service(events);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateJob {
    /// The model to train, one of `GET /models`.
    model: String,
    /// Id of the file with the examples.
    training_file: String,
    /// Id of a file with examples that are not trained on.
    validation_file: Option<String>,
    /// The deprecated location of `method.supervised.hyperparameters`.
    hyperparameters: Option<Hyperparameters>,
    /// How to train; `supervised` is the only method.
    method: Option<Method>,
    /// Part of the trained model's name, 1–64 characters.
    suffix: Option<String>,
    /// 0–2,147,483,647; absent: random.
    seed: Option<i64>,
    /// Descriptive label, 1–256 characters.
    #[schema(min_length = 1, max_length = 256)]
    name: Option<String>,
    /// Application-defined metadata.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// None is supported.
    #[schema(value_type = Option<Vec<Object>>)]
    integrations: Option<Vec<IgnoredAny>>,
    /// The project that owns the job; absent: the key's own project.
    project_id: Option<String>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateJob {
    /// New label, 1–256 characters; null clears it, absent keeps it.
    #[schema(min_length = 1, max_length = 256)]
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<String>)]
    name: Option<Option<String>>,
    /// New metadata; null clears it, absent keeps it.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<Object>)]
    metadata: Option<Option<Map<String, Value>>>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct JobBody {
    name: Option<String>,
    project_id: String,
    /// The project, under OpenAI's name for it.
    organization_id: String,
    model: String,
    /// The trained model; null until the job has succeeded.
    fine_tuned_model: Option<String>,
    training_file: String,
    validation_file: Option<String>,
    result_files: Vec<String>,
    hyperparameters: ParametersBody,
    method: MethodBody,
    suffix: Option<String>,
    seed: u32,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Box<RawValue>>,
    integrations: Vec<String>,
    trained_tokens: Option<u64>,
    error: Option<JobErrorBody>,
    /// Unix seconds, as in OpenAI's API.
    created_at: i64,
    updated_at: Time,
    estimated_finish: Option<i64>,
    /// Unix seconds; null until the job ends.
    finished_at: Option<i64>,
}

/// Why the job failed.
#[derive(Serialize, utoipa::ToSchema)]
struct JobErrorBody {
    code: String,
    message: String,
    param: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct JobEventBody {
    r#type: &'static str,
    /// `info`, `warn` or `error`.
    level: &'static str,
    message: String,
    /// Unix seconds, as in OpenAI's API.
    created_at: i64,
    #[schema(value_type = Option<Object>)]
    data: Option<Box<RawValue>>,
}

fn head(job: &Job) -> Head<JobId> {
    Head { id: job.id, object: "fine_tuning.job", state: Some(job.state.as_str()) }
}

fn body(job: Job, mount: Mount) -> JobBody {
    JobBody {
        name: job.name,
        project_id: job.project.to_string(),
        organization_id: job.project.to_string(),
        model: job.model,
        fine_tuned_model: job.fine_tuned_model,
        training_file: job.training_file.to_string(),
        validation_file: job.validation_file.map(|file| file.to_string()),
        result_files: Vec::new(),
        hyperparameters: ParametersBody::from(job.hyperparameters),
        method: MethodBody::from(job.hyperparameters),
        suffix: job.suffix,
        seed: job.seed,
        metadata: job.metadata.and_then(|text| RawValue::from_string(text).ok()),
        integrations: Vec::new(),
        trained_tokens: job.trained_tokens,
        error: job.error.map(|error| JobErrorBody { code: error.code, message: error.message, param: error.param }),
        created_at: job.created_at.as_seconds(),
        updated_at: mount.time(job.updated_at),
        estimated_finish: None,
        finished_at: job.finished_at.map(Timestamp::as_seconds),
    }
}

fn item(job: Job, mount: Mount) -> Item<JobBody> {
    mount.item(head(&job), body(job, mount))
}

fn reply(caller: &Caller, job: Job) -> ApiResult {
    caller.reply(head(&job), body(job, caller.mount))
}

impl CreateJob {
    fn into_new(self) -> Result<NewJob> {
        if self.integrations.is_some_and(|some| !some.is_empty()) {
            let text = "'integrations' is not supported. Leave it out.";
            return Err(Error::invalid("integrations", text));
        }
        Ok(NewJob {
            project: self.project_id.as_deref().map(parse_project_id).transpose()?,
            name: self.name,
            metadata: self.metadata.map(object_text),
            training_file: parse_field_id(&self.training_file, "training_file")?,
            validation_file: self
                .validation_file
                .as_deref()
                .map(|text| parse_field_id(text, "validation_file"))
                .transpose()?,
            hyperparameters: super::hyperparameters::requested(self.hyperparameters, self.method)?,
            model: self.model,
            suffix: self.suffix,
            seed: self.seed,
        })
    }
}

/// Create a fine-tuning job. This server cannot train yet, so the job fails at once with an error that says so.
#[utoipa::path(tag = "fine-tuning", request_body = CreateJob, responses((status = 200, body = JobBody)))]
#[post("/fine_tuning/jobs")]
async fn create(sent: IdempotentJson<CreateJob>, api: Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body } = sent;
    let job = api.fine_tuning.create(&caller.access, body.into_new()?).await?;
    reply(&caller, job)
}

/// List a project's fine-tuning jobs, newest first.
#[utoipa::path(tag = "fine-tuning", params(ProjectPaging), responses((status = 200, body = [JobBody])))]
#[get("/fine_tuning/jobs")]
async fn list(caller: Caller, params: ApiParams<ProjectPaging>, api: Data<Api>) -> ApiResult {
    let (project, page) = params.0.into_parts()?;
    let page = api.services.jobs.list(&caller.access, project, page).await?;
    let data = page.items.into_iter().map(|job| item(job, caller.mount)).collect();
    caller.list(api.list_id(), List::new(data, page.next_cursor))
}

/// Read a fine-tuning job.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path)), responses((status = 200, body = JobBody)))]
#[get("/fine_tuning/jobs/{job_id}")]
async fn get(caller: Caller, id: ApiPath<JobId>, api: Data<Api>) -> ApiResult {
    let job = api.services.jobs.get(&caller.access, id.0).await?;
    reply(&caller, job)
}

/// Change a fine-tuning job's label and metadata.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path)), request_body = UpdateJob,
    responses((status = 200, body = JobBody)))]
#[patch("/fine_tuning/jobs/{job_id}")]
async fn update(id: ApiPath<JobId>, sent: IdempotentJson<UpdateJob>, api: Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: UpdateJob { name, metadata } } = sent;
    let change = JobPatch { name: name.into(), metadata: Patch::from(metadata).map(object_text) };
    let job = api.services.jobs.update(&caller.access, id.0, change).await?;
    reply(&caller, job)
}

/// Cancel a fine-tuning job that is queued or running.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path)), responses((status = 200, body = JobBody)))]
#[post("/fine_tuning/jobs/{job_id}/cancel")]
async fn cancel(id: ApiPath<JobId>, sent: IdempotentJson<Nothing>, api: Data<Api>) -> ApiResult {
    let job = api.services.jobs.cancel(&sent.caller.access, id.0).await?;
    reply(&sent.caller, job)
}

/// List a fine-tuning job's events, newest first.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path), Paging),
    responses((status = 200, body = [JobEventBody])))]
#[get("/fine_tuning/jobs/{job_id}/events")]
async fn events(caller: Caller, id: ApiPath<JobId>, paging: ApiParams<Paging>, api: Data<Api>) -> ApiResult {
    let page = api.services.jobs.events(&caller.access, id.0, paging.0.into()).await?;
    let item = |event: JobEvent| {
        let body = JobEventBody {
            r#type: "message",
            level: event.level.as_str(),
            message: event.message,
            created_at: event.at.as_seconds(),
            data: None,
        };
        caller.mount.item(Head { id: event.id, object: "fine_tuning.job.event", state: None }, body)
    };
    caller.list(api.list_id(), List::new(page.items.into_iter().map(item).collect(), page.next_cursor))
}
