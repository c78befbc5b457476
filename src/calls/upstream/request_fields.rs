//! The fields of requests that generate text. Those beyond OpenAI's API go only to servers that are known to have them;
//! the others are refused rather than left out.
//!
//! Fields that the client leaves open are left open, because this server's defaults would override those that the
//! operator of the target has chosen. Most servers ignore unknown fields silently, so fields beyond OpenAI's need a
//! declared `api`.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::errors::unsupported;
use crate::calls::text::sampling_request::SamplingRequest;
use crate::engine::{SAMPLING_PARAMETERS, SamplingValue};
use crate::error::{Error, Result};
use crate::upstream::{Api, Payload, UpstreamCall, UpstreamModel};

/// The fields of a request's body without the model's name.
pub type Fields = Map<String, Value>;

/// The servers that have a field, and its name there.
type Names = [(Api, &'static str)];

const MIN_TOKENS: &Names = &[(Api::Vllm, "min_tokens"), (Api::Outpost, "min_tokens")];
const IGNORE_EOS: &Names = &[(Api::Vllm, "ignore_eos"), (Api::LlamaCpp, "ignore_eos"), (Api::Outpost, "ignore_eos")];
const ALLOWED_TOKENS: &Names = &[(Api::Vllm, "allowed_token_ids"), (Api::Outpost, "allowed_token_ids")];
const BAD_WORDS: &Names = &[(Api::Vllm, "bad_words"), (Api::Outpost, "bad_words")];
const STOP_TOKENS: &Names = &[(Api::Vllm, "stop_token_ids"), (Api::Outpost, "stop_token_ids")];
const KEEPS_STOP: &Names = &[(Api::Vllm, "include_stop_str_in_output"), (Api::Outpost, "include_stop_str_in_output")];
const SKIPS_SPECIAL: &Names = &[(Api::Vllm, "skip_special_tokens"), (Api::Outpost, "skip_special_tokens")];

/// Parameters that chats and text completions have in common.
pub struct TextParameters<'a> {
    pub sampling: &'a SamplingRequest,
    pub seed: Option<u64>,
    pub stop: &'a [String],
    pub max_tokens: Option<u32>,
    /// Number of completions of each prompt.
    pub choices: u32,
}

/// Adds the parameters to a request. The response is always streamed: that is how the first byte is early and a client
/// that leaves is noticed.
pub fn add_text_parameters(fields: &mut Fields, model: &UpstreamModel, text: &TextParameters<'_>) -> Result<()> {
    let TextParameters { sampling, seed, stop, max_tokens, choices } = *text;
    if sampling.text.has_token_ids {
        let text = format!(
            "'return_token_ids' is not supported by the model '{}', which runs on another server. Leave it out, or use another model.",
            model.id
        );
        return Err(Error::invalid("return_token_ids", text));
    }
    fields.insert("stream".to_owned(), json!(true));
    fields.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    for row in SAMPLING_PARAMETERS {
        let Some(value) = row.of(&sampling.parameters) else { continue };
        match row.field_at(model.api) {
            Some(name) => drop(fields.insert(name.to_owned(), number(value))),
            None if row.is_off(value) => {}
            None => return Err(unsupported(&model.id, row.name)),
        }
    }
    // Those beyond OpenAI's API, unless they are switched off.
    let further = [
        ("min_tokens", MIN_TOKENS, sampling.min_tokens.filter(|count| *count > 0).map(Value::from)),
        ("ignore_eos", IGNORE_EOS, sampling.ignore_eos.filter(|ignore| *ignore).map(Value::from)),
        ("allowed_token_ids", ALLOWED_TOKENS, list(&sampling.allowed_token_ids)),
        ("bad_words", BAD_WORDS, list(&sampling.bad_words)),
        ("stop_token_ids", STOP_TOKENS, list(&sampling.stop_token_ids)),
        ("include_stop_str_in_output", KEEPS_STOP, sampling.text.keeps_stop.then(|| json!(true))),
        ("skip_special_tokens", SKIPS_SPECIAL, sampling.text.keeps_special_tokens.then(|| json!(false))),
    ];
    for (field, names, value) in further {
        let Some(value) = value else { continue };
        let Some((_, name)) = names.iter().find(|(api, _)| *api == model.api) else {
            return Err(unsupported(&model.id, field));
        };
        fields.insert((*name).to_owned(), value);
    }
    if !sampling.logit_bias.is_empty() {
        let biases = sampling.logit_bias.iter().map(|(id, bias)| (id.to_string(), number(*bias)));
        fields.insert("logit_bias".to_owned(), Value::Object(biases.collect()));
    }
    if let Some(seed) = seed {
        fields.insert("seed".to_owned(), json!(seed.cast_signed()));
    }
    if !stop.is_empty() {
        fields.insert("stop".to_owned(), json!(stop));
    }
    fields.extend(max_tokens.map(|count| ("max_tokens".to_owned(), json!(count))));
    if choices > 1 {
        fields.insert("n".to_owned(), json!(choices));
    }
    Ok(())
}

/// A request with these fields as a JSON body. `max_bytes`: of the response.
pub fn json_call(model: &Arc<UpstreamModel>, operation: &'static str, fields: Fields, max_bytes: u64) -> UpstreamCall {
    let payload = move |name: &str| {
        let mut body = fields.clone();
        body.insert("model".to_owned(), json!(name));
        Payload::json(&Value::Object(body))
    };
    UpstreamCall { model: Arc::clone(model), operation, payload: Arc::new(payload), max_bytes }
}

/// Bytes of these fields as JSON.
pub fn json_bytes(fields: &Fields) -> usize {
    serde_json::to_string(fields).map_or(0, |text| text.len())
}

/// A list, unless it is empty.
fn list<T: Serialize>(entries: &[T]) -> Option<Value> {
    (!entries.is_empty()).then(|| json!(entries))
}

/// A number with the digits that a person would write: 0.8, not 0.800000011920929.
pub fn number(value: impl Into<SamplingValue>) -> Value {
    match value.into() {
        value @ SamplingValue::Real(_) => value.to_string().parse::<f64>().map_or(Value::Null, Value::from),
        SamplingValue::Count(count) => Value::from(count),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_model;
    use super::*;
    use crate::engine::SamplingParameters;

    /// The fields for a server with this API, or the field that is refused.
    fn fields(api: &str, sampling: &SamplingRequest) -> Result<Value, String> {
        let model = test_model(&format!("api = \"{api}\""));
        let mut fields = Fields::new();
        let stop = ["x".to_owned()];
        let text = TextParameters { sampling, seed: Some(u64::MAX), stop: &stop, max_tokens: Some(5), choices: 2 };
        add_text_parameters(&mut fields, &model, &text).map_err(|error| error.param_name().unwrap().to_owned())?;
        Ok(Value::Object(fields))
    }

    #[test]
    fn what_is_set_is_sent_and_nothing_else() {
        let parameters = SamplingParameters { temperature: Some(0.8), ..SamplingParameters::default() };
        let sampling = SamplingRequest { parameters, logit_bias: vec![(7, -1.5)], ..SamplingRequest::default() };
        let expected = json!({
            "stream": true, "stream_options": { "include_usage": true }, "temperature": 0.8, "logit_bias": { "7": -1.5 },
            "seed": -1, "stop": ["x"], "max_tokens": 5, "n": 2,
        });
        assert_eq!(fields("openai", &sampling), Ok(expected));
    }

    #[test]
    fn further_fields_go_to_servers_that_know_them() {
        let sampling = |change: fn(&mut SamplingRequest)| {
            let mut sampling = SamplingRequest::default();
            change(&mut sampling);
            sampling
        };
        let penalty = sampling(|sampling| sampling.parameters.repetition_penalty = Some(1.1));
        assert_eq!(fields("openai", &penalty), Err("repetition_penalty".to_owned()));
        assert_eq!(fields("llama.cpp", &penalty).unwrap()["repeat_penalty"], 1.1);
        assert_eq!(fields("vllm", &penalty).unwrap()["repetition_penalty"], 1.1);
        let typical = sampling(|sampling| sampling.parameters.typical_p = Some(0.5));
        assert_eq!(fields("vllm", &typical), Err("typical_p".to_owned()));
        assert_eq!(fields("outpost", &typical).unwrap()["typical_p"], 0.5);
        let text = sampling(|sampling| {
            (sampling.stop_token_ids, sampling.bad_words) = (vec![7], vec!["sea".to_owned()]);
            (sampling.text.keeps_stop, sampling.text.keeps_special_tokens) = (true, true);
        });
        let sent = fields("vllm", &text).unwrap();
        assert_eq!((&sent["stop_token_ids"], &sent["bad_words"]), (&json!([7]), &json!(["sea"])));
        assert_eq!((&sent["include_stop_str_in_output"], &sent["skip_special_tokens"]), (&json!(true), &json!(false)));
        assert_eq!(fields("llama.cpp", &text), Err("bad_words".to_owned()));
        let ids = sampling(|sampling| sampling.text.has_token_ids = true);
        assert_eq!(fields("outpost", &ids), Err("return_token_ids".to_owned()));
        let off = sampling(|sampling| {
            (sampling.parameters.top_k, sampling.parameters.typical_p) = (Some(0), Some(1.0));
            sampling.ignore_eos = Some(false);
        });
        assert_eq!(fields("openai", &off).unwrap().get("top_k"), None);
        assert_eq!(fields("vllm", &off).unwrap()["top_k"], 0);
        assert_eq!(fields("llama.cpp", &off).unwrap()["typical_p"], 1.0);
    }
}
