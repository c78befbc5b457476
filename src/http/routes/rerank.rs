//! Reranking, in the format of Jina and Cohere, and in that of Text Embeddings Inference.

use actix_web::{HttpResponse, post, web};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::prompt::text_input::TextField;
use crate::calls::rerank::{RerankCall, Reranked};
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::{ApiResult, Mount};
use crate::http::routes::text_inputs::{check_count, is_truncated};
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(create).service(create_as_llama_cpp);
}

const MAX_DOCUMENTS: usize = 2048;
/// Fields that do not affect the output of this server.
const IGNORED: [&str; 1] = ["user"];

/// The field of the documents.
pub(super) const DOCUMENTS: TextField = TextField { name: "documents", single: false };
/// That of Text Embeddings Inference.
const TEXTS: TextField = TextField { name: "texts", single: false };

#[derive(Deserialize, utoipa::ToSchema)]
pub struct RerankRequest {
    /// Id of an installed model. May be absent if there is only one reranking model.
    model: Option<String>,
    /// The query.
    query: String,
    /// What to look for, for models whose prompt has it, such as Qwen3-Reranker; absent: the model's default.
    instruction: Option<String>,
    /// Documents to rank, up to 2,048: strings, or objects with a `text`. Either they or `texts`.
    #[schema(value_type = Option<Vec<String>>)]
    documents: Option<Vec<Document>>,
    /// The same, as Text Embeddings Inference names them.
    texts: Option<Vec<String>>,
    /// Number of results to return, best first; absent: all.
    top_n: Option<usize>,
    /// Whether to include the documents' texts.
    return_documents: Option<bool>,
    /// The same, as Text Embeddings Inference names it.
    return_text: Option<bool>,
    /// Truncate documents that are too long for the model, instead of failing.
    truncate: Option<bool>,
    /// -1 is the same as `truncate: true`. Other numbers are not supported.
    truncate_prompt_tokens: Option<i64>,
    /// Raw scores of the model, instead of 0 to 1.
    raw_scores: Option<bool>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a string, or an object with a text")]
pub(super) enum Document {
    Bare(String),
    Object { text: String },
}

impl Document {
    pub fn into_text(self) -> String {
        match self {
            Self::Bare(text) | Self::Object { text } => text,
        }
    }
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct RerankBody {
    model: String,
    /// The best first.
    results: Vec<RerankResult>,
    usage: RerankUsage,
}

#[derive(Serialize, utoipa::ToSchema)]
struct RerankResult {
    /// The document's index in the request.
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentBody>,
}

/// A result in the format of Text Embeddings Inference.
#[derive(Serialize)]
struct TextResult {
    /// The text's index in the request.
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct DocumentBody {
    text: String,
}

#[derive(Serialize, utoipa::ToSchema)]
struct RerankUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

impl RerankRequest {
    /// Validates each field; returns whether to include the documents.
    fn check(self) -> Result<(RerankCall, bool)> {
        let (document_field, documents) = match (self.documents, self.texts) {
            (Some(documents), None) => (DOCUMENTS, documents.into_iter().map(Document::into_text).collect()),
            (None, Some(texts)) => (TEXTS, texts),
            (Some(_), Some(_)) => {
                return Err(Error::invalid("texts", "'documents' and 'texts' are both set. Send one of them."));
            }
            (None, None) => return Err(Error::invalid("documents", "'documents' is missing. Send the texts to rank.")),
        };
        check_texts(&self.query, document_field, &documents, self.top_n)?;
        let (truncate, raw) =
            (is_truncated(self.truncate, self.truncate_prompt_tokens)?, self.raw_scores.unwrap_or(false));
        let call = RerankCall {
            model: self.model,
            query: self.query,
            instruction: self.instruction.filter(|text| !text.is_empty()),
            documents,
            document_field,
            top_n: self.top_n,
            truncate,
            max_document_tokens: None,
            raw,
        };
        Ok((call, self.return_documents.or(self.return_text).unwrap_or(false)))
    }
}

/// Checks the fields that all formats of reranking have.
pub(super) fn check_texts(query: &str, field: TextField, documents: &[String], top_n: Option<usize>) -> Result<()> {
    check_count(field.name, documents.len(), MAX_DOCUMENTS)?;
    if query.is_empty() {
        return Err(Error::invalid("query", "'query' is empty; send a question."));
    }
    if top_n == Some(0) {
        return Err(Error::invalid("top_n", "'top_n' is 0; it must be at least 1."));
    }
    match documents.iter().position(String::is_empty) {
        None => Ok(()),
        Some(index) => {
            let field = field.of(index);
            let text = format!("'{field}' is empty; send some text.");
            Err(Error::invalid(field, text))
        }
    }
}

/// Rank documents by relevance to a query. With `texts`, the response on `/openai/v1` is a list, the best first, whose
/// entries have `index`, `score` and, with `return_text`, `text`.
#[utoipa::path(tag = "rerank", request_body = RerankRequest, responses((status = 200, body = RerankBody)))]
#[post("/rerank")]
async fn create(caller: Caller, body: ApiJson<RerankRequest>, api: web::Data<Api>) -> ApiResult {
    rerank(&caller, body.0, &api).await
}

/// The same as `/rerank`, under the name that llama.cpp prefers.
#[utoipa::path(tag = "rerank", request_body = RerankRequest, responses((status = 200, body = RerankBody)))]
#[post("/reranking")]
async fn create_as_llama_cpp(caller: Caller, body: ApiJson<RerankRequest>, api: web::Data<Api>) -> ApiResult {
    rerank(&caller, body.0, &api).await
}

/// Whether a field changes nothing. The end of a text is truncated, which Text Embeddings Inference calls the right side.
fn is_idle(name: &str, value: &Value) -> bool {
    let is_right = || value.as_str().is_some_and(|side| side.eq_ignore_ascii_case("right"));
    IGNORED.contains(&name) || (name == "truncation_direction" && is_right())
}

async fn rerank(caller: &Caller, request: RerankRequest, api: &Api) -> ApiResult {
    let ignored = api.unknown_fields.left_out_unless::<RerankRequest>(&request.rest, is_idle)?;
    // The envelope has no room for a list.
    let is_list = request.texts.is_some() && caller.mount == Mount::OpenAi;
    let (call, returned) = request.check()?;
    let Reranked { id, model, results, mut documents, tokens } =
        api.embeddings.rerank(&caller.access, call, &caller.recorder).await?;
    let mut text = |index: usize| documents.get_mut(index).map(std::mem::take).filter(|_| returned);
    if is_list {
        let result = |(index, score)| TextResult { index, score, text: text(index) };
        let results: Vec<TextResult> = results.into_iter().map(result).collect();
        return Ok(with_lists(HttpResponse::Ok().json(results), &ignored, &[]));
    }
    let result = |(index, relevance_score)| {
        let document = text(index).map(|text| DocumentBody { text });
        RerankResult { index, relevance_score, document }
    };
    let results = results.into_iter().map(result).collect();
    let usage = RerankUsage { prompt_tokens: tokens, total_tokens: tokens };
    Ok(with_lists(caller.mount.result(id, "rerank", RerankBody { model, results, usage }), &ignored, &[]))
}
