//! Pulls of models: the server downloads and installs models that admins request.

use actix_web::http::StatusCode;
use actix_web::{delete, get, post, web};
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use super::models::ModelBody;
use crate::calls::model_pulls::{PlanCandidate, PlanFile, Pull, PullFailure, PullPlan, PullRequest, PullWatch};
use crate::error::{Error, Result};
use crate::http::extractors::{ApiParams, ApiPath};
use crate::http::response::{ApiResult, Head, Item, List, Mount, Time};
use crate::http::{
    Api,
    authentication::Caller,
    idempotent_body::{IdempotentJson, Nothing},
    sse,
};
use crate::ids::PullId;
use crate::service::access::Access;
use crate::service::audit::pull_log::PullEnd;

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(list).service(get).service(cancel);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullModel {
    /// A name of `GET /catalog`, or a model of another source: `hf:USER/REPO[@REVISION][:QUANT|:FILE]`,
    /// `ollama:[USER/]NAME[:TAG]`, `oci:HOST/REPOSITORY[:TAG|@DIGEST]` or `https://HOST/PATH/FILE.gguf`.
    model: String,
    /// Not for the catalog: the name in the models folder. Absent: that of the file or the repository.
    name: Option<String>,
    /// Not for the catalog: replace a model of that name, and install it even if it does not fit into memory.
    force: Option<bool>,
    /// Not for the catalog: the sha256 that the only file must have.
    sha256: Option<String>,
    /// Send the progress as server-sent events: the pull whenever it has changed, until it has ended.
    stream: Option<bool>,
    /// Only report what would be installed, and which files there are to choose from.
    dry_run: Option<bool>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct PullBody {
    /// The model as it was requested.
    model: String,
    /// The name that it gets; null until it is known.
    name: Option<String>,
    revision: Option<String>,
    license: Option<String>,
    /// What is downloaded or verified now.
    file: Option<String>,
    /// Size of all files; null until it is known.
    total_bytes: Option<u64>,
    completed_bytes: u64,
    bytes_per_second: Option<u64>,
    /// What the pull waits for, or what it does about a problem.
    message: Option<String>,
    /// Why the pull has not succeeded.
    error: Option<PullErrorBody>,
    created_at: Time,
    /// Null until the pull has ended.
    ended_at: Option<Time>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct PullErrorBody {
    code: &'static str,
    message: String,
}

impl From<PullFailure> for PullErrorBody {
    fn from(failure: PullFailure) -> Self {
        Self { code: failure.code.as_str(), message: failure.message }
    }
}

/// An event of a stream.
#[derive(Serialize)]
struct PullEvent {
    #[serde(flatten)]
    pull: PullBody,
    /// The installed model, in the last event of a pull that has succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    installed_model: Option<Item<ModelBody>>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct PullPlanBody {
    /// The model as it was requested.
    model: String,
    /// The name that it would get.
    name: String,
    /// Whether a model of that name is in the models folder.
    installed: bool,
    revision: Option<String>,
    /// As the source states it.
    license: Option<String>,
    /// Whether the license of the model must be accepted on the hub first.
    gated: bool,
    architecture: Option<String>,
    /// Number of weights.
    parameters: Option<u64>,
    context_window: Option<u32>,
    /// Size of the files.
    bytes: u64,
    /// Free space of the disk. 1 GiB of it stays free.
    disk_free_bytes: Option<u64>,
    /// Memory that the loaded model takes; null if it is not known before the download.
    memory_bytes: Option<u64>,
    /// Memory for all models.
    memory_limit_bytes: u64,
    /// Whether it fits into that memory; null if it is not known.
    fits: Option<bool>,
    files: Vec<PlanFileBody>,
    /// The GGUF files to choose from, from the largest to the smallest. A split file is one entry.
    candidates: Vec<PlanCandidateBody>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct PlanFileBody {
    name: String,
    bytes: u64,
}

#[derive(Serialize, utoipa::ToSchema)]
struct PlanCandidateBody {
    file: String,
    quantization: Option<String>,
    bytes: u64,
    chosen: bool,
    /// An estimate, except for the chosen file.
    memory_bytes: u64,
    fits: bool,
    /// Why the file cannot be installed, if it cannot.
    unsupported: Option<String>,
}

impl From<PullPlan> for PullPlanBody {
    fn from(plan: PullPlan) -> Self {
        let limit = plan.memory_limit_bytes;
        let file = |PlanFile { name, bytes }| PlanFileBody { name, bytes };
        let candidate = |one: PlanCandidate| PlanCandidateBody {
            file: one.file,
            quantization: one.quantization,
            bytes: one.bytes,
            chosen: one.is_chosen,
            memory_bytes: one.memory_bytes,
            fits: one.memory_bytes <= limit,
            unsupported: one.problem,
        };
        Self {
            model: plan.model,
            name: plan.name,
            installed: plan.installed,
            revision: plan.revision,
            license: plan.license,
            gated: plan.gated,
            architecture: plan.architecture,
            parameters: plan.parameters,
            context_window: plan.context_window,
            bytes: plan.bytes,
            disk_free_bytes: plan.disk_free_bytes,
            memory_bytes: plan.memory_bytes,
            memory_limit_bytes: limit,
            fits: plan.memory_bytes.map(|bytes| bytes <= limit),
            files: plan.files.into_iter().map(file).collect(),
            candidates: plan.candidates.into_iter().map(candidate).collect(),
        }
    }
}

fn head(pull: &Pull) -> Head<PullId> {
    Head { id: pull.id, object: "model.pull", state: Some(pull.status.state.as_str()) }
}

fn body(pull: Pull, mount: Mount) -> PullBody {
    let Pull { model, created_at, status, .. } = pull;
    PullBody {
        model,
        name: status.name,
        revision: status.revision,
        license: status.license,
        file: status.file,
        total_bytes: status.total_bytes,
        completed_bytes: status.completed_bytes,
        bytes_per_second: status.bytes_per_second,
        message: status.message,
        error: status.error.map(PullErrorBody::from),
        created_at: mount.time(created_at),
        ended_at: status.ended_at.map(|at| mount.time(at)),
    }
}

fn reply(caller: &Caller, pull: Pull) -> ApiResult {
    caller.reply(head(&pull), body(pull, caller.mount))
}

impl PullModel {
    fn request(&self) -> Result<PullRequest> {
        PullRequest::new(&self.model, self.name.clone(), self.force.unwrap_or(false), self.sha256.clone())
    }
}

/// Download a model of the catalog or of another source, and install it. Needs the scope `admin`, and a server that was
/// started with `--allow-pull`. The pull goes on when the client leaves; an equal request joins it. With `dry_run`, nothing is
/// installed, and the response says what would be.
#[utoipa::path(tag = "model-pulls", request_body = PullModel, responses(
    (status = 202, body = PullBody, description = "The pull is queued, or runs already."),
    (status = 200, description = "With `dry_run`: what would be installed. With `stream`: events.",
        content((PullPlanBody = "application/json"), (String = "text/event-stream"))),
))]
#[post("/models/pull")]
async fn create(sent: IdempotentJson<PullModel>, api: web::Data<Api>) -> ApiResult {
    let IdempotentJson { caller, body: new } = sent;
    caller.access.require_admin()?;
    let (is_streamed, is_dry_run) = (new.stream.unwrap_or(false), new.dry_run.unwrap_or(false));
    if is_dry_run {
        if is_streamed {
            return Err(Error::invalid("stream", "'stream' cannot be combined with 'dry_run'. Leave one of them out."));
        }
        let plan = api.pulls.plan(&caller.access, new.request()?).await?;
        let head = Head { id: PullId::generate(&*api.clock_rng), object: "model.pull_plan", state: None };
        return caller.reply(head, PullPlanBody::from(plan));
    }
    let watch = api.pulls.start(&caller.access, new.request()?).await?;
    if is_streamed {
        return Ok(sse::response(events(watch, api, caller.access, caller.mount)));
    }
    let mut response = reply(&caller, watch.now())?;
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

/// The events of a pull until its end.
fn events(
    watch: PullWatch,
    api: web::Data<Api>,
    access: Access,
    mount: Mount,
) -> impl Stream<Item = sse::Event> + 'static {
    stream::unfold(Some(watch), move |watch| {
        let (api, access) = (api.clone(), access.clone());
        async move {
            let mut watch = watch?;
            match tokio::time::timeout(sse::KEEP_ALIVE, watch.next()).await {
                Err(_) => Some((sse::keep_alive(), Some(watch))),
                Ok(None) => Some((sse::done(), None)),
                Ok(Some(pull)) => {
                    let event = event(pull, &api, &access, mount).await;
                    Some((sse::data(&event), Some(watch)))
                }
            }
        }
    })
}

async fn event(pull: Pull, api: &Api, access: &Access, mount: Mount) -> Item<PullEvent> {
    let installed_model = match (&pull.status.name, pull.status.state.end()) {
        (Some(name), Some(PullEnd::Succeeded)) => api.models.get(access, name).await.ok().map(|model| {
            let (head, body) = super::models::described(model);
            mount.item(head, body)
        }),
        _ => None,
    };
    mount.item(head(&pull), PullEvent { pull: body(pull, mount), installed_model })
}

/// List the pulls of this server that wait, run or have ended, newest first. The last 50 that have ended are kept until the server
/// stops.
#[utoipa::path(tag = "model-pulls", responses((status = 200, body = [PullBody])))]
#[get("/model-pulls")]
async fn list(caller: Caller, _: ApiParams<Nothing>, api: web::Data<Api>) -> ApiResult {
    let item = |pull: Pull| caller.mount.item(head(&pull), body(pull, caller.mount));
    let pulls = api.pulls.list(&caller.access)?.into_iter().map(item).collect();
    caller.list(api.list_id(), List::new(pulls, None))
}

/// Read a pull.
#[utoipa::path(tag = "model-pulls", params(("pull_id" = String, Path)), responses((status = 200, body = PullBody)))]
#[get("/model-pulls/{pull_id}")]
async fn get(caller: Caller, id: ApiPath<PullId>, _: ApiParams<Nothing>, api: web::Data<Api>) -> ApiResult {
    reply(&caller, api.pulls.get(&caller.access, id.0)?)
}

/// Cancel a pull that has not ended. What was downloaded is kept, so the next pull of the model resumes from there.
#[utoipa::path(tag = "model-pulls", params(("pull_id" = String, Path)), responses((status = 200, body = PullBody)))]
#[delete("/model-pulls/{pull_id}")]
async fn cancel(caller: Caller, id: ApiPath<PullId>, _: ApiParams<Nothing>, api: web::Data<Api>) -> ApiResult {
    reply(&caller, api.pulls.cancel(&caller.access, id.0).await?)
}
