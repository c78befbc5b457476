//! `POST /v2/rerank`.

use actix_web::{HttpResponse, post, web};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::meta::{IGNORED, Meta};
use crate::calls::rerank::RerankCall;
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::routes::rerank::{DOCUMENTS, Document, check_texts};
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(rerank);
}

#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = CohereRerankRequest)]
pub struct RerankRequest {
    /// Id of an installed reranking model.
    model: String,
    /// The query.
    query: String,
    /// Documents to rank, up to 2,048: strings, or objects with a `text`.
    #[schema(value_type = Vec<String>)]
    documents: Vec<Document>,
    /// Number of results to return, best first; absent: all.
    top_n: Option<usize>,
    /// Max tokens of a document, which is truncated; absent: 4,096. Documents are also truncated to what the model takes.
    max_tokens_per_doc: Option<usize>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = CohereRerankBody)]
struct RerankBody {
    id: String,
    /// The best first.
    results: Vec<RerankResult>,
    meta: Meta,
}

#[derive(Serialize, utoipa::ToSchema)]
#[schema(as = CohereRerankResult)]
struct RerankResult {
    /// The document's index in the request.
    index: usize,
    /// From 0 to 1.
    relevance_score: f32,
}

impl RerankRequest {
    /// Validates each field.
    fn check(self) -> Result<RerankCall> {
        let documents: Vec<String> = self.documents.into_iter().map(Document::into_text).collect();
        check_texts(&self.query, DOCUMENTS, &documents, self.top_n)?;
        if self.max_tokens_per_doc == Some(0) {
            let text = "'max_tokens_per_doc' is 0; it must be at least 1.";
            return Err(Error::invalid("max_tokens_per_doc", text));
        }
        Ok(RerankCall {
            model: Some(self.model),
            query: self.query,
            instruction: None,
            documents,
            document_field: DOCUMENTS,
            top_n: self.top_n,
            truncate: true,
            max_document_tokens: self.max_tokens_per_doc,
            raw: false,
        })
    }
}

/// Rank documents by relevance to a query, in the format of Cohere's API.
#[utoipa::path(tag = "cohere", request_body = RerankRequest, responses((status = 200, body = RerankBody)))]
#[post("/rerank")]
async fn rerank(caller: Caller, body: ApiJson<RerankRequest>, api: web::Data<Api>) -> ApiResult {
    let ignored = api.unknown_fields.left_out::<RerankRequest>(&body.0.rest, &IGNORED)?;
    let ranked = api.embeddings.rerank(&caller.access, body.0.check()?, &caller.recorder).await?;
    let result = |(index, relevance_score)| RerankResult { index, relevance_score };
    let body = RerankBody {
        id: ranked.id.to_string(),
        results: ranked.results.into_iter().map(result).collect(),
        meta: Meta::new(ranked.tokens),
    };
    Ok(with_lists(HttpResponse::Ok().json(body), &ignored, &[]))
}
