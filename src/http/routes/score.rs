//! Scores of texts for other texts, in the format of vLLM.

use actix_web::{post, web};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use crate::calls::prompt::text_input::TextField;
use crate::calls::rerank::{ScoreCall, Scored};
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::{ApiResult, Head};
use crate::http::routes::text_inputs::{Texts, check_count, is_truncated};
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(score);
}

const MAX_DOCUMENTS: usize = 2048;
/// Fields that do not affect the output of this server.
const IGNORED: [&str; 2] = ["user", "encoding_format"];

/// The names of the two texts; vLLM has had several. A request has one of each row.
const QUERY_NAMES: &str = "'text_1', 'queries' or 'data_1'";
const DOCUMENT_NAMES: &str = "'text_2', 'documents', 'items' or 'data_2'";

/// One of the first three fields, and one of the next four.
#[derive(Deserialize, utoipa::ToSchema)]
pub struct ScoreRequest {
    /// Id of an installed reranking or embedding model.
    model: String,
    /// A query for all documents, or a list with one for each.
    #[schema(value_type = Option<Vec<String>>)]
    text_1: Option<Texts>,
    #[schema(value_type = Option<Vec<String>>)]
    queries: Option<Texts>,
    #[schema(value_type = Option<Vec<String>>)]
    data_1: Option<Texts>,
    /// A document, or up to 2,048.
    #[schema(value_type = Option<Vec<String>>)]
    text_2: Option<Texts>,
    #[schema(value_type = Option<Vec<String>>)]
    documents: Option<Texts>,
    #[schema(value_type = Option<Vec<String>>)]
    items: Option<Texts>,
    #[schema(value_type = Option<Vec<String>>)]
    data_2: Option<Texts>,
    /// What to look for, for reranking models whose prompt has it; absent: the model's default.
    instruction: Option<String>,
    /// Truncate texts that are too long for the model, instead of failing.
    truncate: Option<bool>,
    /// -1 is the same as `truncate: true`. Other numbers are not supported.
    truncate_prompt_tokens: Option<i64>,
    /// False: raw scores of a reranking model, instead of 0 to 1. Also as `activation`.
    #[serde(alias = "activation")]
    use_activation: Option<bool>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ScoreBody {
    created: i64,
    model: String,
    data: Vec<ScoreResult>,
    usage: ScoreUsage,
}

#[derive(Serialize, utoipa::ToSchema)]
struct ScoreResult {
    /// The document's index in the request.
    index: usize,
    object: &'static str,
    /// Of a reranking model, 0 to 1; of an embedding model, the cosine similarity of both texts.
    score: f32,
}

#[derive(Serialize, utoipa::ToSchema)]
struct ScoreUsage {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
}

impl ScoreRequest {
    /// Validates each field.
    fn check(self) -> Result<ScoreCall> {
        let queries = [("text_1", self.text_1), ("queries", self.queries), ("data_1", self.data_1)];
        let documents =
            [("text_2", self.text_2), ("documents", self.documents), ("items", self.items), ("data_2", self.data_2)];
        let (query_field, queries) = only(queries, QUERY_NAMES)?;
        let (document_field, documents) = only(documents, DOCUMENT_NAMES)?;
        let count = queries.len();
        if count != 1 && count != documents.len() {
            let (name, documents) = (query_field.name, documents.len());
            let text = format!(
                "'{name}' has {count} entries, but '{}' has {documents}. Send one query for all documents, or one for each.",
                document_field.name
            );
            return Err(Error::invalid(name, text));
        }
        let truncate = is_truncated(self.truncate, self.truncate_prompt_tokens)?;
        Ok(ScoreCall {
            model: self.model,
            queries,
            query_field,
            instruction: self.instruction.filter(|text| !text.is_empty()),
            documents,
            document_field,
            truncate,
            max_document_tokens: None,
            raw: self.use_activation == Some(false),
        })
    }
}

/// The texts of the only field that is set. `names`: those of all, for error messages.
fn only<const N: usize>(fields: [(&'static str, Option<Texts>); N], names: &str) -> Result<(TextField, Vec<String>)> {
    let first = fields[0].0;
    let mut set = fields.into_iter().filter_map(|(name, texts)| Some((name, texts?)));
    let (name, texts) =
        set.next().ok_or_else(|| Error::invalid(first, format!("'{first}' is missing. Send {names}.")))?;
    if let Some((other, _)) = set.next() {
        return Err(Error::invalid(other, format!("'{name}' and '{other}' are both set. Send one of them.")));
    }
    let (texts, single) = match texts {
        Texts::One(text) => (vec![text], true),
        Texts::Many(texts) => (texts, false),
    };
    check_count(name, texts.len(), MAX_DOCUMENTS)?;
    let field = TextField { name, single };
    match texts.iter().position(String::is_empty) {
        None => Ok((field, texts)),
        Some(index) => {
            let field = field.of(index);
            Err(Error::invalid(field.as_str(), format!("'{field}' is empty; send some text.")))
        }
    }
}

/// Score how well documents answer queries.
///
/// With a reranking model, or with an embedding model, which compares the vectors of both texts.
#[utoipa::path(tag = "score", request_body = ScoreRequest, responses((status = 200, body = ScoreBody)))]
#[post("/score")]
async fn score(caller: Caller, body: ApiJson<ScoreRequest>, api: web::Data<Api>) -> ApiResult {
    let ignored = api.unknown_fields.left_out::<ScoreRequest>(&body.0.rest, &IGNORED)?;
    let scored = api.embeddings.score(&caller.access, body.0.check()?, &caller.recorder).await?;
    let Scored { id, model, scores, tokens, .. } = scored;
    let result = |(index, score)| ScoreResult { index, object: "score", score };
    let body = ScoreBody {
        created: api.clock_rng.now().as_seconds(),
        model,
        data: scores.into_iter().enumerate().map(result).collect(),
        usage: ScoreUsage { prompt_tokens: tokens, total_tokens: tokens, completion_tokens: 0 },
    };
    Ok(with_lists(caller.mount.reply(Head { id, object: "list", state: None }, body), &ignored, &[]))
}
