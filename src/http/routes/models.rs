//! Models: endpoint 11 and the listing.

use actix_web::{HttpRequest, HttpResponse, delete, get, post, web};
use serde::{Deserialize, Serialize};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::images::size_text;
use crate::clock_rng::Timestamp;
use crate::engine::{ModelInfo, ModelKind};
use crate::error::{Code, Error, Result};
use crate::http::extractors::{ApiParams, lenient};
use crate::http::response::{ApiResult, Deleted, Head, List};
use crate::http::routes::anthropic_messages::api_format::is_for as is_for_anthropic;
use crate::http::{Api, authentication::Caller, idempotent_body::Nothing};
use crate::ids::ProjectId;

pub fn routes(config: &mut ServiceConfig) {
    config.service(list).service(get).service(delete).service(load).service(unload);
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct GetModel {
    /// Include context and output limits.
    #[serde(default, deserialize_with = "lenient")]
    include_limits: Option<bool>,
    /// Say whether this project may use the model.
    project_id: Option<String>,
}

#[derive(Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListModels {
    /// Include context and output limits.
    #[serde(default, deserialize_with = "lenient")]
    include_limits: Option<bool>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ModelBody {
    /// Unix seconds, as in OpenAI's API.
    created: i64,
    owned_by: String,
    architecture: String,
    /// The model that runs: this one, or that of an alias.
    root: String,
    /// The base model, if this one is a LoRA adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    base_model: Option<String>,
    capabilities: Capabilities,
    modalities: Modalities,
    format: &'static str,
    quantization: Option<String>,
    /// Max tokens of prompt and output together, or of a text to embed.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_window: Option<u32>,
    /// vLLM's name of `context_window`.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
    /// Number of weights.
    parameters: u64,
    /// Size on disk.
    bytes: u64,
    license: Option<String>,
    loaded: bool,
    /// Whether the model stays loaded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pinned: bool,
    /// The model that this name stands for, if it is an alias.
    #[serde(skip_serializing_if = "Option::is_none")]
    alias_of: Option<String>,
    /// The device that runs the model: `cpu`, `cuda:0` or `metal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    /// Whether the device stores the weights without quantization, because it has no kernels for their type. They then take
    /// more memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    dequantized: bool,
    /// Sizes of images that the model is good at, such as `512x512`; its default is the first. Only of image models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    image_sizes: Vec<String>,
    /// Why the model cannot be used, if it cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<ModelAccess>,
}

/// What this server can do with the model.
#[derive(Serialize, utoipa::ToSchema)]
struct Capabilities {
    /// False for base models, which have no chat template.
    chat_completions: bool,
    completions: bool,
    streaming: bool,
    embeddings: bool,
    reranking: bool,
    /// Whether a classification model has labels of harmful content.
    moderation: bool,
    image_generation: bool,
    transcription: bool,
    speech: bool,
}

#[derive(Serialize, utoipa::ToSchema)]
struct Modalities {
    input: &'static [&'static str],
    output: &'static [&'static str],
}

#[derive(Serialize, utoipa::ToSchema)]
struct Limits {
    context_window: Option<u32>,
    max_output_tokens: Option<u32>,
    embedding_dimensions: Option<u32>,
    image_sizes: Option<Vec<String>>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct ModelAccess {
    project_id: String,
    allowed: bool,
}

fn head(id: String) -> Head<String> {
    Head { id, object: "model", state: None }
}

fn body(model: ModelInfo) -> ModelBody {
    let runs_as = |kind| model.kind == kind && model.problem.is_none();
    let text = runs_as(ModelKind::Text);
    let (input, output) = model.kind.modalities();
    let image_sizes = image_sizes(&model);
    ModelBody {
        created: model.created.as_seconds(),
        root: model.alias_of.clone().unwrap_or(model.id),
        owned_by: model.owned_by,
        architecture: model.architecture,
        base_model: model.base,
        capabilities: Capabilities {
            chat_completions: text && model.has_chat_template,
            completions: text,
            streaming: text,
            embeddings: runs_as(ModelKind::Embedding),
            reranking: runs_as(ModelKind::Reranker),
            moderation: model.moderates && model.problem.is_none(),
            image_generation: runs_as(ModelKind::Image),
            transcription: runs_as(ModelKind::Transcription),
            speech: runs_as(ModelKind::Speech),
        },
        modalities: Modalities { input, output },
        format: model.format,
        quantization: model.quantization,
        context_window: model.context_window,
        max_model_len: model.context_window,
        parameters: model.parameters,
        bytes: model.bytes,
        license: model.license,
        image_sizes,
        loaded: model.loaded,
        pinned: model.pinned,
        alias_of: model.alias_of,
        device: model.device,
        dequantized: model.dequantized,
        problem: model.problem,
        limits: None,
        access: None,
    }
}

/// The head and the body of a model.
pub(super) fn described(model: ModelInfo) -> (Head<String>, ModelBody) {
    (head(model.id.clone()), body(model))
}

fn limits(model: &ModelInfo) -> Limits {
    Limits {
        context_window: model.context_window,
        // At least one token of the context belongs to the prompt.
        max_output_tokens: model.context_window.filter(|_| model.kind == ModelKind::Text).map(|window| window - 1),
        embedding_dimensions: model.embedding_dimensions,
        image_sizes: Some(image_sizes(model)).filter(|sizes| !sizes.is_empty()),
    }
}

fn image_sizes(model: &ModelInfo) -> Vec<String> {
    model.image_sizes.iter().copied().map(size_text).collect()
}

/// A model in the format of Anthropic's API.
#[derive(Serialize)]
struct AnthropicModel {
    r#type: &'static str,
    id: String,
    display_name: String,
    created_at: Timestamp,
    lifecycle: &'static str,
    /// Of chat models: the context window.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_input_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
}

#[derive(Serialize)]
struct AnthropicModels {
    data: Vec<AnthropicModel>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

impl AnthropicModel {
    fn new(model: &ModelInfo) -> Self {
        let Limits { context_window, max_output_tokens, .. } = limits(model);
        Self {
            r#type: "model",
            id: model.id.clone(),
            display_name: model.id.clone(),
            created_at: model.created,
            lifecycle: "active",
            max_input_tokens: context_window,
            max_tokens: max_output_tokens,
        }
    }
}

impl AnthropicModels {
    fn new(models: &[ModelInfo]) -> Self {
        let id = |model: Option<&ModelInfo>| model.map(|model| model.id.clone());
        let data = models.iter().map(AnthropicModel::new).collect();
        Self { data, has_more: false, first_id: id(models.first()), last_id: id(models.last()) }
    }
}

/// List the models that the key may use. With the header `anthropic-version`, in the format of Anthropic's API.
#[utoipa::path(tag = "models", params(ListModels), responses((status = 200, body = [ModelBody])))]
#[get("/models")]
async fn list(caller: Caller, params: ApiParams<ListModels>, request: HttpRequest, api: web::Data<Api>) -> ApiResult {
    let models = api.models.list(&caller.access).await?;
    if is_for_anthropic(&request) {
        return Ok(HttpResponse::Ok().json(AnthropicModels::new(&models)));
    }
    let include_limits = params.0.include_limits.unwrap_or(false);
    let item = |model: ModelInfo| {
        let limits = include_limits.then(|| limits(&model));
        caller.mount.item(head(model.id.clone()), ModelBody { limits, ..body(model) })
    };
    caller.list(api.list_id(), List::new(models.into_iter().map(item).collect(), None))
}

/// Retrieve a model's capabilities and metadata. With the header `anthropic-version`, in the format of Anthropic's API.
#[utoipa::path(tag = "models", params(("model_id" = String, Path), GetModel), responses((status = 200, body = ModelBody)))]
#[get("/models/{model_id}")]
async fn get(
    caller: Caller,
    id: web::Path<String>,
    params: ApiParams<GetModel>,
    request: HttpRequest,
    api: web::Data<Api>,
) -> ApiResult {
    let model = api.models.describe(&caller.access, &id).await?;
    if is_for_anthropic(&request) {
        return Ok(HttpResponse::Ok().json(AnthropicModel::new(&model)));
    }
    let limits = params.0.include_limits.unwrap_or(false).then(|| limits(&model));
    let access = match params.0.project_id {
        Some(project) => Some(access(&caller, &api, &project).await?),
        None => None,
    };
    caller.reply(head(model.id.clone()), ModelBody { limits, access, ..body(model) })
}

/// Delete a model that the project has trained. A checkpoint is deleted under all its names.
#[utoipa::path(tag = "models", params(("model_id" = String, Path)), responses((status = 200, body = Deleted)))]
#[delete("/models/{model_id}")]
async fn delete(caller: Caller, id: web::Path<String>, _: ApiParams<Nothing>, api: web::Data<Api>) -> ApiResult {
    api.models.delete(&caller.access, &id).await?;
    caller.reply(head(id.into_inner()), Deleted { deleted: true })
}

/// Load a model into memory before the first request.
#[utoipa::path(tag = "models", params(("model_id" = String, Path)), responses((status = 200, body = ModelBody)))]
#[post("/models/{model_id}/load")]
async fn load(caller: Caller, id: web::Path<String>, _: ApiParams<Nothing>, api: web::Data<Api>) -> ApiResult {
    let model = api.models.load(&caller.access, &id).await?;
    caller.reply(head(model.id.clone()), body(model))
}

/// Unload a model from memory; the next request loads it again.
#[utoipa::path(tag = "models", params(("model_id" = String, Path)), responses((status = 200, body = ModelBody)))]
#[post("/models/{model_id}/unload")]
async fn unload(caller: Caller, id: web::Path<String>, _: ApiParams<Nothing>, api: web::Data<Api>) -> ApiResult {
    let model = api.models.unload(&caller.access, &id).await?;
    caller.reply(head(model.id.clone()), body(model))
}

/// A project may use every installed model; only keys restrict access, and this key was checked.
async fn access(caller: &Caller, api: &Api, project_id: &str) -> Result<ModelAccess> {
    let id: ProjectId = crate::http::resource_ids::parse_project_id(project_id)?;
    let project = api.services.projects.get(&caller.access, id).await.map_err(|error| match error.code() {
        Code::NotFound => Error::not_found("project", id).param("project_id"),
        _ => error.param("project_id"),
    })?;
    Ok(ModelAccess { project_id: id.to_string(), allowed: project.record.archived_at.is_none() })
}
