//! The request fields that chat and text completions share, and their checks.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::calls::text::sampling_request::SamplingRequest;
use crate::display::shorten;
use crate::engine::{
    MAX_ALLOWED_TOKENS, MAX_BAD_WORDS, MAX_LOGPROBS_PER_POSITION, MAX_STOP_BYTES, MAX_STOP_TOKENS, MAX_STOPS,
    SamplingParameter, SamplingParameters, SamplingRule, TextOptions,
};
use crate::error::{Error, Result};
use crate::http::unknown_fields::UnknownFields;
use crate::service::validation::json_fields::invalid_field;

const MAX_BIASES: usize = 1024;

/// Adds the shared fields to the struct of a request. Not a flattened struct, whose fields would have no path in error
/// messages.
macro_rules! with_sampling_fields {
    ($(#[$attribute:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $crate::engine::sampling_parameters!({ $crate::http::routes::sampling_fields::request_struct } {
            $(#[$attribute])* pub struct $name { $($own)* }
        });
    };
}
pub(super) use with_sampling_fields;

macro_rules! request_struct {
    ({ $(#[$attribute:meta])* pub struct $name:ident { $($own:tt)* } } $(
        $(#[$doc:meta])* $parameter:ident $([$other:ident])? as $llama:ident: $type:ty, $sent:ty, $default:expr, $rule:expr,
        $servers:expr;
    )+) => {
        $(#[$attribute])*
        pub struct $name {
            $($own)*
            stream: Option<bool>,
            stream_options: Option<$crate::http::routes::sampling_fields::StreamOptions>,
            $(
                $(#[$doc])*
                $parameter: Option<$sent>,
                $(
                    /// The same, as llama.cpp names it.
                    $other: Option<$sent>,
                )?
            )+
            /// The same seed and request give the same output.
            seed: Option<i64>,
            /// One string, or up to 16; empty ones are ignored.
            stop: Option<$crate::http::routes::sampling_fields::Stop>,
            /// Min tokens before generation may stop.
            min_tokens: Option<u32>,
            /// Continue past the model's end-of-sequence token.
            ignore_eos: Option<bool>,
            /// The same, as some front ends name it.
            ban_eos_token: Option<bool>,
            /// Tokens that end the text, at most 128.
            stop_token_ids: Option<Vec<u32>>,
            /// Words that are not generated, at most 128.
            bad_words: Option<Vec<String>>,
            /// The only tokens that are generated, at most 1,024; empty: all.
            allowed_token_ids: Option<Vec<u32>>,
            /// Whether the stop string, or the token of `stop_token_ids`, stays at the end of the text.
            include_stop_str_in_output: Option<bool>,
            /// The same, as SGLang names it.
            no_stop_trim: Option<bool>,
            /// Whether special tokens are left out of the text; true if absent.
            skip_special_tokens: Option<bool>,
            /// Whether the response has the token IDs of the prompt and of each choice.
            return_token_ids: Option<bool>,
            /// Token id → −100 to 100. Also a list of pairs.
            #[schema(value_type = Option<Object>)]
            logit_bias: Option<$crate::http::routes::sampling_fields::LogitBias>,
            #[serde(flatten)]
            #[schema(ignore)]
            rest: serde_json::Map<String, serde_json::Value>,
        }

        impl $name {
            /// Takes the shared fields out of the request.
            ///
            /// # Errors
            /// If a sampling parameter is out of range.
            fn sampling_fields(&mut self) -> $crate::error::Result<$crate::http::routes::sampling_fields::SamplingFields> {
                let given = [$(
                    (stringify!($parameter), self.$parameter$(.or(self.$other))?.map(|value| value as f64)),
                )+];
                Ok($crate::http::routes::sampling_fields::SamplingFields {
                    stream: self.stream,
                    stream_options: self.stream_options.take(),
                    parameters: $crate::http::routes::sampling_fields::parameters(&given)?,
                    seed: self.seed,
                    stop: self.stop.take(),
                    min_tokens: self.min_tokens,
                    ignore_eos: self.ignore_eos.or(self.ban_eos_token),
                    logit_bias: self.logit_bias.take(),
                    stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                    bad_words: self.bad_words.take().unwrap_or_default(),
                    allowed_token_ids: self.allowed_token_ids.take().unwrap_or_default(),
                    text: $crate::engine::TextOptions {
                        keeps_stop: self.include_stop_str_in_output == Some(true) || self.no_stop_trim == Some(true),
                        keeps_special_tokens: self.skip_special_tokens == Some(false),
                        has_token_ids: self.return_token_ids == Some(true),
                    },
                })
            }
        }
    };
}
pub(super) use request_struct;

/// The shared fields of a request.
#[derive(Default)]
pub struct SamplingFields {
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    pub parameters: SamplingParameters,
    pub seed: Option<i64>,
    pub stop: Option<Stop>,
    pub min_tokens: Option<u32>,
    pub ignore_eos: Option<bool>,
    pub logit_bias: Option<LogitBias>,
    pub stop_token_ids: Vec<u32>,
    pub bad_words: Vec<String>,
    pub allowed_token_ids: Vec<u32>,
    pub text: TextOptions,
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

#[derive(Default, Deserialize, utoipa::ToSchema)]
pub struct StreamOptions {
    /// Send an additional chunk with the usage before the end.
    include_usage: Option<bool>,
    /// Send the usage so far with every chunk; needs `include_usage`.
    continuous_usage_stats: Option<bool>,
    #[serde(flatten)]
    #[schema(ignore)]
    rest: Map<String, Value>,
}

impl StreamOptions {
    /// The options that the server does not have: refused, or their names.
    pub fn left_out(&self, unknown: UnknownFields) -> Result<Vec<String>> {
        // It asks for padding of events, or not. The text is the same.
        let is_idle = |name: &str, _: &Value| name == "include_obfuscation";
        unknown.left_out_within::<Self>("stream_options.", &self.rest, is_idle)
    }

    pub fn includes_usage(&self) -> bool {
        self.include_usage == Some(true)
    }

    /// The field `usage` of a chunk before the last: absent, null, or the usage so far.
    pub fn usage_so_far<T>(&self, usage: impl FnOnce() -> T) -> Option<Option<T>> {
        self.includes_usage().then(|| (self.continuous_usage_stats == Some(true)).then(usage))
    }
}

/// The biases of tokens: an object, or a list of pairs as llama.cpp has it.
pub struct LogitBias(Vec<(String, f32)>);

impl<'de> Deserialize<'de> for LogitBias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BiasVisitor)
    }
}

struct BiasVisitor;

impl<'de> Visitor<'de> for BiasVisitor {
    type Value = LogitBias;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LogitBias, A::Error> {
        let mut biases = BTreeMap::new();
        while let Some((token, bias)) = map.next_entry::<String, f32>()? {
            biases.insert(token, bias);
        }
        Ok(LogitBias(biases.into_iter().collect()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<LogitBias, A::Error> {
        let mut biases = BTreeMap::new();
        while let Some((token, bias)) = pairs.next_element::<(u32, f32)>()? {
            biases.insert(token.to_string(), bias);
        }
        Ok(LogitBias(biases.into_iter().collect()))
    }
}

#[derive(Deserialize, utoipa::ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of strings")]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

impl SamplingFields {
    /// Checks each field. `max_tokens`: with the name of its field. `may_be_empty`: whether it may be 0.
    pub fn check(self, max_tokens: Option<(u32, &str)>, may_be_empty: bool) -> Result<CheckedSampling> {
        check_max_tokens(max_tokens, self.min_tokens, may_be_empty)?;
        let sampling = SamplingRequest {
            parameters: self.parameters,
            logit_bias: biases(self.logit_bias.as_ref())?,
            allowed_token_ids: at_most("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKENS)?,
            bad_words: check_words("bad_words", self.bad_words, MAX_BAD_WORDS)?,
            stop_token_ids: at_most("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS)?,
            text: self.text,
            min_tokens: self.min_tokens,
            ignore_eos: self.ignore_eos,
        };
        let stream = stream(self.stream.unwrap_or(false), self.stream_options)?;
        Ok(CheckedSampling { sampling, seed: self.seed.map(i64::cast_unsigned), stop: stop(self.stop)?, stream })
    }
}

pub fn within<T: PartialOrd + Copy + std::fmt::Display>(field: &str, value: T, min: T, max: T) -> Result<T> {
    if value >= min && value <= max {
        return Ok(value);
    }
    Err(Error::invalid(field, format!("'{field}' is {value}; it must be from {min} to {max}.")))
}

/// Checks sampling parameters, each with its name.
pub fn parameters(given: &[(&str, Option<f64>)]) -> Result<SamplingParameters> {
    let mut parameters = SamplingParameters::default();
    for (name, value) in given {
        let Some((row, value)) = SamplingParameter::named(name).zip(*value) else { continue };
        // vLLM switches top_k off with -1.
        let value = if matches!(row.rule, SamplingRule::Count) && value == -1.0 { 0.0 } else { value };
        row.set(&mut parameters, value).or_else(|what| invalid_field(name, &what))?;
    }
    Ok(parameters)
}

/// A limit of tokens with the name of its field; `None` if it is absent or -1, which other servers take for no limit.
pub fn limit(field: &'static str, given: Option<i64>) -> Result<Option<(u32, &'static str)>> {
    let checked = given.filter(|count| *count != -1).map(|count| match u32::try_from(count) {
        Ok(count) => Ok((count, field)),
        Err(_) => Err(Error::invalid(field, format!("'{field}' is {count}; it must be from 1 to {}.", u32::MAX))),
    });
    checked.transpose()
}

fn check_max_tokens(max_tokens: Option<(u32, &str)>, min_tokens: Option<u32>, may_be_empty: bool) -> Result<()> {
    match (max_tokens, min_tokens) {
        (Some((0, field)), _) if !may_be_empty => {
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

fn biases(given: Option<&LogitBias>) -> Result<Vec<(u32, f32)>> {
    let Some(LogitBias(given)) = given else { return Ok(Vec::new()) };
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

/// Checks the number and the lengths of stop strings.
pub fn check_stops(field: &str, stops: Vec<String>) -> Result<Vec<String>> {
    check_words(field, stops, MAX_STOPS)
}

/// Checks the number and the lengths of short texts. Clients send an empty one for none.
fn check_words(field: &str, mut words: Vec<String>, max: usize) -> Result<Vec<String>> {
    if let Some(index) = words.iter().position(|text| text.len() > MAX_STOP_BYTES) {
        let field = format!("{field}[{index}]");
        let message = format!("'{field}' is longer than {MAX_STOP_BYTES} bytes. Shorten it.");
        return Err(Error::invalid(field, message));
    }
    words.retain(|text| !text.is_empty());
    match words.len() > max {
        true => {
            let text = format!("'{field}' has {} strings; at most {max} are allowed.", words.len());
            Err(Error::invalid(field, text))
        }
        false => Ok(words),
    }
}

fn at_most(field: &str, ids: Vec<u32>, max: usize) -> Result<Vec<u32>> {
    match ids.len() > max {
        true => {
            let text = format!("'{field}' has {} tokens; at most {max} are allowed.", ids.len());
            Err(Error::invalid(field, text))
        }
        false => Ok(ids),
    }
}

/// Refuses more log-probabilities than a response may have. `choices`: of all prompts. `field`: what sets the number of
/// alternatives of a token, which is `top`.
pub fn check_logprobs(choices: u32, field: &str, top: Option<u8>) -> Result<()> {
    let Some(top) = top else { return Ok(()) };
    let max = MAX_LOGPROBS_PER_POSITION / (1 + u32::from(top));
    match choices > max {
        true => {
            let text = format!(
                "'n' asks for {choices} choices in all; with log-probabilities of {top} alternatives of each token ('{field}'), at most {max} are allowed. Lower one of them."
            );
            Err(Error::invalid("n", text))
        }
        false => Ok(()),
    }
}
