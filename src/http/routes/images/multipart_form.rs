//! Multipart forms with images: files, and the request's fields as text.

use actix_web::HttpRequest;
use actix_web::web::Payload;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::request::{CheckedRequest, ImageRequest, MAX_PROMPT_CHARS};
use crate::calls::images::{EditKind, SourceImage};
use crate::display::shorten;
use crate::error::{Code, Error, Result};
use crate::http::extractors::from_json;
use crate::http::multipart::{FieldKind, Part, Parts};
use crate::http::unknown_fields::UnknownFields;
use crate::service::limits::concurrency_limit::Slot;

/// Max bytes of an image or mask file.
const MAX_IMAGE_BYTES: usize = 20 << 20;
/// Max bytes of the other parts and the boundaries.
const FRAME: u64 = 1 << 20;
const MAX_FIELD_BYTES: usize = 4096;
/// Max parts; more than the number of fields.
const MAX_PARTS: usize = 64;

fn kind(field: &str) -> FieldKind {
    match field {
        "stream" | "resize" => FieldKind::Flag,
        "n"
        | "seed"
        | "steps"
        | "num_inference_steps"
        | "guidance_scale"
        | "strength"
        | "output_compression"
        | "partial_images"
        | "lora" => FieldKind::Json,
        _ => FieldKind::Text,
    }
}

/// The parts of an edit.
#[derive(Deserialize, utoipa::ToSchema)]
#[expect(dead_code, reason = "describes the form in /openapi.json; it is read part by part")]
pub struct EditForm {
    /// The image: PNG, JPEG or WebP. Without a mask, its transparent areas are regenerated.
    #[schema(value_type = String, format = Binary)]
    image: String,
    /// An image of the same size: transparent (or, without an alpha channel, white) areas are regenerated.
    #[schema(value_type = Option<String>, format = Binary)]
    mask: Option<String>,
    /// Strength of the change, above 0 up to 1; if absent, 1 with a mask and 0.8 without.
    strength: Option<f32>,
    #[serde(flatten)]
    request: ImageRequest,
}

/// The parts of a request for variations. `prompt` may be absent.
#[derive(Deserialize, utoipa::ToSchema)]
#[expect(dead_code, reason = "as above")]
pub struct VariationForm {
    /// The image: PNG, JPEG or WebP.
    #[schema(value_type = String, format = Binary)]
    image: String,
    /// Strength of the change, above 0 up to 1; 0.6 if absent.
    strength: Option<f32>,
    /// Id of an installed model.
    model: String,
    /// Description of the image.
    prompt: Option<String>,
    /// Every other field of `/images/generations`.
    n: Option<u32>,
}

/// The parts read so far.
#[derive(Default)]
struct Form {
    image: Option<Vec<u8>>,
    mask: Option<Vec<u8>>,
    fields: Map<String, Value>,
}

/// Reads the whole form into memory; `slot` is held until its files are processed.
pub async fn read(
    request: &HttpRequest,
    payload: Payload,
    kind: EditKind,
    slot: Slot,
    unknown: UnknownFields,
) -> Result<CheckedRequest> {
    let largest = 2 * MAX_IMAGE_BYTES as u64 + FRAME;
    let mut parts = Parts::of(request, payload, largest, || too_large("image"))?;
    let mut form = Form::default();
    let mut count = 0;
    while let Some(part) = parts.next().await? {
        count += 1;
        if count > MAX_PARTS {
            let text = format!("The form has more than {MAX_PARTS} parts. Send each field once.");
            return Err(Error::new(Code::InvalidParameter, text));
        }
        form.take(part).await?;
    }
    form.finish(kind, slot, unknown)
}

impl Form {
    async fn take(&mut self, part: Part) -> Result<()> {
        let name = part.name().to_owned();
        match name.as_str() {
            // OpenAI's clients send a list with one element under the second name.
            "image" | "image[]" if self.image.is_some() => {
                let text = "'image' is sent more than once; this server accepts one image per request. Send the others in separate requests.";
                Err(Error::invalid("image", text))
            }
            "image" | "image[]" => {
                self.image = Some(file(part, "image").await?);
                Ok(())
            }
            "mask" if self.mask.is_none() => {
                self.mask = Some(file(part, "mask").await?);
                Ok(())
            }
            name if name == "mask" || self.fields.contains_key(name) => {
                let name = shorten(name);
                Err(Error::invalid(&*name, format!("'{name}' is given more than once. Give it once.")))
            }
            "prompt" | "negative_prompt" => {
                // A character has at most four bytes; characters are counted later.
                let text = part.text_within(4 * MAX_PROMPT_CHARS).await?;
                self.fields.insert(name, Value::String(text));
                Ok(())
            }
            field => {
                let kind = kind(field);
                let value = kind.value(part.text_within(MAX_FIELD_BYTES).await?);
                self.fields.insert(name, value);
                Ok(())
            }
        }
    }

    fn finish(mut self, kind: EditKind, slot: Slot, unknown: UnknownFields) -> Result<CheckedRequest> {
        let strength = self.fields.remove("strength").map(|value| strength(&value)).transpose()?;
        let image = self.image.ok_or_else(|| {
            Error::invalid(
                "image",
                "'image' is missing. Send the image as a part of the form, for example with -F image=@photo.png.",
            )
        })?;
        if kind == EditKind::Variation {
            if self.mask.is_some() {
                let text = "'mask' is for /images/edits; a variation uses the whole image. Leave it out.";
                return Err(Error::invalid("mask", text));
            }
            self.fields.entry("prompt").or_insert_with(|| Value::String(String::new()));
        }
        let fields = Value::Object(self.fields).to_string();
        let mut checked = from_json::<ImageRequest>(fields.as_bytes())?.check(kind == EditKind::Edit, unknown)?;
        checked.call.original = Some(SourceImage { image, mask: self.mask, strength, kind, slot });
        Ok(checked)
    }
}

async fn file(part: Part, field: &'static str) -> Result<Vec<u8>> {
    let bytes = part.bytes_within(MAX_IMAGE_BYTES, || too_large(field)).await?;
    if bytes.is_empty() {
        return Err(Error::invalid(field, format!("'{field}' is empty. Send a PNG, JPEG or WebP.")));
    }
    Ok(bytes)
}

fn strength(value: &Value) -> Result<f32> {
    match value.as_f64() {
        Some(number) if number > 0.0 && number <= 1.0 => Ok(number as f32),
        _ => {
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let text = format!("'strength' is '{}'; it must be a number above 0 and at most 1.", shorten(&shown));
            Err(Error::invalid("strength", text))
        }
    }
}

fn too_large(field: &str) -> Error {
    let text = format!("'{field}' is larger than {MAX_IMAGE_BYTES} bytes (20 MiB). Send a smaller image.");
    Error::new(Code::RequestTooLarge, text).param(field)
}
