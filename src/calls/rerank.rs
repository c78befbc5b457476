//! Documents by how well they answer a question.

use super::embeddings::{Embeddings, too_long};
use super::models::{refuse_load, refuse_stopped};
use crate::engine::{Kind, TokenBound, Tokenized};
use crate::error::{Error, Result};
use crate::ids::RerankId;
use crate::service::access::Access;
use crate::service::usage::Receipt;

/// What a caller asks for; `http` has checked the form of each field.
pub struct RerankCall {
    pub model: String,
    pub query: String,
    pub documents: Vec<String>,
    /// So many of the best are wanted.
    pub most: Option<usize>,
    /// Whether documents that are too long are cut, rather than refused.
    pub truncate: bool,
    /// Whether scores are what the model gave, and not brought between 0 and 1.
    pub raw: bool,
}

/// What became of it.
pub struct Reranked {
    pub id: RerankId,
    pub model: String,
    /// Places of documents and their scores, the best first.
    pub results: Vec<(usize, f32)>,
    /// As they came.
    pub documents: Vec<String>,
    pub tokens: u64,
}

impl Embeddings {
    /// Judges each document beside the query. What is used goes on `bill`. Dropping the future cancels what is not
    /// computed yet.
    pub async fn rerank(&self, access: &Access, call: RerankCall, bill: &Receipt) -> Result<Reranked> {
        access.require_model(&call.model)?;
        let engine = self.engine.clone();
        let bytes = call.documents.iter().map(|document| call.query.len() + document.len()).sum();
        let prepare = move |bound: TokenBound| {
            let id = call.model.as_str();
            let model = engine.models().load_encoder(id, Kind::Reranker).map_err(|error| refuse_load(id, &error))?;
            let encoded = model.encode_pairs(&call.query, &call.documents, call.truncate, &bound);
            let encoded = encoded.map_err(|stopped| refuse_stopped(id, &stopped))?;
            let one = |(place, (pair, complete)): (usize, (Tokenized, bool))| match pair.ids.len() {
                count if count <= model.limit() => Ok(pair),
                count => Err(too_long(&format!("documents[{place}]"), " with the query", count, complete, &model)),
            };
            let pairs = encoded.into_iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
            if pairs.len() < call.documents.len() {
                return Err(Error::internal("a document was not tokenised"));
            }
            Ok((call, model, pairs))
        };
        let (call, scores, tokens) = self.compute(access, bill, bytes, prepare).await?;
        let score = |logit: f32| if call.raw { logit } else { 1. / (1. + (-logit).exp()) };
        let scores = scores.into_iter().map(|logit| logit.first().copied().map_or(f32::NAN, score));
        let mut results: Vec<(usize, f32)> = scores.enumerate().collect();
        results.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        results.truncate(call.most.unwrap_or(usize::MAX));
        let id = RerankId::generate(&*self.clock_rng);
        Ok(Reranked { id, model: call.model, results, documents: call.documents, tokens })
    }
}
