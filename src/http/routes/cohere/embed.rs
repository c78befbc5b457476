//! `POST /v2/embed`.

use actix_web::{HttpResponse, post, web};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::meta::{IGNORED, Meta};
use super::quantization;
use crate::calls::embeddings::EmbeddingCall;
use crate::calls::prompt::prompt_choice::PromptChoice;
use crate::calls::prompt::text_input::{TextField, TextInput};
use crate::engine::InputType;
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::embeddings::{FEW, check_inputs, to_base64};
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(embed);
}

/// One of `texts` and `inputs`.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = CohereEmbedRequest)]
pub struct EmbedRequest {
    /// Id of an installed embedding model.
    model: String,
    /// Purpose of the texts, for models trained with a prompt for each; absent: no prompt.
    input_type: Option<Purpose>,
    /// Up to 2,048 texts.
    texts: Option<Vec<String>>,
    /// The same, each as an object.
    inputs: Option<Vec<Input>>,
    /// Must be empty.
    #[schema(value_type = Option<Vec<String>>)]
    images: Option<Vec<Value>>,
    /// Number of dimensions, if the model supports others than its default.
    output_dimension: Option<u32>,
    /// `float` if absent.
    embedding_types: Option<Vec<EmbeddingType>>,
    /// What happens to a text that is too long for the model: its end is removed (`END`, if absent), or the request fails.
    truncate: Option<Truncate>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Clone, Copy, Deserialize, utoipa::ToSchema)]
#[schema(as = CohereInputType)]
#[serde(rename_all = "snake_case")]
enum Purpose {
    SearchDocument,
    SearchQuery,
    Classification,
    Clustering,
}

/// A text. Images are not supported.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = CohereEmbedInput)]
struct Input {
    /// One part with a text.
    content: Vec<Part>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = CohereEmbedPart)]
struct Part {
    /// `text`.
    r#type: String,
    text: Option<String>,
}

/// `int8` is relative to the largest component of a vector, and `uint8` is that plus 128. `ubinary` has the signs of eight
/// components in a byte, and `binary` is that minus 128. `base64` has little-endian 32-bit floats.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, utoipa::ToSchema)]
#[schema(as = CohereEmbeddingType)]
#[serde(rename_all = "lowercase")]
enum EmbeddingType {
    Float,
    Int8,
    Uint8,
    Binary,
    Ubinary,
    Base64,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq, utoipa::ToSchema)]
#[schema(as = CohereTruncate)]
#[serde(rename_all = "UPPERCASE")]
enum Truncate {
    None,
    End,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = CohereEmbedBody)]
struct EmbedBody {
    id: String,
    response_type: &'static str,
    #[schema(value_type = Vectors)]
    embeddings: Box<RawValue>,
    /// As received.
    texts: Vec<String>,
    meta: Meta,
}

/// One list of vectors for each type, in the order of the texts.
#[derive(Default, Serialize, utoipa::ToSchema)]
#[schema(as = CohereVectors)]
struct Vectors {
    /// Normalized to length 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    float: Option<Vec<Vec<f32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    int8: Option<Vec<Vec<i8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uint8: Option<Vec<Vec<u8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    binary: Option<Vec<Vec<i8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ubinary: Option<Vec<Vec<u8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<Vec<String>>,
}

impl Vectors {
    fn new(vectors: Vec<Vec<f32>>, types: &[EmbeddingType]) -> Self {
        fn all<T>(vectors: &[Vec<f32>], one: fn(&[f32]) -> T) -> Option<Vec<T>> {
            Some(vectors.iter().map(|vector| one(vector)).collect())
        }
        let mut body = Self::default();
        for kind in types {
            match kind {
                EmbeddingType::Float => {}
                EmbeddingType::Int8 => body.int8 = all(&vectors, quantization::int8),
                EmbeddingType::Uint8 => body.uint8 = all(&vectors, quantization::uint8),
                EmbeddingType::Binary => body.binary = all(&vectors, quantization::binary),
                EmbeddingType::Ubinary => body.ubinary = all(&vectors, quantization::ubinary),
                EmbeddingType::Base64 => body.base64 = all(&vectors, to_base64),
            }
        }
        Self { float: types.contains(&EmbeddingType::Float).then_some(vectors), ..body }
    }
}

impl EmbedRequest {
    /// Validates each field. Returns the texts and the types of the vectors, too.
    fn check(self) -> Result<(EmbeddingCall, Vec<String>, Vec<EmbeddingType>)> {
        if self.images.is_some_and(|images| !images.is_empty()) {
            return Err(Error::invalid(
                "images",
                "'images' is not supported: embedding models read texts. Send 'texts'.",
            ));
        }
        if self.output_dimension == Some(0) {
            return Err(Error::invalid("output_dimension", "'output_dimension' is 0; it must be at least 1."));
        }
        let (name, texts) = match (self.texts, self.inputs) {
            (Some(texts), None) => ("texts", texts),
            (None, Some(inputs)) => ("inputs", input_texts(inputs)?),
            (Some(_), Some(_)) => {
                return Err(Error::invalid("inputs", "'texts' and 'inputs' are both set. Send one of them."));
            }
            (None, None) => return Err(Error::invalid("texts", "'texts' is missing. Send some texts.")),
        };
        let field = TextField { name, single: false };
        let inputs: Vec<TextInput> = texts.iter().cloned().map(TextInput::Text).collect();
        check_inputs(&inputs, field)?;
        let types = self.embedding_types.filter(|types| !types.is_empty());
        let call = EmbeddingCall {
            model: self.model,
            fields: vec![(field, inputs.len())],
            inputs,
            dimensions: self.output_dimension,
            prompt: PromptChoice::Purpose(match self.input_type {
                Some(Purpose::SearchDocument) => InputType::Document,
                Some(Purpose::SearchQuery) => InputType::Query,
                Some(Purpose::Classification) => InputType::Classification,
                Some(Purpose::Clustering) => InputType::Clustering,
                None => InputType::Unspecified,
            }),
            truncate: self.truncate != Some(Truncate::None),
            max_tokens: None,
        };
        Ok((call, texts, types.unwrap_or_else(|| vec![EmbeddingType::Float])))
    }
}

/// An error about the number of dimensions, under the name that Cohere's API has for it.
fn under_own_name(error: Error) -> Error {
    match error.param_name() {
        Some("dimensions") => {
            let text = error.message().replace("'dimensions'", "'output_dimension'");
            Error::invalid("output_dimension", text)
        }
        _ => error,
    }
}

/// The text of each input.
fn input_texts(inputs: Vec<Input>) -> Result<Vec<String>> {
    let text = |(index, input): (usize, Input)| match <[Part; 1]>::try_from(input.content) {
        Ok([Part { r#type, text: Some(text) }]) if r#type == "text" => Ok(text),
        _ => {
            let field = format!("inputs[{index}].content");
            let text = format!("'{field}' must have one part, of type 'text' with a text. Images are not supported.");
            Err(Error::invalid(field, text))
        }
    };
    inputs.into_iter().enumerate().map(text).collect()
}

/// Create embeddings, in the format of Cohere's API.
#[utoipa::path(tag = "cohere", request_body = EmbedRequest, responses((status = 200, body = EmbedBody)))]
#[post("/embed")]
async fn embed(caller: Caller, body: ApiJson<EmbedRequest>, api: web::Data<Api>) -> ApiResult {
    let ignored = api.unknown_fields.left_out::<EmbedRequest>(&body.0.rest, &IGNORED)?;
    let (call, texts, types) = body.0.check()?;
    let embedded = api.embeddings.run(&caller.access, call, &caller.recorder).await.map_err(under_own_name)?;
    let vectors = embedded.vectors;
    let embeddings = match vectors.len() <= FEW {
        true => to_raw_value(&Vectors::new(vectors, &types)),
        false => {
            let write = move || to_raw_value(&Vectors::new(vectors, &types));
            web::block(write).await.map_err(Error::internal)?
        }
    };
    let body = EmbedBody {
        id: embedded.id.to_string(),
        response_type: "embeddings_by_type",
        embeddings: embeddings.map_err(Error::internal)?,
        texts,
        meta: Meta::new(embedded.tokens),
    };
    Ok(with_lists(HttpResponse::Ok().json(body), &ignored, &[]))
}
