//! Reranking: documents sorted by their relevance to a query.

use std::sync::Arc;

use super::embeddings::{Embeddings, too_long};
use super::errors::{ModelErrors, from_stopped};
use super::model_name::authorize_name;
use super::upstream::request_fields::json_call;
use super::upstream::rerank::{self as remote, RerankRequest};
use super::upstream::response_limits;
use super::upstream::token_estimate;
use crate::engine::{ModelKind, TokenizeLimits, Tokenized};
use crate::error::{Error, Result};
use crate::ids::RerankId;
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;
use crate::upstream::{Kind, UpstreamModel};

/// A request; `http` has validated each field on its own.
pub struct RerankCall {
    pub model: String,
    pub query: String,
    pub documents: Vec<String>,
    /// How many of the best documents to return.
    pub top_n: Option<usize>,
    /// Whether to truncate documents that are too long instead of refusing them.
    pub truncate: bool,
    /// Whether to return raw logits instead of scores between 0 and 1.
    pub raw: bool,
}

/// The result.
pub struct Reranked {
    pub id: RerankId,
    pub model: String,
    /// Indices of documents and their scores, the best first.
    pub results: Vec<(usize, f32)>,
    /// As received.
    pub documents: Vec<String>,
    pub tokens: u64,
}

impl Embeddings {
    /// Scores each document against the query. Usage is added to `recorder`. Dropping the future cancels what is not
    /// computed yet.
    pub async fn rerank(&self, access: &Access, mut call: RerankCall, recorder: &UsageRecorder) -> Result<Reranked> {
        authorize_name(&self.engine, access, &mut call.model)?;
        if let Some(model) = self.upstream.find(&call.model).await? {
            return self.rerank_upstream(access, &model, call, recorder).await;
        }
        let (engine, allowed) = (self.engine.clone(), access.clone());
        let bytes = call.documents.iter().map(|document| call.query.len() + document.len()).sum();
        let prepare = move |bound: TokenizeLimits| {
            let id = call.model.as_str();
            let errors = ModelErrors { engine: &engine, access: &allowed };
            let model = engine
                .models()
                .load_encoder(id, ModelKind::Reranker)
                .map_err(|error| errors.load_failed(id, &error))?;
            let encoded = model.encode_pairs(&call.query, &call.documents, call.truncate, &bound);
            let encoded = encoded.map_err(|stopped| from_stopped(id, &stopped))?;
            let one = |(index, (pair, complete)): (usize, (Tokenized, bool))| match pair.ids.len() {
                count if count <= model.limit() => Ok(pair),
                count => Err(too_long(&format!("documents[{index}]"), " with the query", count, complete, &model)),
            };
            let pairs = encoded.into_iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
            if pairs.len() < call.documents.len() {
                return Err(Error::internal("a document was not tokenised"));
            }
            Ok((call, model, pairs))
        };
        let (call, scores, tokens) = self.compute(access, recorder, bytes, prepare).await?;
        let score = |logit: f32| if call.raw { logit } else { 1. / (1. + (-logit).exp()) };
        let scores = scores.into_iter().map(|logit| logit.first().copied().map_or(f32::NAN, score));
        let results = best_first(scores, call.top_n);
        let id = RerankId::generate(&*self.clock_rng);
        Ok(Reranked { id, model: call.model, results, documents: call.documents, tokens })
    }

    /// Sends a request to an upstream model.
    async fn rerank_upstream(
        &self,
        access: &Access,
        model: &Arc<UpstreamModel>,
        call: RerankCall,
        recorder: &UsageRecorder,
    ) -> Result<Reranked> {
        self.upstream.require(access, model, &[Kind::Rerank]).await?;
        recorder.set_model(&model.id);
        let RerankCall { query, documents, top_n, truncate, raw, .. } = call;
        let request = RerankRequest { query: &query, documents: &documents, truncate, raw };
        let sent = json_call(model, "rerank", request.fields(model)?, response_limits::scores(&documents));
        let (count, needs_sigmoid) = (documents.len(), request.needs_sigmoid(model));
        let bytes = documents.iter().map(|document| query.len() + document.len()).sum();
        recorder.charge_prompt(token_estimate::prompt_tokens(bytes, 0).into()).await?;
        recorder.set_estimated(true);
        let told = self.upstream.whole(sent, move |body| remote::read(body, count, needs_sigmoid)).await;
        let (told, response) = told.inspect_err(|_| recorder.waive())?;
        let tokens = Self::settle(recorder, &response, told.tokens, (bytes, count));
        let results = best_first(told.scores.into_iter(), top_n);
        let id = RerankId::generate(&*self.clock_rng);
        Ok(Reranked { id, model: model.id.clone(), results, documents, tokens })
    }
}

/// The best documents with their scores.
fn best_first(scores: impl Iterator<Item = f32>, top_n: Option<usize>) -> Vec<(usize, f32)> {
    let mut results: Vec<(usize, f32)> = scores.enumerate().collect();
    results.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    results.truncate(top_n.unwrap_or(usize::MAX));
    results
}
