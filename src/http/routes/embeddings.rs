//! Embeddings: endpoint 13. The request is read and checked whole; no model of this version can
//! compute vectors yet, and every answer says so.

use actix_web::{post, web};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::chat::refuse_unknown;
use crate::engine::Kind;
use crate::error::{Error, Result};
use crate::http::input::ApiJson;
use crate::http::reply::Reply;
use crate::http::{Api, caller::Caller};

const MOST_INPUTS: usize = 2048;
/// Fields that cannot change what this server answers.
const IGNORED: [&str; 1] = ["user"];

#[derive(Deserialize, utoipa::ToSchema)]
pub struct EmbeddingRequest {
    /// Id of an installed model.
    model: String,
    /// Texts, or token ids: one, or an array of up to 2,048.
    #[schema(value_type = Vec<String>)]
    input: Input,
    /// Length of the vectors, where the model supports another than its own.
    dimensions: Option<u32>,
    /// How a vector is written.
    encoding_format: Option<Encoding>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a string, an array of strings, or token ids")]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    ManyTokens(Vec<Vec<u32>>),
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Float,
    Base64,
}

impl EmbeddingRequest {
    /// Checks every field on its own; returns the model.
    fn check(self) -> Result<String> {
        refuse_unknown(&self.rest, &IGNORED)?;
        if self.dimensions == Some(0) {
            return Err(Error::invalid("dimensions", "'dimensions' is 0; it must be at least 1."));
        }
        match self.input {
            Input::Text(text) => filled("input", text.is_empty())?,
            Input::Texts(texts) => each(texts.iter().map(String::is_empty))?,
            Input::Tokens(tokens) => filled("input", tokens.is_empty())?,
            Input::ManyTokens(many) => each(many.iter().map(Vec::is_empty))?,
        }
        match self.encoding_format {
            None | Some(Encoding::Float | Encoding::Base64) => Ok(self.model),
        }
    }
}

fn each(empty: impl ExactSizeIterator<Item = bool>) -> Result<()> {
    let count = empty.len();
    if !(1..=MOST_INPUTS).contains(&count) {
        let text = format!("'input' has {count} entries; it must have 1 to {MOST_INPUTS}.");
        return Err(Error::invalid("input", text));
    }
    empty.enumerate().try_for_each(|(place, empty)| filled(&format!("input[{place}]"), empty))
}

fn filled(field: &str, empty: bool) -> Result<()> {
    if empty { Err(Error::invalid(field, format!("'{field}' is empty; send some text or tokens."))) } else { Ok(()) }
}

/// Turn texts into vectors. This version has no model that can; the answer is always an error.
#[utoipa::path(tag = "embeddings", request_body = EmbeddingRequest, responses((status = 400, description = "No installed model can create embeddings.")))]
#[post("/embeddings")]
pub async fn create(caller: Caller, body: ApiJson<EmbeddingRequest>, api: web::Data<Api>) -> Reply {
    let model = body.0.check()?;
    Err(api.models.unserved(&caller.access, &model, Kind::Embedding, "create embeddings").await)
}
