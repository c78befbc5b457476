//! Image requests: OpenAI's fields and those of local servers. Each is supported, ignored because it cannot change the
//! result, or rejected by name.

use std::fmt::Display;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::calls::images::{ImageCall, Output, Quality};
use crate::display::shorten;
use crate::engine::{MAX_IMAGES, SchedulerName};
use crate::error::{Error, Result};
use crate::http::unknown_fields::UnknownFields;
use crate::service::stored_images::Format;

/// Max characters of a prompt and of a negative prompt.
pub(super) const MAX_PROMPT_CHARS: usize = 32_000;
const MAX_SIDE: usize = 16_384;
const MAX_STEPS: u32 = 500;
const MAX_GUIDANCE: f32 = 100.0;
const MAX_ADAPTERS: usize = 8;
const MAX_ADAPTER_NAME_CHARS: usize = 128;
const MAX_ADAPTER_WEIGHT: f32 = 10.0;
const MAX_PARTIAL: u32 = 3;
/// OpenAI's default: best JPEG quality.
const QUALITY: u8 = 100;

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 2] = ["user", "safety_identifier"];
/// Fields of OpenAI's models with the values that this server supports; other values are rejected.
const GIVEN: [(&str, &[&str]); 2] = [("background", &["auto", "opaque"]), ("moderation", &["auto", "low"])];

#[derive(Deserialize, utoipa::ToSchema)]
pub struct ImageRequest {
    /// Id of an installed model.
    model: String,
    /// Description of the image, 1–32,000 characters.
    prompt: String,
    /// Number of images, 1–10.
    n: Option<u32>,
    /// Width and height in pixels, such as `512x512`, or `auto`: the model's default.
    size: Option<String>,
    /// Generate the image at a size that the model is good at, and scale it to `size`.
    resize: Option<bool>,
    /// `low` takes about half of the model's default steps; all others take the default. `standard` means `auto`, and
    /// `hd`, `xhigh` and `max` mean `high`.
    quality: Option<QualityName>,
    /// `b64_json` if absent. A `url` needs no key and expires.
    response_format: Option<Delivery>,
    /// `png` if absent. `webp` is lossless.
    output_format: Option<OutputFormat>,
    /// Quality of a JPEG, 0–100; 100 if absent.
    #[schema(maximum = 100)]
    output_compression: Option<u32>,
    /// 0 to 2^63−1: the same seed and request give the same image. Image `i` uses the seed plus `i`.
    #[schema(minimum = 0)]
    seed: Option<i64>,
    /// 1–500; the model's default if absent. Also `num_inference_steps`.
    #[serde(alias = "num_inference_steps")]
    #[schema(minimum = 1, maximum = 500)]
    steps: Option<u32>,
    /// How closely the prompt is followed, 0–100; the model's default if absent.
    #[schema(minimum = 0, maximum = 100)]
    guidance_scale: Option<f32>,
    /// What the image should not show.
    negative_prompt: Option<String>,
    /// The sampling method: `ddim`, `ddpm`, `pndm`, `euler`, `euler_a`, `dpmpp_2m`, `dpmpp_2m_karras`, `unipc`, `lcm`
    /// or `flow_euler`, if the model supports it; the model's default if absent.
    scheduler: Option<String>,
    /// Adapters of the model, at most 8.
    lora: Option<Vec<Adapter>>,
    /// Send events during generation.
    stream: Option<bool>,
    /// Partial images, 0–3 per image; only with `stream: true`.
    #[schema(maximum = 3)]
    partial_images: Option<u32>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
struct Adapter {
    name: String,
    /// −10 to 10; 1 if absent.
    weight: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    B64Json,
    Url,
}

#[derive(Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum OutputFormat {
    Png,
    Jpeg,
    Webp,
}

#[derive(Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
enum QualityName {
    Auto,
    Low,
    Medium,
    High,
    Standard,
    Hd,
    Xhigh,
    Max,
}

/// A validated request.
pub struct CheckedRequest {
    pub call: ImageCall,
    pub output: Output,
    /// Whether `output_format` was sent.
    pub format_named: bool,
    pub response_format: Delivery,
    pub stream: bool,
    /// The fields that are left out.
    pub ignored: Vec<String>,
}

impl ImageRequest {
    /// Validates each field. `prompted`: whether a prompt is required.
    pub fn check(mut self, prompted: bool, unknown: UnknownFields) -> Result<CheckedRequest> {
        self.rest.retain(|name, value| !is_given(name, value));
        refuse_given(&self.rest)?;
        let ignored = unknown.left_out::<ImageRequest>(&self.rest, &IGNORED)?;
        let stream = self.stream.unwrap_or(false);
        let response_format = self.response_format.unwrap_or(Delivery::B64Json);
        if stream && response_format == Delivery::Url {
            let text =
                "'response_format' is 'url', but a stream contains the images themselves. Leave one of the two out.";
            return Err(Error::invalid("response_format", text));
        }
        let format = self.output_format.map(Format::from);
        let output = output(format.unwrap_or_default(), self.output_compression)?;
        Ok(CheckedRequest {
            call: self.call(prompted, stream)?,
            output,
            format_named: format.is_some(),
            response_format,
            stream,
            ignored,
        })
    }

    /// Validates each field. `prompted`: whether a prompt is required.
    fn call(self, prompted: bool, stream: bool) -> Result<ImageCall> {
        let negative_prompt = self.negative_prompt;
        characters("prompt", &self.prompt, usize::from(prompted))?;
        characters("negative_prompt", negative_prompt.as_deref().unwrap_or_default(), 0)?;
        let steps = self.steps.map(|steps| within("steps", steps, 1, MAX_STEPS)).transpose()?;
        let seed = self.seed.map(|seed| within("seed", seed, 0, i64::MAX)).transpose()?;
        Ok(ImageCall {
            model: self.model,
            prompt: self.prompt,
            negative_prompt,
            size: self.size.as_deref().map_or(Ok(None), size)?,
            resize: self.resize.unwrap_or(false),
            quality: self.quality.map(Quality::from).unwrap_or_default(),
            count: within("n", self.n.unwrap_or(1), 1, MAX_IMAGES)?,
            seed: seed.map(i64::unsigned_abs),
            steps: steps.map(|steps| steps as usize),
            guidance: self.guidance_scale.map(|by| within("guidance_scale", by, 0.0, MAX_GUIDANCE)).transpose()?,
            scheduler: self.scheduler.as_deref().map(scheduler).transpose()?,
            lora: adapters(self.lora.unwrap_or_default())?,
            previews: previews(self.partial_images, stream)?,
            original: None,
        })
    }
}

impl From<OutputFormat> for Format {
    fn from(name: OutputFormat) -> Self {
        match name {
            OutputFormat::Png => Format::Png,
            OutputFormat::Jpeg => Format::Jpeg,
            OutputFormat::Webp => Format::WebP,
        }
    }
}

impl From<QualityName> for Quality {
    fn from(name: QualityName) -> Self {
        match name {
            QualityName::Auto | QualityName::Standard => Quality::Auto,
            QualityName::Low => Quality::Low,
            QualityName::Medium => Quality::Medium,
            QualityName::High | QualityName::Hd | QualityName::Xhigh | QualityName::Max => Quality::High,
        }
    }
}

fn is_given(name: &str, value: &Value) -> bool {
    let given = GIVEN.iter().find(|(field, _)| *field == name);
    given.zip(value.as_str()).is_some_and(|((_, values), value)| values.contains(&value))
}

fn refuse_given(rest: &Map<String, Value>) -> Result<()> {
    let other = |(field, values): (&'static str, &[&str])| {
        let value = rest.get(field).filter(|value| !value.is_null())?;
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let allowed = values.join(" or ");
        let text = format!(
            "'{field}' is '{}', which this server does not support. Send {allowed}, or leave it out.",
            shorten(&shown)
        );
        Some(Error::invalid(field, text))
    };
    GIVEN.into_iter().find_map(other).map_or(Ok(()), Err)
}

fn characters(field: &str, text: &str, min: usize) -> Result<()> {
    let length = text.chars().count();
    if (min..=MAX_PROMPT_CHARS).contains(&length) {
        return Ok(());
    }
    let text = format!("'{field}' has {length} characters; it must have {min} to {MAX_PROMPT_CHARS}.");
    Err(Error::invalid(field, text))
}

pub(super) fn within<T: PartialOrd + Copy + Display>(field: &str, value: T, min: T, max: T) -> Result<T> {
    if value >= min && value <= max {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("'{field}' is {value}; it must be from {min} to {max}.")))
}

/// `None` is the model's default.
fn size(text: &str) -> Result<Option<[usize; 2]>> {
    if text == "auto" {
        return Ok(None);
    }
    let pixels = |text: &str| {
        let plain = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|pixels| plain && (1..=MAX_SIDE).contains(pixels))
    };
    let size = text.split_once('x').and_then(|(width, height)| Some([pixels(width)?, pixels(height)?]));
    size.map(Some).ok_or_else(|| {
        let text =
            format!("'size' is '{}'; write width and height in pixels, such as 512x512, or auto.", shorten(text));
        Error::invalid("size", text)
    })
}

fn scheduler(name: &str) -> Result<SchedulerName> {
    name.parse().map_err(|()| {
        let names = SchedulerName::ALL.map(|(_, name)| name).join(", ");
        Error::invalid("scheduler", format!("'scheduler' is '{}'; it must be one of {names}.", shorten(name)))
    })
}

fn output(format: Format, quality: Option<u32>) -> Result<Output> {
    let quality = within("output_compression", quality.unwrap_or(QUALITY.into()), 0, 100)?;
    let quality = u8::try_from(quality).unwrap_or(QUALITY);
    if quality != QUALITY && format != Format::Jpeg {
        let text = format!(
            "'output_compression' is {quality}, but {} is lossless. Send output_format: \"jpeg\", or leave it out.",
            format.as_str()
        );
        return Err(Error::invalid("output_compression", text));
    }
    Ok(Output { format, quality })
}

fn previews(requested: Option<u32>, stream: bool) -> Result<usize> {
    let count = within("partial_images", requested.unwrap_or(0), 0, MAX_PARTIAL)?;
    if count > 0 && !stream {
        let text = format!("'partial_images' is {count}, but only a stream has any. Send stream: true, too.");
        return Err(Error::invalid("partial_images", text));
    }
    Ok(count as usize)
}

fn adapters(requested: Vec<Adapter>) -> Result<Vec<(String, f32)>> {
    if requested.len() > MAX_ADAPTERS {
        let text = format!("'lora' has {} adapters; at most {MAX_ADAPTERS} are allowed.", requested.len());
        return Err(Error::invalid("lora", text));
    }
    let one = |(index, Adapter { name, weight }): (usize, Adapter)| {
        let field = format!("lora[{index}].weight");
        let weight = within(&field, weight.unwrap_or(1.0), -MAX_ADAPTER_WEIGHT, MAX_ADAPTER_WEIGHT)?;
        // The name is an adapter name, never a path.
        let odd = |c: char| c.is_control() || matches!(c, '/' | '\\');
        if name.is_empty()
            || name.chars().count() > MAX_ADAPTER_NAME_CHARS
            || name.starts_with('.')
            || name.contains(odd)
        {
            let field = format!("lora[{index}].name");
            let text = format!(
                "'{field}' must have 1 to {MAX_ADAPTER_NAME_CHARS} characters, no slash among them, and not begin with a dot."
            );
            return Err(Error::invalid(field, text));
        }
        Ok((name, weight))
    };
    requested.into_iter().enumerate().map(one).collect()
}
