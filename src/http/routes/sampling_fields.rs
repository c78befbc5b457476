//! The request fields that chat and text completions share, and their checks.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::PartialSchema;

use crate::calls::sampling_request::SamplingRequest;
use crate::display::shorten;
use crate::engine::{MAX_STOP_BYTES, MAX_STOPS, SamplingRange};
use crate::error::{Error, Result};
use crate::http::unknown_fields::UnknownFields;
use crate::service::json_fields::invalid_field;

const MAX_BIASES: usize = 1024;

/// Fields that do not affect the output of this server.
const IGNORED: [&str; 15] = [
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prompt_cache_options",
    "prediction",
    "moderation",
    "verbosity",
    "reasoning_effort",
    "keep_alive",
    "cache_prompt",
    "num_ctx",
];

/// Adds the shared fields to the struct of a request. Not a flattened struct, whose fields would have no path in error
/// messages.
macro_rules! with_sampling_fields {
    ($(#[$attribute:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$attribute])*
        pub struct $name {
            $($own)*
            stream: Option<bool>,
            stream_options: Option<$crate::http::routes::sampling_fields::StreamOptions>,
            /// 0–2, 0.8 if absent; 0 always picks the most likely token.
            temperature: Option<f32>,
            /// 0–1, 0.95 if absent; 0 always picks the most likely token.
            top_p: Option<f32>,
            /// Sample from this many most likely tokens, 40 if absent; 0 is off.
            top_k: Option<u32>,
            /// Sample from tokens with at least this probability, relative to the most likely one: 0–1, 0.05 if absent.
            min_p: Option<f32>,
            /// Locally typical sampling: 0–1; 1 is off.
            typical_p: Option<f32>,
            /// −2 to 2.
            frequency_penalty: Option<f32>,
            /// −2 to 2.
            presence_penalty: Option<f32>,
            /// Above 0 up to 10; 1 is off.
            #[serde(alias = "repeat_penalty")]
            repetition_penalty: Option<f32>,
            /// The same seed and request give the same output.
            seed: Option<i64>,
            /// One string, or up to 16; empty ones are ignored.
            stop: Option<$crate::http::routes::sampling_fields::Stop>,
            /// Min tokens before generation may stop.
            min_tokens: Option<u32>,
            /// Continue past the model's end-of-sequence token.
            ignore_eos: Option<bool>,
            /// Token id → −100 to 100.
            logit_bias: Option<std::collections::BTreeMap<String, f32>>,
            #[serde(flatten)]
            #[schema(ignore)]
            rest: serde_json::Map<String, serde_json::Value>,
        }

        impl $name {
            /// Takes the shared fields out of the request.
            fn sampling_fields(&mut self) -> $crate::http::routes::sampling_fields::SamplingFields {
                $crate::http::routes::sampling_fields::SamplingFields {
                    stream: self.stream,
                    stream_options: self.stream_options,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    typical_p: self.typical_p,
                    frequency_penalty: self.frequency_penalty,
                    presence_penalty: self.presence_penalty,
                    repetition_penalty: self.repetition_penalty,
                    seed: self.seed,
                    stop: self.stop.take(),
                    min_tokens: self.min_tokens,
                    ignore_eos: self.ignore_eos,
                    logit_bias: self.logit_bias.take(),
                }
            }
        }
    };
}
pub(super) use with_sampling_fields;

/// The shared fields of a request.
#[derive(Default)]
pub struct SamplingFields {
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub temperature: Option<f32>,
    pub top_p: Option<f32>,
    pub top_k: Option<u32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub seed: Option<i64>,
    pub stop: Option<Stop>,
    pub min_tokens: Option<u32>,
    pub ignore_eos: Option<bool>,
    pub logit_bias: Option<BTreeMap<String, f32>>,
}

/// The shared fields, checked.
pub struct CheckedSampling {
    pub sampling: SamplingRequest,
    pub seed: Option<u64>,
    /// `None`: not sent.
    pub stop: Option<Vec<String>>,
    /// `None` if not streaming.
    pub stream: Option<StreamOptions>,
}

#[derive(Clone, Copy, Default, Deserialize, utoipa::ToSchema)]
pub struct StreamOptions {
    /// Send an additional chunk with the usage before the end.
    #[serde(default)]
    pub include_usage: bool,
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of strings")]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

impl SamplingFields {
    /// Checks each field. `max_tokens`: with the name of its field.
    pub fn check(self, max_tokens: Option<(u32, &str)>) -> Result<CheckedSampling> {
        check_max_tokens(max_tokens, self.min_tokens)?;
        let sampling = SamplingRequest {
            temperature: number(SamplingRange::TEMPERATURE, self.temperature)?,
            top_p: number(SamplingRange::TOP_P, self.top_p)?,
            top_k: self.top_k,
            min_p: number(SamplingRange::MIN_P, self.min_p)?,
            typical_p: number(SamplingRange::TYPICAL_P, self.typical_p)?,
            frequency_penalty: number(SamplingRange::FREQUENCY_PENALTY, self.frequency_penalty)?,
            presence_penalty: number(SamplingRange::PRESENCE_PENALTY, self.presence_penalty)?,
            repetition_penalty: number(SamplingRange::REPETITION_PENALTY, self.repetition_penalty)?,
            logit_bias: biases(self.logit_bias.as_ref())?,
            min_tokens: self.min_tokens,
            ignore_eos: self.ignore_eos,
        };
        let stream = stream(self.stream.unwrap_or(false), self.stream_options)?;
        Ok(CheckedSampling { sampling, seed: self.seed.map(i64::cast_unsigned), stop: stop(self.stop)?, stream })
    }
}

/// The fields that would change the output and that the request `T` does not have: refused, or their names. `is_idle`:
/// whether a further field with this value changes nothing.
pub fn left_out<T: PartialSchema>(
    unknown: UnknownFields,
    rest: &Map<String, Value>,
    is_idle: impl Fn(&str, &Value) -> bool,
) -> Result<Vec<String>> {
    let changes_nothing =
        |name: &str, value: &Value| IGNORED.contains(&name) || is_neutral(name, value) || is_idle(name, value);
    unknown.left_out_unless::<T>(rest, changes_nothing)
}

/// Whether a sampling field of other servers has the value that switches it off.
fn is_neutral(name: &str, value: &Value) -> bool {
    match name {
        "tfs_z" => value.as_f64() == Some(1.0),
        "mirostat" | "top_a" | "epsilon_cutoff" | "eta_cutoff" | "dry_multiplier" | "xtc_probability" => {
            value.as_f64() == Some(0.0)
        }
        _ => false,
    }
}

pub fn within<T: PartialOrd + Copy + std::fmt::Display>(field: &str, value: T, min: T, max: T) -> Result<T> {
    if value >= min && value <= max {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("'{field}' is {value}; it must be from {min} to {max}.")))
}

fn number(range: SamplingRange, given: Option<f32>) -> Result<Option<f32>> {
    let checked = given.map(|value| range.check(value)).transpose();
    checked.or_else(|what| invalid_field(range.field, &what))
}

fn check_max_tokens(max_tokens: Option<(u32, &str)>, min_tokens: Option<u32>) -> Result<()> {
    match (max_tokens, min_tokens) {
        (Some((0, field)), _) => {
            Err(Error::invalid(field, format!("'{field}' is 0. Ask for at least 1 token, or leave it out.")))
        }
        (Some((max, field)), Some(min)) if min > max => {
            Err(Error::invalid("min_tokens", format!("'min_tokens' is {min}, more than '{field}', which is {max}.")))
        }
        _ => Ok(()),
    }
}

fn stream(streamed: bool, options: Option<StreamOptions>) -> Result<Option<StreamOptions>> {
    match options {
        Some(_) if !streamed => Err(Error::invalid("stream_options", "'stream_options' requires stream: true.")),
        options => Ok(streamed.then(|| options.unwrap_or_default())),
    }
}

fn biases(given: Option<&BTreeMap<String, f32>>) -> Result<Vec<(u32, f32)>> {
    let Some(given) = given else { return Ok(Vec::new()) };
    if given.len() > MAX_BIASES {
        let message = format!("'logit_bias' has {} entries; at most {MAX_BIASES} are allowed.", given.len());
        return Err(Error::invalid("logit_bias", message));
    }
    given
        .iter()
        .map(|(token, bias)| {
            let field = format!("logit_bias.{}", shorten(token));
            let id = token.parse().map_err(|_| {
                Error::invalid(
                    &*field,
                    format!("'{field}' is not a token ID. A token ID is a whole number of at least 0."),
                )
            })?;
            within(&field, *bias, -100.0, 100.0).map(|bias| (id, bias))
        })
        .collect()
}

fn stop(given: Option<Stop>) -> Result<Option<Vec<String>>> {
    let texts = |stop| match stop {
        Stop::One(text) => vec![text],
        Stop::Many(texts) => texts,
    };
    given.map(|stop| check_stops("stop", texts(stop))).transpose()
}

/// Checks the number and the lengths of stop strings. Clients send an empty one for none.
pub fn check_stops(field: &str, mut stops: Vec<String>) -> Result<Vec<String>> {
    if let Some(index) = stops.iter().position(|text| text.len() > MAX_STOP_BYTES) {
        let field = format!("{field}[{index}]");
        let message = format!("'{field}' is longer than {MAX_STOP_BYTES} bytes. Shorten it.");
        return Err(Error::invalid(field, message));
    }
    stops.retain(|text| !text.is_empty());
    if stops.len() > MAX_STOPS {
        let text = format!("'{field}' has {} strings; at most {MAX_STOPS} are allowed.", stops.len());
        return Err(Error::invalid(field, text));
    }
    Ok(stops)
}
