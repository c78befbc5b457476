//! Embeddings of an upstream model: the request and its response.

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::bounded_list::AtMost;
use super::completion_request::text;
use super::errors::unsupported;
use super::request_fields::Fields;
use super::told_usage::{ToldValues, input_tokens};
use crate::calls::prompt::prompt_choice::PromptChoice;
use crate::calls::prompt::text_input::TextInput;
use crate::engine::InputType;
use crate::error::Result;
use crate::upstream::{Api, UpstreamModel};

/// Max numbers of a vector.
const MAX_DIMENSIONS: usize = 1 << 16;
/// How far the length of a vector may be from 1 before it is normalised.
const TOLERANCE: f32 = 1e-3;

/// Texts to embed.
pub struct EmbeddingRequest<'a> {
    pub inputs: &'a [TextInput],
    pub dimensions: Option<u32>,
    pub prompt: &'a PromptChoice,
    /// Truncates texts that are too long.
    pub truncate: bool,
}

#[derive(Deserialize)]
struct Body<'a> {
    data: Vec<Item>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Item {
    index: Option<usize>,
    embedding: AtMost<f32, MAX_DIMENSIONS>,
}

impl EmbeddingRequest<'_> {
    /// The body without the model's name. Fails if the target's server has no field for something.
    pub fn fields(&self, model: &UpstreamModel) -> Result<Fields> {
        let texts = self.inputs.iter().map(|input| text(input, "input", &model.id)).collect::<Result<Vec<&str>>>()?;
        let mut fields = Fields::new();
        fields.insert("input".to_owned(), json!(texts));
        fields.insert("encoding_format".to_owned(), json!("float"));
        fields.extend(self.dimensions.map(|count| ("dimensions".to_owned(), json!(count))));
        let choice = match self.prompt {
            PromptChoice::Purpose(InputType::Unspecified) => None,
            PromptChoice::Purpose(InputType::Query) => Some(("input_type", "query")),
            PromptChoice::Purpose(InputType::Document) => Some(("input_type", "document")),
            PromptChoice::Purpose(InputType::Classification) => Some(("input_type", "classification")),
            PromptChoice::Purpose(InputType::Clustering) => Some(("input_type", "clustering")),
            PromptChoice::Named(name) => Some(("prompt_name", name.as_str())),
        };
        match choice {
            Some((field, value)) if model.api == Api::Outpost => drop(fields.insert(field.to_owned(), json!(value))),
            Some((field, _)) => return Err(unsupported(&model.id, field)),
            None => {}
        }
        // TEI's compatible API has no field for it.
        match self.truncate {
            true if model.api == Api::Tei => return Err(unsupported(&model.id, "truncate")),
            true => add_truncation(&mut fields, model)?,
            false => {}
        }
        Ok(fields)
    }
}

/// Asks the target to truncate texts that are too long.
pub fn add_truncation(fields: &mut Fields, model: &UpstreamModel) -> Result<()> {
    match model.api {
        Api::Outpost | Api::Tei => drop(fields.insert("truncate".to_owned(), json!(true))),
        // Minus one is the model's own limit.
        Api::Vllm => drop(fields.insert("truncate_prompt_tokens".to_owned(), json!(-1))),
        Api::OpenAi | Api::LlamaCpp => return Err(unsupported(&model.id, "truncate")),
    }
    Ok(())
}

/// Reads a response for `count` texts. `None` if it makes no sense.
pub fn read(body: &[u8], count: usize) -> Option<ToldValues<Vec<f32>>> {
    let Body { data, usage } = serde_json::from_slice(body).ok()?;
    let mut vectors = vec![Vec::new(); count];
    for (place, item) in data.into_iter().enumerate() {
        let vector = vectors.get_mut(item.index.unwrap_or(place)).filter(|vector| vector.is_empty())?;
        *vector = item.embedding.0;
    }
    let length = vectors.first().map_or(0, Vec::len);
    let is_sound = |vector: &Vec<f32>| vector.len() == length && vector.iter().all(|number| number.is_finite());
    if !(1..=MAX_DIMENSIONS).contains(&length) || !vectors.iter().all(is_sound) {
        return None;
    }
    vectors.iter_mut().for_each(|vector| normalise(vector));
    Some(ToldValues { values: vectors, tokens: usage.and_then(input_tokens) })
}

/// Scales a vector to length 1, unless it has that already.
fn normalise(vector: &mut [f32]) {
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if length > 0.0 && (length - 1.0).abs() > TOLERANCE {
        vector.iter_mut().for_each(|number| *number /= length);
    }
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn vectors_are_in_order_and_have_length_1() {
        let body = br#"{"data":[{"index":1,"embedding":[0,1]},{"index":0,"embedding":[3,4]}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
        let told = read(body, 2).unwrap();
        assert_eq!((told.values, told.tokens), (vec![vec![0.6, 0.8], vec![0., 1.]], Some(5)));
    }

    #[test]
    fn responses_that_do_not_fit_the_request_are_refused() {
        for body in [
            r#"{"data":[]}"#,
            r#"{"data":[{"index":0,"embedding":[1]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[1]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":2,"embedding":[1]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1,2]}]}"#,
            r#"{"data":[{"index":0,"embedding":[1]},{"index":1,"embedding":[1e999]}]}"#,
            r#"{"data":[{"embedding":[]},{"embedding":[]}]}"#,
            "x",
        ] {
            assert!(read(body.as_bytes(), 2).is_none(), "{body}");
        }
    }
}
