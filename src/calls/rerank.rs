//! Scores of documents for queries, and reranking: documents sorted by them.

use std::sync::Arc;

use crate::calls::blocking::run_blocking;
use crate::calls::embeddings::{EmbeddingCall, Embeddings, Encoded, EncoderCall, ReadResponse, too_long};
use crate::calls::errors::from_stopped;
use crate::calls::models::model_name::{authorize_name, or_only};
use crate::calls::prompt::prompt_choice::PromptChoice;
use crate::calls::prompt::text_input::{TextField, TextInput};
use crate::calls::upstream::errors::unsupported;
use crate::calls::upstream::request_fields::json_call;
use crate::calls::upstream::rerank::{self as remote, RerankRequest};
use crate::calls::upstream::response_limits;
use crate::engine::{EncoderModel, InputType, ModelInfo, ModelKind, PairOptions, TokenizeLimits, Tokenized};
use crate::error::{Error, Result};
use crate::ids::RerankId;
use crate::service::access::Access;
use crate::service::usage::UsageRecorder;
use crate::upstream::{Kind, UpstreamCall, UpstreamModel};

/// A request for scores; `http` has validated each field on its own.
pub struct ScoreCall {
    pub model: String,
    /// One for all documents, or one for each.
    pub queries: Vec<String>,
    pub query_field: TextField,
    /// What to look for, for models whose prompt has it.
    pub instruction: Option<String>,
    /// At least one.
    pub documents: Vec<String>,
    pub document_field: TextField,
    /// Truncates documents that are too long instead of refusing them.
    pub truncate: bool,
    /// Max tokens of a document, which is truncated to them.
    pub max_document_tokens: Option<usize>,
    /// Returns raw logits instead of scores between 0 and 1.
    pub raw: bool,
}

/// Scores in the order of the documents.
pub struct Scored {
    pub id: RerankId,
    pub model: String,
    pub scores: Vec<f32>,
    /// As received.
    pub documents: Vec<String>,
    pub tokens: u64,
}

/// A request to rank documents by their relevance to a query.
pub struct RerankCall {
    /// `None`: the only reranking model.
    pub model: Option<String>,
    pub query: String,
    /// As in [`ScoreCall`].
    pub instruction: Option<String>,
    pub documents: Vec<String>,
    pub document_field: TextField,
    /// How many of the best documents to return.
    pub top_n: Option<usize>,
    /// This field and the next two are as in [`ScoreCall`].
    pub truncate: bool,
    pub max_document_tokens: Option<usize>,
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
    /// Scores each document for the query, the best first. Usage is added to `recorder`. Dropping the future cancels what is
    /// not computed yet.
    pub async fn rerank(&self, access: &Access, call: RerankCall, recorder: &UsageRecorder) -> Result<Reranked> {
        let mut model = or_only(&self.engine, access, call.model, reranks).await?;
        authorize_name(&self.engine, access, &mut model)?;
        let top_n = call.top_n;
        let call = ScoreCall {
            model,
            queries: vec![call.query],
            query_field: TextField { name: "query", single: true },
            instruction: call.instruction,
            documents: call.documents,
            document_field: call.document_field,
            truncate: call.truncate,
            max_document_tokens: call.max_document_tokens,
            raw: call.raw,
        };
        let Scored { id, model, scores, documents, tokens } = self.score_pairs(access, call, recorder).await?;
        Ok(Reranked { id, model, results: best_first(scores, top_n), documents, tokens })
    }

    /// Scores each document for its query: with a reranking model, or with an embedding model, whose scores are cosine
    /// similarities. Usage is added to `recorder`. Dropping the future cancels what is not computed yet.
    pub async fn score(&self, access: &Access, mut call: ScoreCall, recorder: &UsageRecorder) -> Result<Scored> {
        authorize_name(&self.engine, access, &mut call.model)?;
        match self.embeds(&call.model).await? {
            true => self.compare_vectors(access, call, recorder).await,
            false => self.score_pairs(access, call, recorder).await,
        }
    }

    /// True for embedding models.
    async fn embeds(&self, id: &str) -> Result<bool> {
        let (engine, id) = (self.engine.clone(), id.to_owned());
        run_blocking(move || Ok(engine.models().find(&id).is_some_and(|model| model.kind == ModelKind::Embedding)))
            .await
    }

    async fn compare_vectors(&self, access: &Access, call: ScoreCall, recorder: &UsageRecorder) -> Result<Scored> {
        let ScoreCall { model, queries, query_field, instruction, documents, document_field, truncate, .. } = call;
        if instruction.is_some() {
            return Err(no_instruction(&model));
        }
        let count = queries.len();
        let call = EmbeddingCall {
            model,
            inputs: queries.iter().chain(&documents).cloned().map(TextInput::Text).collect(),
            fields: vec![(query_field, count), (document_field, documents.len())],
            dimensions: None,
            prompt: PromptChoice::Purpose(InputType::Unspecified),
            truncate,
            max_tokens: None,
        };
        let embedded = self.run(access, call, recorder).await?;
        let (queries, vectors) = embedded.vectors.split_at_checked(count).unwrap_or_default();
        // Vectors are normalized.
        let cosine = |one: &[f32], other: &[f32]| one.iter().zip(other).map(|(a, b)| a * b).sum();
        let scores = vectors.iter().zip(queries.iter().cycle()).map(|(document, query)| cosine(query, document));
        let scores: Vec<f32> = scores.collect();
        let id = RerankId::generate(&*self.clock_rng);
        Ok(Scored { id, model: embedded.model, scores, documents, tokens: embedded.tokens })
    }

    /// Scores pairs with a reranking model. The name of the model is authorized.
    async fn score_pairs(&self, access: &Access, call: ScoreCall, recorder: &UsageRecorder) -> Result<Scored> {
        let Encoded { call, values, tokens, .. } = self.encode(access, call, recorder).await?;
        let id = RerankId::generate(&*self.clock_rng);
        Ok(Scored { id, model: call.model, scores: values, documents: call.documents, tokens })
    }
}

impl EncoderCall for ScoreCall {
    const KIND: Kind = Kind::Rerank;
    type Value = f32;

    fn model(&self) -> &str {
        &self.model
    }

    fn size(&self) -> (usize, usize) {
        let pairs = self.queries.iter().cycle().zip(&self.documents);
        let instruction = self.instruction.as_ref().map_or(0, String::len);
        let bytes = |(query, document): (&String, &String)| instruction + query.len() + document.len();
        (self.documents.len(), pairs.map(bytes).sum())
    }

    /// The tokens of each document with its query.
    fn tokenise(&self, model: &EncoderModel, bound: &TokenizeLimits) -> Result<Vec<Tokenized>> {
        if self.instruction.is_some() && !model.takes_instruction() {
            return Err(no_instruction(model.id()));
        }
        let instruction = self.instruction.as_deref();
        let options = PairOptions { instruction, truncate: self.truncate, max_document: self.max_document_tokens };
        let mut pairs = Vec::with_capacity(self.documents.len());
        let each = self.documents.len().checked_div(self.queries.len()).unwrap_or_default().max(1);
        for (query, documents) in self.queries.iter().zip(self.documents.chunks(each)) {
            let encoded = model.encode_pairs(query, documents, options, bound);
            let encoded = encoded.map_err(|stopped| from_stopped(model.id(), &stopped))?;
            if encoded.is_empty() {
                break;
            }
            for (pair, complete) in encoded {
                let (count, field) = (pair.ids.len(), self.document_field.of(pairs.len()));
                if count > model.limit() {
                    return Err(too_long(&field, " with the query", count, complete, model));
                }
                pairs.push(pair);
            }
        }
        // Pairs are missing only after one that is too long, or after the client has disconnected.
        match pairs.len() == self.documents.len() {
            true => Ok(pairs),
            false => Err(Error::internal("a document was not tokenised")),
        }
    }

    fn value(&self, logits: Vec<f32>) -> f32 {
        let score = |logit: f32| if self.raw { logit } else { 1. / (1. + (-logit).exp()) };
        logits.first().copied().map_or(f32::NAN, score)
    }

    fn upstream(&self, model: &Arc<UpstreamModel>) -> Result<(UpstreamCall, ReadResponse<f32>)> {
        let Self { queries, query_field, instruction, documents, truncate, max_document_tokens, raw, .. } = self;
        let [query] = queries.as_slice() else {
            let name = query_field.name;
            let text =
                format!("'{name}' is a list, but the model '{}' takes one query. Send one in each request.", model.id);
            return Err(Error::invalid(name, text));
        };
        if max_document_tokens.is_some() {
            return Err(unsupported(&model.id, "max_tokens_per_doc"));
        }
        let request =
            RerankRequest { query, instruction: instruction.as_deref(), documents, truncate: *truncate, raw: *raw };
        let sent = json_call(model, "rerank", request.fields(model)?, response_limits::scores(documents));
        let (count, needs_sigmoid) = (documents.len(), request.needs_sigmoid(model));
        Ok((sent, Box::new(move |body| remote::read(body, count, needs_sigmoid))))
    }
}

/// The error for a model that was trained without instructions.
fn no_instruction(model: &str) -> Error {
    let message =
        format!("The model '{model}' takes no instruction. Leave 'instruction' out, or write it into the query.");
    Error::invalid("instruction", message)
}

/// True for models that a rerank request without a model may mean.
fn reranks(model: &ModelInfo) -> bool {
    model.kind == ModelKind::Reranker
}

/// The best documents with their scores.
fn best_first(scores: Vec<f32>, top_n: Option<usize>) -> Vec<(usize, f32)> {
    let mut results: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    results.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    results.truncate(top_n.unwrap_or(usize::MAX));
    results
}
