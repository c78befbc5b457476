//! Image generation: endpoint 12. The request is read and checked whole; no model of this version
//! can paint yet, and every answer says so.

use actix_web::{post, web};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::chat::refuse_unknown;
use crate::engine::Kind;
use crate::error::{Error, Result};
use crate::http::input::ApiJson;
use crate::http::reply::Reply;
use crate::http::{Api, caller::Caller};
use crate::readable::shorten;

const LONGEST_PROMPT: usize = 32_000;
const MOST_IMAGES: u32 = 10;
/// Fields that cannot change what this server answers.
const IGNORED: [&str; 1] = ["user"];

#[derive(Deserialize, utoipa::ToSchema)]
pub struct ImageRequest {
    /// Id of an installed model.
    model: String,
    /// What the picture shows, 1–32,000 characters.
    prompt: String,
    /// Width and height in pixels, such as `512x512`.
    size: Option<String>,
    /// Number of images, 1–10.
    n: Option<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

impl ImageRequest {
    /// Checks every field on its own; returns the model.
    fn check(self) -> Result<String> {
        refuse_unknown(&self.rest, &IGNORED)?;
        let length = self.prompt.chars().count();
        if !(1..=LONGEST_PROMPT).contains(&length) {
            let text = format!("'prompt' has {length} characters; it must have 1 to {LONGEST_PROMPT}.");
            return Err(Error::invalid("prompt", text));
        }
        if let Some(size) = self.size.filter(|size| !is_size(size)) {
            let text = format!("'size' is '{}'; write width and height in pixels, such as 512x512.", shorten(&size));
            return Err(Error::invalid("size", text));
        }
        match self.n {
            Some(n) if !(1..=MOST_IMAGES).contains(&n) => {
                Err(Error::invalid("n", format!("n is {n}; it must be from 1 to {MOST_IMAGES}.")))
            }
            _ => Ok(self.model),
        }
    }
}

fn is_size(text: &str) -> bool {
    let pixels = |text: &str| text.parse::<u32>().is_ok_and(|pixels| (1..=16_384).contains(&pixels));
    text == "auto" || text.split_once('x').is_some_and(|(width, height)| pixels(width) && pixels(height))
}

/// Create images from a prompt. This version has no model that can; the answer is always an error.
#[utoipa::path(tag = "images", request_body = ImageRequest, responses((status = 400, description = "No installed model can create images.")))]
#[post("/images/generations")]
pub async fn create(caller: Caller, body: ApiJson<ImageRequest>, api: web::Data<Api>) -> Reply {
    let model = body.0.check()?;
    Err(api.models.unserved(&caller.access, &model, Kind::Unknown, "create images").await)
}
