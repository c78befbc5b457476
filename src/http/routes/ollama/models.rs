//! What is known about models: `/api/version`, `/api/tags`, `/api/show` and `/api/ps`.

use std::time::Duration;

use actix_web::{HttpResponse, get, post, web};
use ring::digest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa_actix_web::service_config::ServiceConfig;

use super::body::OllamaJson;
use super::model_name::{model_id, tagged_name};
use super::modelfile;
use crate::clock_rng::Timestamp;
use crate::display::hex;
use crate::engine::{
    GenerationDefaults, ModelInfo, ModelKind, SAMPLING_PARAMETERS, SamplingParameter, template_has_reasoning,
};
use crate::error::{Error, Result};
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(version).service(tags).service(show).service(ps);
}

/// The version of Ollama's API that is implemented. Clients require a minimum: VS Code 0.6.4. 0.12.11 is the first with
/// `logprobs`; from 0.13.4 on, Codex expects OpenAI's Responses API.
const VERSION: &str = "0.12.11";

/// Without `unload_after`, models stay loaded until their memory is needed. Clients expect a time, so this is far in the
/// future.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaVersion)]
struct VersionBody {
    /// The version of Ollama's API that is implemented.
    version: &'static str,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaModelList)]
struct ModelList<T> {
    models: Vec<T>,
}

/// What `/api/tags` and `/api/ps` say of a model.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaModel)]
struct ModelBody {
    name: String,
    model: String,
    /// Size on disk.
    size: u64,
    /// Identifies the state of the model's files. It is not a hash of their content.
    digest: String,
    details: Details,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaTaggedModel)]
struct TaggedModel {
    #[serde(flatten)]
    model: ModelBody,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
    capabilities: Vec<&'static str>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaLoadedModel)]
struct LoadedModel {
    #[serde(flatten)]
    model: ModelBody,
    /// When the model is unloaded if nothing uses it. Far in the future if it stays loaded until its memory is needed.
    #[schema(value_type = String, format = DateTime)]
    expires_at: Timestamp,
    /// 0 if the CPU runs the model.
    size_vram: u64,
    context_length: u32,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaModelDetails)]
struct Details {
    /// The base model of an adapter, or the model of an alias.
    parent_model: String,
    format: &'static str,
    family: String,
    families: Vec<String>,
    /// Such as `134.5M`.
    parameter_size: String,
    quantization_level: String,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaModelDescription)]
struct ShowBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    license: Option<String>,
    /// As a Modelfile for `/api/create`. It has no template: the chat template stays that of the model.
    modelfile: String,
    /// The default parameters of the model's settings, each on a line.
    parameters: String,
    /// The system prompt of the model's settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<String>,
    /// The model's chat template.
    template: String,
    details: Details,
    #[schema(value_type = Object)]
    model_info: Map<String, Value>,
    capabilities: Vec<&'static str>,
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
}

/// A request for the description of a model.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaShowRequest)]
struct ShowRequest {
    /// Id of a model. `NAME:latest` is `NAME`.
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    /// Without effect: lists of tokens and tensors are never returned.
    verbose: Option<bool>,
}

/// A request that names a model.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaNamedModel)]
pub struct NamedModel {
    /// Id of a model. `NAME:latest` is `NAME`.
    pub model: Option<String>,
    /// The older name of `model`.
    pub name: Option<String>,
}

impl NamedModel {
    pub fn into_name(self) -> Result<String> {
        let given = [self.model, self.name].into_iter().flatten().find(|name| !name.is_empty());
        given.ok_or_else(|| Error::invalid("model", "'model' is missing. Send the name of a model."))
    }
}

impl ModelBody {
    fn new(model: &ModelInfo) -> Self {
        Self {
            name: tagged_name(&model.id),
            model: tagged_name(&model.id),
            size: model.bytes,
            digest: state_digest(model),
            details: Details::new(model),
        }
    }
}

impl Details {
    fn new(model: &ModelInfo) -> Self {
        Self {
            parent_model: model.base.as_ref().or(model.alias_of.as_ref()).cloned().unwrap_or_default(),
            format: model.format,
            family: model.architecture.clone(),
            families: vec![model.architecture.clone()],
            parameter_size: parameter_size(model.parameters),
            quantization_level: model.quantization.clone().unwrap_or_default(),
        }
    }
}

/// A number of weights as `134.5M`.
fn parameter_size(count: u64) -> String {
    let (unit, name) = match count {
        1_000_000_000.. => (1_000_000_000, "B"),
        1_000_000.. => (1_000_000, "M"),
        1_000.. => (1_000, "K"),
        _ => return count.to_string(),
    };
    let tenths = count / (unit / 10);
    format!("{}.{}{name}", tenths / 10, tenths % 10)
}

fn state_digest(model: &ModelInfo) -> String {
    let state = format!("{}\n{}\n{}\n{:?}", model.id, model.bytes, model.created.as_millis(), model.base);
    hex(digest::digest(&digest::SHA256, state.as_bytes()).as_ref())
}

/// What this API can do with a model, as far as it is known without loading it.
fn capabilities(model: &ModelInfo) -> Vec<&'static str> {
    match model.kind {
        _ if model.problem.is_some() => Vec::new(),
        ModelKind::Text => {
            let mut all = vec!["completion"];
            // Tools are described to models whose chat template does not.
            all.extend(model.has_chat_template.then_some("tools"));
            all.extend(model.infills.then_some("insert"));
            all
        }
        ModelKind::Embedding => vec!["embedding"],
        // Ollama has no API for the others.
        _ => Vec::new(),
    }
}

fn model_info(model: &ModelInfo) -> Map<String, Value> {
    let mut info = Map::new();
    let mut add = |name: String, value: Option<Value>| info.extend(value.map(|value| (name, value)));
    let architecture = &model.architecture;
    add("general.architecture".to_owned(), Some(json!(architecture)));
    add("general.basename".to_owned(), Some(json!(model.id)));
    add("general.parameter_count".to_owned(), Some(json!(model.parameters)));
    add(format!("{architecture}.context_length"), model.context_window.map(Value::from));
    add(format!("{architecture}.embedding_length"), model.width.map(Value::from));
    info
}

/// The width of the names of parameters, as `ollama show` prints them.
const PARAMETER_WIDTH: usize = 30;

/// The default parameters under Ollama's names, as in a Modelfile.
fn parameters(defaults: &GenerationDefaults) -> String {
    let of = |row: &SamplingParameter| Some((row.llama_name, row.of(&defaults.sampling)?.to_string()));
    let sampling = SAMPLING_PARAMETERS.iter().filter_map(of);
    let max_tokens = defaults.max_tokens.map(|count| ("num_predict", count.to_string()));
    let seed = defaults.seed.map(|seed| ("seed", seed.cast_signed().to_string()));
    let stops = defaults.stop.iter().flatten().map(|stop| ("stop", json!(stop).to_string()));
    let lines = sampling.chain(max_tokens).chain(seed).chain(stops);
    lines.map(|(name, value)| format!("{name:<PARAMETER_WIDTH$} {value}")).collect::<Vec<_>>().join("\n")
}

/// The models that the key may use and that this API can run.
async fn runnable(caller: &Caller, api: &Api) -> Result<Vec<ModelInfo>> {
    let mut models = api.models.list(&caller.access).await?;
    models.retain(|model| !capabilities(model).is_empty());
    Ok(models)
}

/// The version of Ollama's API that this server implements.
#[utoipa::path(tag = "ollama", responses((status = 200, body = VersionBody)))]
#[get("/version")]
async fn version(_: Caller) -> ApiResult {
    Ok(HttpResponse::Ok().json(VersionBody { version: VERSION }))
}

/// List the chat and embedding models that the key may use, in the format of Ollama's API.
#[utoipa::path(tag = "ollama", responses((status = 200, body = ModelList<TaggedModel>)))]
#[get("/tags")]
async fn tags(caller: Caller, api: web::Data<Api>) -> ApiResult {
    let tagged = |model: &ModelInfo| TaggedModel {
        model: ModelBody::new(model),
        modified_at: model.created,
        capabilities: capabilities(model),
    };
    let models = runnable(&caller, &api).await?.iter().map(tagged).collect();
    Ok(HttpResponse::Ok().json(ModelList { models }))
}

/// List the models that are loaded, in the format of Ollama's API.
#[utoipa::path(tag = "ollama", responses((status = 200, body = ModelList<LoadedModel>)))]
#[get("/ps")]
async fn ps(caller: Caller, api: web::Data<Api>) -> ApiResult {
    let never = api.clock_rng.now().after(FOREVER);
    let loaded = |model: &ModelInfo| {
        let is_on_gpu = model.device.as_deref().is_some_and(|device| device != "cpu");
        LoadedModel {
            model: ModelBody::new(model),
            expires_at: model.unloads_at.unwrap_or(never),
            size_vram: if is_on_gpu { model.bytes } else { 0 },
            context_length: model.context_window.unwrap_or_default(),
        }
    };
    let models = runnable(&caller, &api).await?;
    let is_listed = |model: &&ModelInfo| model.loaded && model.alias_of.is_none();
    let models = models.iter().filter(is_listed).map(loaded).collect();
    Ok(HttpResponse::Ok().json(ModelList { models }))
}

/// Describe a model, in the format of Ollama's API.
#[utoipa::path(tag = "ollama", request_body = ShowRequest, responses((status = 200, body = ShowBody)))]
#[post("/show")]
async fn show(caller: Caller, body: OllamaJson<ShowRequest>, api: web::Data<Api>) -> ApiResult {
    let ShowRequest { model, name, verbose } = body.0;
    let name = NamedModel { model, name }.into_name()?;
    let ignored: Vec<String> = verbose.filter(|wanted| *wanted).map(|_| "verbose".to_owned()).into_iter().collect();
    let name = model_id(&name);
    let installed = api.models.get(&caller.access, name).await?;
    let template = api.models.chat_template(&installed).await?.unwrap_or_default();
    let model = api.models.describe(&caller.access, name).await?;
    let parameters = parameters(&api.models.generation_defaults(name));
    let system = api.models.system_prompt(name);
    let own_license = api.models.derived(name).and_then(|derived| derived.license);
    let mut capabilities = capabilities(&model);
    if capabilities.contains(&"completion") && template_has_reasoning(&template) {
        capabilities.push("thinking");
    }
    let response = HttpResponse::Ok().json(ShowBody {
        modelfile: modelfile::write(&installed.id, system.as_deref(), &parameters, own_license.as_deref()),
        parameters,
        license: own_license.or_else(|| model.license.clone()),
        system: system.map(|text| text.to_string()),
        template,
        details: Details::new(&model),
        model_info: model_info(&model),
        capabilities,
        modified_at: model.created,
    });
    Ok(with_lists(response, &ignored, &[]))
}

#[cfg(test)]
mod tests {
    use super::parameter_size;

    #[test]
    fn numbers_of_weights_are_short() {
        for (count, text) in [(12, "12"), (1_500, "1.5K"), (134_515_008, "134.5M"), (7_615_616_512, "7.6B")] {
            assert_eq!(parameter_size(count), text);
        }
    }
}
