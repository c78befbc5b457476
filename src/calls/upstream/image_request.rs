//! Images of an upstream model: the request and its response.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::errors::unsupported;
use super::request_fields::{Fields, number};
use crate::engine::SchedulerName;
use crate::error::Result;
use crate::upstream::{Api, UpstreamModel};

/// Images to generate.
pub struct ImageRequest<'a> {
    pub prompt: &'a str,
    pub count: u32,
    /// As the target gets it, such as `512x512`; `None`: the model's default.
    pub size: Option<String>,
    /// `None`: the default.
    pub quality: Option<&'static str>,
    pub negative_prompt: Option<&'a str>,
    /// Of the first image.
    pub seed: Option<u64>,
    pub steps: Option<usize>,
    pub guidance: Option<f32>,
    pub scheduler: Option<SchedulerName>,
    /// LoRA adapters by name, with their weights.
    pub lora: &'a [(String, f32)],
    /// Number of previews per image.
    pub previews: usize,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    data: Vec<Item<'a>>,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    b64_json: Cow<'a, str>,
}

impl ImageRequest<'_> {
    /// The body without the model's name. Fails if the target's server has no field for something.
    pub fn fields(&self, model: &UpstreamModel) -> Result<Fields> {
        let mut fields = Fields::new();
        fields.insert("prompt".to_owned(), json!(self.prompt));
        fields.insert("n".to_owned(), json!(self.count));
        fields.insert("response_format".to_owned(), json!("b64_json"));
        fields.extend(self.size.as_ref().map(|size| ("size".to_owned(), json!(size))));
        fields.extend(self.quality.map(|quality| ("quality".to_owned(), json!(quality))));
        let lora = self.lora.iter().map(|(name, weight)| json!({ "name": name, "weight": number(*weight) }));
        let further = [
            ("negative_prompt", self.negative_prompt.map(Value::from)),
            ("seed", self.seed.map(Value::from)),
            ("steps", self.steps.map(Value::from)),
            ("guidance_scale", self.guidance.map(number)),
            ("scheduler", self.scheduler.map(|scheduler| Value::from(scheduler.to_string()))),
            ("lora", (!self.lora.is_empty()).then(|| lora.collect())),
        ];
        for (name, value) in further {
            let Some(value) = value else { continue };
            if model.api != Api::Outpost {
                return Err(unsupported(&model.id, name));
            }
            fields.insert(name.to_owned(), value);
        }
        if self.previews > 0 {
            return Err(unsupported(&model.id, "partial_images"));
        }
        Ok(fields)
    }
}

/// Reads the files of a response with `count` images. `None` if it makes no sense.
pub fn read(body: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let Body { data } = serde_json::from_slice(body).ok()?;
    if data.len() != count {
        return None;
    }
    data.into_iter().map(|item| STANDARD.decode(item.b64_json.as_bytes()).ok()).collect()
}
