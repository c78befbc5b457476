//! Reranking by an upstream model: the request and its response, in the formats of Jina and Cohere and of TEI.

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::embeddings::add_truncation;
use super::errors::unsupported;
use super::request_fields::Fields;
use super::told_usage::{ToldValues, input_tokens};
use crate::error::Result;
use crate::upstream::{Api, UpstreamModel};

/// Documents to score.
pub struct RerankRequest<'a> {
    pub query: &'a str,
    pub instruction: Option<&'a str>,
    pub documents: &'a [String],
    /// Truncates documents that are too long.
    pub truncate: bool,
    /// Requests raw scores instead of scores from 0 to 1.
    pub raw: bool,
}

#[derive(Deserialize)]
struct Body<'a> {
    results: Vec<Item>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Item {
    index: usize,
    #[serde(alias = "relevance_score")]
    score: f32,
}

impl RerankRequest<'_> {
    /// The body without the model's name. Fails if the target's server has no field for something.
    pub fn fields(&self, model: &UpstreamModel) -> Result<Fields> {
        let documents = if model.api == Api::Tei { "texts" } else { "documents" };
        let mut fields = Fields::new();
        fields.insert("query".to_owned(), json!(self.query));
        fields.insert(documents.to_owned(), json!(self.documents));
        match self.instruction {
            Some(text) if model.api == Api::Outpost => drop(fields.insert("instruction".to_owned(), json!(text))),
            Some(_) => return Err(unsupported(&model.id, "instruction")),
            None => {}
        }
        if self.truncate {
            add_truncation(&mut fields, model)?;
        }
        match model.api {
            Api::Outpost | Api::Tei if self.raw => drop(fields.insert("raw_scores".to_owned(), json!(true))),
            // Its scores are always raw.
            Api::Outpost | Api::Tei | Api::LlamaCpp => {}
            Api::OpenAi | Api::Vllm if self.raw => return Err(unsupported(&model.id, "raw_scores")),
            Api::OpenAi | Api::Vllm => {}
        }
        Ok(fields)
    }

    /// True if the target's scores are logits and must be mapped to 0 to 1.
    pub fn needs_sigmoid(&self, model: &UpstreamModel) -> bool {
        model.api == Api::LlamaCpp && !self.raw
    }
}

/// Reads a response for `count` documents. `None` if it makes no sense.
pub fn read(body: &[u8], count: usize, needs_sigmoid: bool) -> Option<ToldValues<f32>> {
    let Body { results, usage } = match body.trim_ascii_start() {
        // TEI's format. A reader that tries both would keep a copy of all values.
        list @ [b'[', ..] => Body { results: serde_json::from_slice(list).ok()?, usage: None },
        object => serde_json::from_slice(object).ok()?,
    };
    let mut scores: Vec<Option<f32>> = vec![None; count];
    for Item { index, score } in results {
        let place = scores.get_mut(index).filter(|place| place.is_none())?;
        *place = Some(if needs_sigmoid { 1. / (1. + (-score).exp()) } else { score }).filter(|score| score.is_finite());
    }
    let scores = scores.into_iter().collect::<Option<_>>()?;
    Some(ToldValues { values: scores, tokens: usage.and_then(input_tokens) })
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn both_formats_are_read() {
        let jina = br#"{"results":[{"index":1,"relevance_score":0.9},{"index":0,"relevance_score":0.25}],"usage":{"total_tokens":7}}"#;
        let told = read(jina, 2, false).unwrap();
        assert_eq!((told.values, told.tokens), (vec![0.25, 0.9], Some(7)));
        let tei = br#"[{"index":0,"score":0.0},{"index":1,"score":-100.0}]"#;
        let told = read(tei, 2, true).unwrap();
        assert_eq!((told.values[0], told.values[1] < 1e-6, told.tokens), (0.5, true, None));
    }

    #[test]
    fn responses_that_do_not_fit_the_request_are_refused() {
        for body in [
            "[]",
            r#"[{"index":0,"score":1}]"#,
            r#"[{"index":0,"score":1},{"index":0,"score":1}]"#,
            r#"[{"index":0,"score":1},{"index":2,"score":1}]"#,
            r#"[{"index":0,"score":1},{"index":1,"score":1e999}]"#,
            "{}",
        ] {
            assert!(read(body.as_bytes(), 2, false).is_none(), "{body}");
        }
    }
}
