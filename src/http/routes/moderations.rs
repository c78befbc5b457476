//! Moderation, in OpenAI's format.

use actix_web::{post, web};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use utoipa_actix_web::service_config::ServiceConfig;

use super::embeddings::FEW;
use super::text_inputs::check_count;
use crate::calls::moderations::{Categories, Moderated, ModerationCall, ModerationInput, ModerationResult};
use crate::error::{Error, Result};
use crate::http::extractors::ApiJson;
use crate::http::header_list::with_lists;
use crate::http::response::ApiResult;
use crate::http::{Api, authentication::Caller};

pub fn routes(config: &mut ServiceConfig) {
    config.service(create);
}

const MAX_INPUTS: usize = 2048;
/// Fields that do not affect the output of this server.
const IGNORED: [&str; 1] = ["user"];
const NO_IMAGES: &str = "is an image, but moderation reads only text. Send parts of the type text.";

#[derive(Deserialize, utoipa::ToSchema)]
pub struct ModerationRequest {
    /// Id of an installed classification model; absent: the alias `omni-moderation-latest`, or else the first model that
    /// moderates.
    model: Option<String>,
    /// Texts to classify: one, an array of up to 2,048, or the text parts of one message.
    input: Inputs,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "must be a string, an array of strings, or an array of parts with type and text")]
enum Inputs {
    Text(String),
    Texts(Vec<String>),
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Deserialize, utoipa::ToSchema)]
#[schema(as = ModerationPart)]
struct Part {
    r#type: PartType,
    text: Option<String>,
    /// Refused: images are not classified.
    #[schema(value_type = Option<Object>)]
    image_url: Option<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
enum PartType {
    Text,
    ImageUrl,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ModerationBody {
    model: String,
    /// In the order of the texts; one for all parts of a message.
    #[schema(value_type = Vec<ModerationResultBody>)]
    results: Box<RawValue>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct ModerationResultBody<'a> {
    /// Whether any category applies.
    flagged: bool,
    /// Whether each category applies: OpenAI's, and the labels of the model.
    #[schema(value_type = std::collections::HashMap<String, bool>)]
    categories: Entries<'a, bool>,
    /// From 0 to 1. OpenAI's categories without a label of the model have 0.
    #[schema(value_type = std::collections::HashMap<String, f32>)]
    category_scores: Entries<'a, f32>,
    /// `text` for the categories that the model scores.
    #[schema(value_type = std::collections::HashMap<String, Vec<String>>)]
    category_applied_input_types: Entries<'a, &'static [&'static str]>,
}

/// An object with a value for each category.
struct Entries<'a, T> {
    names: &'a [String],
    values: Vec<T>,
}

impl<T: Serialize> Serialize for Entries<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.values.len()))?;
        for (name, value) in self.names.iter().zip(&self.values) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl ModerationRequest {
    /// Validates each field.
    fn check(self) -> Result<ModerationCall> {
        let one = |field: String, text: String| ModerationInput { texts: vec![(field, text)] };
        let inputs: Vec<ModerationInput> = match self.input {
            Inputs::Text(text) => vec![one("input".to_owned(), text)],
            Inputs::Texts(texts) => {
                let numbered = texts.into_iter().enumerate();
                numbered.map(|(index, text)| one(format!("input[{index}]"), text)).collect()
            }
            Inputs::Parts(parts) => {
                let texts = parts.into_iter().enumerate().map(part).collect::<Result<Vec<_>>>()?;
                vec![ModerationInput { texts }]
            }
        };
        let count = inputs.iter().map(|input| input.texts.len()).sum();
        check_count("input", count, MAX_INPUTS)?;
        match inputs.iter().flat_map(|input| &input.texts).find(|(_, text)| text.is_empty()) {
            None => Ok(ModerationCall { model: self.model, inputs }),
            Some((field, _)) => Err(Error::invalid(field.clone(), format!("'{field}' is empty; send some text."))),
        }
    }
}

/// The text of a part, with the name of its field.
fn part((index, part): (usize, Part)) -> Result<(String, String)> {
    let field = format!("input[{index}]");
    match part {
        Part { r#type: PartType::Text, text: Some(text), image_url: None } => Ok((format!("{field}.text"), text)),
        Part { r#type: PartType::Text, text: None, image_url: None } => {
            let field = format!("{field}.text");
            let text = format!("'{field}' is missing; a part of the type text has it.");
            Err(Error::invalid(field, text))
        }
        Part { .. } => Err(Error::invalid(field.clone(), format!("'{field}' {NO_IMAGES}"))),
    }
}

/// Classify texts by categories of harmful content.
#[utoipa::path(tag = "moderations", request_body = ModerationRequest, responses((status = 200, body = ModerationBody)))]
#[post("/moderations")]
async fn create(caller: Caller, body: ApiJson<ModerationRequest>, api: web::Data<Api>) -> ApiResult {
    moderate(&caller, body.0, &api).await
}

/// Classifies texts, whether or not a client waits.
pub async fn moderate(caller: &Caller, request: ModerationRequest, api: &Api) -> ApiResult {
    let ignored = api.unknown_fields.left_out::<ModerationRequest>(&request.rest, &IGNORED)?;
    let call = request.check()?;
    let Moderated { id, model, categories, results, .. } =
        api.embeddings.moderate(&caller.access, call, &caller.recorder).await?;
    let results = match results.len() <= FEW {
        true => write(&categories, results),
        false => web::block(move || write(&categories, results)).await.map_err(Error::internal)?,
    };
    let results = results.map_err(Error::internal)?;
    Ok(with_lists(caller.mount.identified(id, ModerationBody { model, results }), &ignored, &[]))
}

fn write(categories: &Categories, results: Vec<ModerationResult>) -> serde_json::Result<Box<RawValue>> {
    let Categories { names, are_scored, .. } = categories;
    let types = |is_scored: &bool| if *is_scored { &["text"][..] } else { &[] };
    let body = |ModerationResult { flagged, applies, scores }| ModerationResultBody {
        flagged,
        categories: Entries { names, values: applies },
        category_scores: Entries { names, values: scores },
        category_applied_input_types: Entries { names, values: are_scored.iter().map(types).collect() },
    };
    to_raw_value(&results.into_iter().map(body).collect::<Vec<_>>())
}
