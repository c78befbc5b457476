//! Embeddings: endpoint 13.

use actix_web::{post, web};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::embeddings::EmbeddingCall;
use crate::calls::prompt::prompt_choice::PromptChoice;
use crate::calls::prompt::text_input::{TextField, TextInput};
use crate::engine::InputType;
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::text_inputs::{TextInputs, check_count, is_truncated};
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(create);
}

const MAX_INPUTS: usize = 2048;
/// Max vectors encoded on an async thread; more would block other requests for too long.
pub(super) const FEW: usize = 32;
/// Clients that count tokens send the ids of OpenAI's tokenizer, which mean other words to any other model.
const UNDECLARED_TOKENS: &str = "'input' has token ids, which give wrong vectors without an error if another tokenizer made them. Send texts; in LangChain, set check_embedding_ctx_length=False. If the ids are those of this model's own tokenizer, send token_ids: \"model\" too.";
/// Fields that do not affect the output of this server.
const IGNORED: [&str; 1] = ["user"];

#[derive(Deserialize, utoipa::ToSchema)]
pub struct EmbeddingRequest {
    /// Id of an installed model.
    model: String,
    /// Texts, or token ids of the model (see `token_ids`): one, or an array of up to 2,048.
    #[schema(value_type = Vec<String>)]
    input: TextInputs,
    /// Number of dimensions, if the model supports others than its default.
    dimensions: Option<u32>,
    /// Encoding of the vectors: numbers, or little-endian 32-bit floats in base64.
    encoding_format: Option<Encoding>,
    /// Purpose of the texts, for models trained with a prompt for each.
    input_type: Option<Purpose>,
    /// Name of one of the model's own prompts, such as `STS`, instead of `input_type`.
    prompt_name: Option<String>,
    /// Truncate texts that are too long for the model, instead of failing.
    truncate: Option<bool>,
    /// -1 is the same as `truncate: true`. Other numbers are not supported.
    truncate_prompt_tokens: Option<i64>,
    /// Required with token ids: whose ids they are.
    token_ids: Option<TokenIds>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

/// `model`: the ids of this model's own tokenizer.
#[derive(Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum TokenIds {
    Model,
}

#[derive(Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    Base64,
}

/// Includes the names that other services use.
#[derive(Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Purpose {
    #[serde(alias = "search_query")]
    Query,
    #[serde(alias = "search_document", alias = "passage")]
    Document,
    Classification,
    Clustering,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct EmbeddingBody {
    #[schema(value_type = Vec<Embedding>)]
    data: Box<RawValue>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Serialize, utoipa::ToSchema)]
struct Embedding {
    object: &'static str,
    index: usize,
    /// Normalized to length 1.
    #[schema(value_type = Vec<f32>)]
    embedding: Vector,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Serialize, utoipa::ToSchema)]
struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl EmbeddingRequest {
    /// Validates each field.
    fn check(self) -> Result<(EmbeddingCall, Encoding)> {
        if self.dimensions == Some(0) {
            return Err(Error::invalid("dimensions", "'dimensions' is 0; it must be at least 1."));
        }
        if self.input.has_tokens() && self.token_ids.is_none() {
            return Err(Error::invalid("input", UNDECLARED_TOKENS));
        }
        let (inputs, single) = self.input.into_list();
        let field = TextField { name: "input", single };
        check_inputs(&inputs, field)?;
        let input_type = match self.input_type {
            None => InputType::Unspecified,
            Some(Purpose::Query) => InputType::Query,
            Some(Purpose::Document) => InputType::Document,
            Some(Purpose::Classification) => InputType::Classification,
            Some(Purpose::Clustering) => InputType::Clustering,
        };
        let prompt = match self.prompt_name {
            None => PromptChoice::Purpose(input_type),
            Some(name) if self.input_type.is_none() => PromptChoice::Named(name),
            Some(_) => {
                let text = "'input_type' and 'prompt_name' are both set. Send one of them.";
                return Err(Error::invalid("prompt_name", text));
            }
        };
        let truncate = is_truncated(self.truncate, self.truncate_prompt_tokens)?;
        let dimensions = self.dimensions;
        let fields = vec![(field, inputs.len())];
        let call = EmbeddingCall { model: self.model, inputs, fields, dimensions, prompt, truncate, max_tokens: None };
        Ok((call, self.encoding_format.unwrap_or_default()))
    }
}

/// Refuses too many inputs, and empty ones. `field`: where they are in the request.
pub(super) fn check_inputs(inputs: &[TextInput], field: TextField) -> Result<()> {
    check_count(field.name, inputs.len(), MAX_INPUTS)?;
    match inputs.iter().position(TextInput::is_empty) {
        None => Ok(()),
        Some(index) => {
            let field = field.of(index);
            let text = format!("'{field}' is empty; send some text or tokens.");
            Err(Error::invalid(field, text))
        }
    }
}

impl Encoding {
    fn write(self, vector: Vec<f32>) -> Vector {
        match self {
            Self::Float => Vector::Numbers(vector),
            Self::Base64 => Vector::Base64(to_base64(&vector)),
        }
    }
}

/// Little-endian 32-bit floats in base64.
pub(super) fn to_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|component| component.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

/// Create embeddings, normalized to length 1.
#[utoipa::path(tag = "embeddings", request_body = EmbeddingRequest, responses((status = 200, body = EmbeddingBody)))]
#[post("/embeddings")]
async fn create(caller: Caller, body: ApiJson<EmbeddingRequest>, api: web::Data<Api>) -> ApiResult {
    embed(&caller, body.0, &api).await
}

/// Embeds texts, whether or not a client waits.
pub async fn embed(caller: &Caller, request: EmbeddingRequest, api: &Api) -> ApiResult {
    let ignored = api.unknown_fields.left_out::<EmbeddingRequest>(&request.rest, &IGNORED)?;
    let (call, encoding) = request.check()?;
    let embedded = api.embeddings.run(&caller.access, call, &caller.recorder).await?;
    let usage = EmbeddingUsage { prompt_tokens: embedded.tokens, total_tokens: embedded.tokens };
    let (id, model, vectors) = (embedded.id, embedded.model, embedded.vectors);
    let data = match vectors.len() <= FEW {
        true => write(vectors, encoding),
        false => web::block(move || write(vectors, encoding)).await.map_err(Error::internal)?,
    };
    let data = data.map_err(Error::internal)?;
    let reply = caller.mount.result(id, "list", EmbeddingBody { data, model, usage });
    Ok(with_lists(reply, &ignored, &[]))
}

fn write(vectors: Vec<Vec<f32>>, encoding: Encoding) -> serde_json::Result<Box<RawValue>> {
    let item = |(index, vector)| Embedding { object: "embedding", index, embedding: encoding.write(vector) };
    to_raw_value(&vectors.into_iter().enumerate().map(item).collect::<Vec<_>>())
}
