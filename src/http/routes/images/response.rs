//! OpenAI's image response.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::calls::images::{Quality, RunningImages, size_text};
use crate::error::{Error, Result};
use crate::service::stored_images::Format;

#[derive(Serialize, utoipa::ToSchema)]
pub struct ImagesBody {
    created: i64,
    #[schema(value_type = Vec<ImageItem>)]
    data: Box<RawValue>,
    background: &'static str,
    output_format: &'static str,
    /// The requested quality, unless it is `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    quality: Option<&'static str>,
    /// Width and height in pixels.
    size: String,
    usage: ImagesUsage,
}

#[derive(Serialize, utoipa::ToSchema)]
pub struct ImageItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub b64_json: Option<String>,
    /// Needs no key; expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Reproduces this image. Absent if the server of an upstream model does not tell it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// Images are counted per image; their token counts are 0.
#[derive(Clone, Copy, Serialize, utoipa::ToSchema)]
pub struct ImagesUsage {
    images: u64,
    input_tokens: u32,
    input_tokens_details: ImagesTokens,
    output_tokens: u32,
    total_tokens: u32,
}

#[derive(Clone, Copy, Serialize, utoipa::ToSchema)]
struct ImagesTokens {
    image_tokens: u32,
    text_tokens: u32,
}

impl ImagesUsage {
    pub fn of(images: u64) -> Self {
        let input_tokens_details = ImagesTokens { image_tokens: 0, text_tokens: 0 };
        Self { images, input_tokens: 0, input_tokens_details, output_tokens: 0, total_tokens: 0 }
    }
}

/// The body around the items.
pub fn body(running: &RunningImages, format: Format, data: Box<RawValue>) -> ImagesBody {
    ImagesBody {
        created: running.created.as_seconds(),
        data,
        background: "opaque",
        output_format: format.as_str(),
        quality: Some(running.quality).filter(|quality| *quality != Quality::Auto).map(Quality::as_str),
        size: size_text(running.size),
        usage: ImagesUsage::of(running.seeds.len() as u64),
    }
}

/// Images in JSON, encoded off the async threads because each has megabytes.
pub async fn inline(files: Vec<Vec<u8>>, seeds: Vec<Option<u64>>) -> Result<Box<RawValue>> {
    let item = |(file, seed)| ImageItem { b64_json: Some(STANDARD.encode::<Vec<u8>>(file)), url: None, seed };
    let write = move || items(files.into_iter().zip(seeds).map(item).collect());
    actix_web::web::block(write).await.map_err(Error::internal)?
}

pub fn items(items: Vec<ImageItem>) -> Result<Box<RawValue>> {
    to_raw_value(&items).map_err(Error::internal)
}
