//! Fine-tuning jobs (endpoint 9 and the rest of OpenAI's resource).

use actix_web::web::Data;
use actix_web::{get, patch, post};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::hyperparameters::{Hyperparameters, Method, MethodBody, ParametersBody, bodies, requested};
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
use crate::service::fine_tuning::{Checkpoint, Job, JobEvent, JobPatch, JobState, Progress};
use crate::service::writes::patch::Patch;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(update);
    config.service(cancel).service(pause).service(resume).service(events).service(checkpoints);
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
    /// How to train: `supervised` learns the answers of the examples, `dpo` learns preferences between two answers.
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
    /// Unix seconds; null unless the job is running.
    estimated_finish: Option<i64>,
    /// How far the training has come; null before its first step.
    progress: Option<ProgressBody>,
    /// Unix seconds; null until the job ends.
    finished_at: Option<i64>,
}

/// How far a training has come.
#[derive(Serialize, utoipa::ToSchema)]
struct ProgressBody {
    step: u32,
    /// Steps of the whole training.
    steps: u32,
    train_loss: f32,
    /// Share of the tokens to learn that the model predicts, or with `dpo` of the pairs whose preferred answer it prefers.
    train_mean_token_accuracy: f32,
    valid_loss: Option<f32>,
    valid_mean_token_accuracy: Option<f32>,
    tokens_per_second: f32,
}

impl From<Progress> for ProgressBody {
    fn from(progress: Progress) -> Self {
        Self {
            step: progress.step,
            steps: progress.steps,
            train_loss: progress.train_loss,
            train_mean_token_accuracy: progress.train_accuracy,
            valid_loss: progress.valid_loss,
            valid_mean_token_accuracy: progress.valid_accuracy,
            tokens_per_second: progress.tokens_per_second,
        }
    }
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
    /// `message`, or `metrics` with the measurements of a step in `data`.
    r#type: &'static str,
    /// `info`, `warn` or `error`.
    level: &'static str,
    message: String,
    /// Unix seconds, as in OpenAI's API.
    created_at: i64,
    #[schema(value_type = Option<Object>)]
    data: Option<Box<RawValue>>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct CheckpointBody {
    fine_tuning_job_id: String,
    fine_tuned_model_checkpoint: String,
    step_number: u32,
    metrics: CheckpointMetrics,
    /// Unix seconds, as in OpenAI's API.
    created_at: i64,
}

#[derive(Serialize, utoipa::ToSchema)]
struct CheckpointMetrics {
    step: u32,
    train_loss: f32,
    train_mean_token_accuracy: f32,
    /// Of the whole validation file.
    full_valid_loss: Option<f32>,
    full_valid_mean_token_accuracy: Option<f32>,
}

impl From<Checkpoint> for CheckpointBody {
    fn from(checkpoint: Checkpoint) -> Self {
        Self {
            fine_tuning_job_id: checkpoint.job.to_string(),
            fine_tuned_model_checkpoint: checkpoint.model,
            step_number: checkpoint.step,
            metrics: CheckpointMetrics {
                step: checkpoint.step,
                train_loss: checkpoint.train_loss,
                train_mean_token_accuracy: checkpoint.train_accuracy,
                full_valid_loss: checkpoint.valid_loss,
                full_valid_mean_token_accuracy: checkpoint.valid_accuracy,
            },
            created_at: checkpoint.created_at.as_seconds(),
        }
    }
}

/// OpenAI's clients know no paused jobs; theirs are queued then.
fn head(job: &Job, mount: Mount) -> Head<JobId> {
    let state = match (mount, job.state) {
        (Mount::OpenAi, JobState::Paused) => JobState::Queued,
        (_, state) => state,
    };
    Head { id: job.id, object: "fine_tuning.job", state: Some(state.as_str()) }
}

fn body(job: Job, mount: Mount) -> JobBody {
    let (hyperparameters, method) = bodies(job.method, job.hyperparameters);
    let progress = job.progress.filter(|_| job.state == JobState::Running);
    // Since the last report.
    let finish = progress.map(|progress| job.updated_at.as_seconds() + progress.time_left as i64);
    JobBody {
        name: job.name,
        project_id: job.project.to_string(),
        organization_id: job.project.to_string(),
        model: job.model,
        fine_tuned_model: job.fine_tuned_model,
        training_file: job.training_file.to_string(),
        validation_file: job.validation_file.map(|file| file.to_string()),
        result_files: Vec::new(),
        hyperparameters,
        method,
        suffix: job.suffix,
        seed: job.seed,
        metadata: job.metadata.and_then(|text| RawValue::from_string(text).ok()),
        integrations: Vec::new(),
        trained_tokens: job.trained_tokens,
        error: job.error.map(|error| JobErrorBody { code: error.code, message: error.message, param: error.param }),
        created_at: job.created_at.as_seconds(),
        updated_at: mount.time(job.updated_at),
        estimated_finish: finish,
        progress: job.progress.map(ProgressBody::from),
        finished_at: job.finished_at.map(Timestamp::as_seconds),
    }
}

fn item(job: Job, mount: Mount) -> Item<JobBody> {
    mount.item(head(&job, mount), body(job, mount))
}

fn reply(caller: &Caller, job: Job) -> ApiResult {
    caller.reply(head(&job, caller.mount), body(job, caller.mount))
}

impl CreateJob {
    fn into_new(self) -> Result<NewJob> {
        if self.integrations.is_some_and(|some| !some.is_empty()) {
            let text = "'integrations' is not supported. Leave it out.";
            return Err(Error::invalid("integrations", text));
        }
        let (method, hyperparameters) = requested(self.hyperparameters, self.method)?;
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
            method,
            hyperparameters,
            model: self.model,
            suffix: self.suffix,
            seed: self.seed,
        })
    }
}

/// Create a fine-tuning job, which trains a LoRA adapter of a chat model. It is queued; its model can be called once the job
/// has succeeded.
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

/// Cancel a fine-tuning job that has not ended. Its checkpoints stay.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path)), responses((status = 200, body = JobBody)))]
#[post("/fine_tuning/jobs/{job_id}/cancel")]
async fn cancel(id: ApiPath<JobId>, sent: IdempotentJson<Nothing>, api: Data<Api>) -> ApiResult {
    let job = api.services.jobs.cancel(&sent.caller.access, id.0).await?;
    reply(&sent.caller, job)
}

/// Pause a fine-tuning job that is queued or running. It keeps what it has learned.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path)), responses((status = 200, body = JobBody)))]
#[post("/fine_tuning/jobs/{job_id}/pause")]
async fn pause(id: ApiPath<JobId>, sent: IdempotentJson<Nothing>, api: Data<Api>) -> ApiResult {
    let job = api.services.jobs.pause(&sent.caller.access, id.0).await?;
    reply(&sent.caller, job)
}

/// Resume a paused fine-tuning job.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path)), responses((status = 200, body = JobBody)))]
#[post("/fine_tuning/jobs/{job_id}/resume")]
async fn resume(id: ApiPath<JobId>, sent: IdempotentJson<Nothing>, api: Data<Api>) -> ApiResult {
    let job = api.services.jobs.resume(&sent.caller.access, id.0).await?;
    reply(&sent.caller, job)
}

/// List a fine-tuning job's checkpoints, newest first: an adapter from the end of each epoch, of which the last three are
/// kept. Each can be called as a model.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path), Paging),
    responses((status = 200, body = [CheckpointBody])))]
#[get("/fine_tuning/jobs/{job_id}/checkpoints")]
async fn checkpoints(caller: Caller, id: ApiPath<JobId>, paging: ApiParams<Paging>, api: Data<Api>) -> ApiResult {
    let page = api.services.jobs.checkpoints(&caller.access, id.0, paging.0.into()).await?;
    let item = |checkpoint: Checkpoint| {
        let head = Head { id: checkpoint.id, object: "fine_tuning.job.checkpoint", state: None };
        caller.mount.item(head, CheckpointBody::from(checkpoint))
    };
    caller.list(api.list_id(), List::new(page.items.into_iter().map(item).collect(), page.next_cursor))
}

/// List a fine-tuning job's events, newest first.
#[utoipa::path(tag = "fine-tuning", params(("job_id" = String, Path), Paging),
    responses((status = 200, body = [JobEventBody])))]
#[get("/fine_tuning/jobs/{job_id}/events")]
async fn events(caller: Caller, id: ApiPath<JobId>, paging: ApiParams<Paging>, api: Data<Api>) -> ApiResult {
    let page = api.services.jobs.events(&caller.access, id.0, paging.0.into()).await?;
    let item = |event: JobEvent| {
        let body = JobEventBody {
            r#type: if event.metrics.is_some() { "metrics" } else { "message" },
            level: event.level.as_str(),
            message: event.message,
            created_at: event.at.as_seconds(),
            data: event.metrics.and_then(|text| RawValue::from_string(text).ok()),
        };
        caller.mount.item(Head { id: event.id, object: "fine_tuning.job.event", state: None }, body)
    };
    caller.list(api.list_id(), List::new(page.items.into_iter().map(item).collect(), page.next_cursor))
}
