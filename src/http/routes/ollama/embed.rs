//! `POST /api/embed`, and its older form `POST /api/embeddings`.

use actix_web::{HttpResponse, post, web};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::body::OllamaJson;
use super::delivery::unknown;
use super::model_name::model_id;
use super::options;
use super::response::nanoseconds;
use crate::calls::embeddings::{Embedded, EmbeddingCall};
use crate::calls::prompt::prompt_choice::PromptChoice;
use crate::calls::prompt::text_input::{TextField, TextInput};
use crate::engine::InputType;
use crate::error::{Error, Result};
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::embeddings::{FEW, check_inputs};
use crate::http::routes::text_inputs::Texts;
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(embed).service(embed_one);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaEmbedRequest)]
pub struct EmbedRequest {
    /// Id of an installed embedding model. `NAME:latest` is `NAME`.
    model: String,
    /// A text, or up to 2,048. Without one, the model is loaded.
    #[schema(value_type = Option<Value>)]
    input: Option<Texts>,
    /// Whether to truncate texts that are too long for the model; true if absent.
    truncate: Option<bool>,
    /// Number of dimensions, if the model supports others than its default.
    dimensions: Option<u32>,
    /// `num_ctx`: max tokens of a text.
    #[schema(value_type = Option<Object>)]
    #[serde(default, deserialize_with = "crate::json_input::with_nearest_numbers")]
    options: Option<Value>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = OllamaEmbedOneRequest)]
pub struct EmbedOneRequest {
    /// Id of an installed embedding model. `NAME:latest` is `NAME`.
    model: String,
    /// Without a text, the model is loaded.
    prompt: Option<String>,
    /// `num_ctx`: max tokens of the text.
    #[schema(value_type = Option<Object>)]
    #[serde(default, deserialize_with = "crate::json_input::with_nearest_numbers")]
    options: Option<Value>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaEmbeddings)]
struct EmbedBody {
    model: String,
    /// One vector for each text, normalized to length 1.
    #[schema(value_type = Vec<Vec<f32>>)]
    embeddings: Box<RawValue>,
    /// In nanoseconds.
    total_duration: u64,
    /// Until the model was loaded, in nanoseconds.
    load_duration: u64,
    prompt_eval_count: u64,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = OllamaEmbedding)]
struct EmbedOneBody {
    /// Normalized to length 1.
    embedding: Vec<f32>,
}

/// Create embeddings, in the format of Ollama's API.
#[utoipa::path(tag = "ollama", request_body = EmbedRequest, responses((status = 200, body = EmbedBody)))]
#[post("/embed")]
async fn embed(caller: Caller, body: OllamaJson<EmbedRequest>, api: web::Data<Api>) -> ApiResult {
    let EmbedRequest { model, input, truncate, dimensions, options, rest } = body.0;
    let received = api.clock_rng.uptime();
    let mut ignored = unknown(&rest);
    let num_ctx = options::of_embeddings(options.as_ref(), &mut ignored)?;
    let (texts, single) = match input {
        None => (Vec::new(), true),
        Some(Texts::One(text)) => (Some(text).filter(|text| !text.is_empty()).into_iter().collect(), true),
        Some(Texts::Many(texts)) => (texts, false),
    };
    let dimensions = dimensions.filter(|count| *count > 0);
    let call = EmbeddingCall { dimensions, truncate: truncate.unwrap_or(true), ..call(&model, texts, single, num_ctx) };
    let found = run(&caller, &api, call).await?;
    let load_duration =
        found.as_ref().map_or_else(|| api.clock_rng.uptime().saturating_sub(received), |one| one.loading);
    let (vectors, prompt_eval_count) = found.map_or_else(Default::default, |found| (found.vectors, found.tokens));
    let embeddings = match vectors.len() <= FEW {
        true => to_raw_value(&vectors),
        false => web::block(move || to_raw_value(&vectors)).await.map_err(Error::internal)?,
    };
    let body = EmbedBody {
        model,
        embeddings: embeddings.map_err(Error::internal)?,
        total_duration: nanoseconds(api.clock_rng.uptime().saturating_sub(received)).max(1),
        load_duration: nanoseconds(load_duration).max(1),
        prompt_eval_count,
    };
    Ok(with_lists(HttpResponse::Ok().json(body), &ignored, &[]))
}

/// Create one embedding, in the older format of Ollama's API.
#[utoipa::path(tag = "ollama", request_body = EmbedOneRequest, responses((status = 200, body = EmbedOneBody)))]
#[post("/embeddings")]
async fn embed_one(caller: Caller, body: OllamaJson<EmbedOneRequest>, api: web::Data<Api>) -> ApiResult {
    let EmbedOneRequest { model, prompt, options, rest } = body.0;
    let mut ignored = unknown(&rest);
    let num_ctx = options::of_embeddings(options.as_ref(), &mut ignored)?;
    let texts = prompt.filter(|text| !text.is_empty()).into_iter().collect();
    let found = run(&caller, &api, call(&model, texts, true, num_ctx)).await?;
    let embedding = found.and_then(|found| found.vectors.into_iter().next()).unwrap_or_default();
    Ok(with_lists(HttpResponse::Ok().json(EmbedOneBody { embedding }), &ignored, &[]))
}

fn call(model: &str, texts: Vec<String>, single: bool, num_ctx: Option<u32>) -> EmbeddingCall {
    let count = texts.len();
    EmbeddingCall {
        model: model_id(model).to_owned(),
        inputs: texts.into_iter().map(TextInput::Text).collect(),
        fields: vec![(TextField { name: "input", single }, count)],
        dimensions: None,
        prompt: PromptChoice::Purpose(InputType::Unspecified),
        truncate: true,
        max_tokens: num_ctx.map(|count| (count, options::NUM_CTX)),
    }
}

/// Runs a call; without texts, only loads its model.
async fn run(caller: &Caller, api: &Api, call: EmbeddingCall) -> Result<Option<Embedded>> {
    if call.inputs.is_empty() {
        api.embeddings.load(&caller.access, &call.model, &caller.recorder).await?;
        return Ok(None);
    }
    if let Some((field, _)) = call.fields.first() {
        check_inputs(&call.inputs, *field)?;
    }
    api.embeddings.run(&caller.access, call, &caller.recorder).await.map(Some)
}
