//! Fields of other servers' requests for text that this server does not have. Clients of those servers often send every
//! field of their form with its default. So a field is accepted if its value asks for nothing, and refused, or left out
//! and named, if it asks for something.
//!
//! The names are those of vLLM's sampling parameters, of llama.cpp's server, of SGLang, and of the front ends that speak to
//! them.

use serde_json::{Map, Value};
use utoipa::PartialSchema;

use Neutral::{Any, Empty, False, Number, Text, True};

use crate::error::{Error, Result};
use crate::http::routes::sampling_fields::StreamOptions;
use crate::http::unknown_fields::UnknownFields;

/// A field of another server.
struct ForeignField {
    name: &'static str,
    /// The values that ask for nothing.
    neutral: &'static [Neutral],
    /// What another value does there, as a clause after the name; empty for fields that never change the output.
    purpose: &'static str,
    /// Whether it limits what may be generated. Such a field is never left out, because a text without the limit is
    /// wrong, not only different.
    limits_output: bool,
}

/// A value that asks for nothing.
#[derive(Clone, Copy)]
enum Neutral {
    Any,
    Number(f64),
    False,
    True,
    /// An empty string, array or object.
    Empty,
    Text(&'static str),
}

impl Neutral {
    fn is(self, value: &Value) -> bool {
        match self {
            Any => true,
            Number(number) => value.as_f64() == Some(number),
            False => *value == Value::Bool(false),
            True => *value == Value::Bool(true),
            Empty => match value {
                Value::String(text) => text.is_empty(),
                Value::Array(entries) => entries.is_empty(),
                Value::Object(fields) => fields.is_empty(),
                _ => false,
            },
            Text(text) => value.as_str() == Some(text),
        }
    }
}

/// A field without influence on the output.
const fn idle(name: &'static str) -> ForeignField {
    ForeignField { name, neutral: &[Any], purpose: "", limits_output: false }
}

/// A field that does something unless it has one of the values.
const fn field(name: &'static str, neutral: &'static [Neutral], purpose: &'static str) -> ForeignField {
    ForeignField { name, neutral, purpose, limits_output: false }
}

/// A field that limits what may be generated, unless it is empty.
const fn limit(name: &'static str, purpose: &'static str) -> ForeignField {
    ForeignField { name, neutral: &[Empty], purpose, limits_output: true }
}

const OFF: &[Neutral] = &[Number(0.0), False];

const FIELDS: &[ForeignField] = &[
    // OpenAI
    idle("user"),
    idle("metadata"),
    idle("store"),
    idle("service_tier"),
    idle("safety_identifier"),
    idle("prompt_cache_key"),
    idle("prompt_cache_retention"),
    idle("prompt_cache_options"),
    idle("prediction"),
    idle("moderation"),
    idle("verbosity"),
    idle("reasoning_effort"),
    // Where and when a request runs
    idle("keep_alive"),
    idle("ttl"),
    idle("cache_prompt"),
    idle("cache_salt"),
    idle("n_cache_reuse"),
    idle("num_ctx"),
    idle("n_keep"),
    idle("n_discard"),
    idle("id_slot"),
    idle("request_id"),
    idle("rid"),
    field("priority", &[Number(0.0)], "orders the queue"),
    field("kv_transfer_params", &[Empty], "moves keys and values between servers"),
    field("lora", &[Empty], "applies adapters; here they are models of their own"),
    field("lora_path", &[Empty], "applies an adapter; here adapters are models of their own"),
    idle("guided_decoding_backend"),
    idle("speculative.n_max"),
    idle("speculative.n_min"),
    idle("speculative.p_min"),
    field("truncate_prompt_tokens", &[Number(-1.0)], "cuts off the beginning of the prompt"),
    // What a response contains
    field("detokenize", &[True], "sends tokens without text"),
    idle("spaces_between_special_tokens"),
    field("return_tokens", &[False], "adds token IDs to the response; here it is 'return_token_ids'"),
    field("return_tokens_as_token_ids", &[False], "names tokens by their IDs"),
    field("return_hidden_states", &[False], "adds hidden states to the response"),
    field("n_probs", OFF, "adds probabilities; here it is 'logprobs'"),
    field("post_sampling_probs", &[False], "reports probabilities after sampling"),
    field("timings_per_token", &[False], "adds timings to each event"),
    field("return_progress", &[False], "reports the progress of the prompt"),
    field("response_fields", &[Empty], "selects fields of the response"),
    field("include_reasoning", &[True], "leaves out the reasoning"),
    field("separate_reasoning", &[True], "leaves the reasoning in the text"),
    field("stream_reasoning", &[True], "sends the reasoning at its end"),
    field("reasoning_format", &[Text("auto"), Text("deepseek")], "leaves the reasoning in the text"),
    field("thinking_forced_open", &[False], "takes the beginning of the text for reasoning"),
    field("parse_tool_calls", &[True], "leaves tool calls in the text"),
    // Templates
    field("documents", &[Empty], "gives documents to the chat template"),
    field("mm_processor_kwargs", &[Empty], "sets up the processing of media"),
    field("token_healing", &[False], "generates the last token of the prompt again"),
    // Search
    field("use_beam_search", &[False], "searches with beams"),
    field("num_beams", &[Number(1.0), Number(0.0)], "searches with beams"),
    field("length_penalty", &[Number(1.0)], "weighs beams by their length"),
    field("early_stopping", &[False], "ends a search with beams"),
    field("best_of", &[Number(1.0)], "generates more choices than it returns"),
    field("do_sample", &[True], "switches sampling off; here it is 'temperature' 0"),
    field("guidance_scale", &[Number(1.0)], "guides the text away from a negative prompt"),
    field("cfg_scale", &[Number(1.0)], "guides the text away from a negative prompt"),
    field("negative_prompt", &[Empty], "guides the text away from a prompt"),
    field("penalty_alpha", OFF, "searches contrastively"),
    // Samplers
    field("tfs", &[Number(1.0)], "samples tail-free"),
    field("tfs_z", &[Number(1.0)], "samples tail-free"),
    field("top_a", OFF, "cuts off unlikely tokens"),
    field("epsilon_cutoff", OFF, "cuts off unlikely tokens"),
    field("eta_cutoff", OFF, "cuts off unlikely tokens"),
    field("top_n_sigma", &[Number(-1.0), Number(0.0)], "cuts off unlikely tokens"),
    field("min_keep", &[Number(0.0), Number(1.0)], "keeps a number of tokens"),
    field("mirostat", OFF, "regulates the perplexity"),
    field("mirostat_mode", OFF, "regulates the perplexity"),
    idle("mirostat_tau"),
    idle("mirostat_eta"),
    field("dynamic_temperature", &[False], "varies the temperature"),
    field("dynatemp_range", OFF, "varies the temperature"),
    idle("dynatemp_low"),
    idle("dynatemp_high"),
    idle("dynatemp_exponent"),
    field("smoothing_factor", OFF, "smooths the distribution"),
    idle("smoothing_curve"),
    field("xtc_probability", OFF, "excludes the most likely tokens"),
    idle("xtc_threshold"),
    field("dry_multiplier", OFF, "penalizes repeated sequences"),
    idle("dry_base"),
    idle("dry_allowed_length"),
    idle("dry_penalty_last_n"),
    idle("dry_range"),
    idle("dry_sequence_breakers"),
    field("no_repeat_ngram_size", OFF, "forbids repeated sequences"),
    field("encoder_repetition_penalty", &[Number(1.0)], "rewards tokens of the prompt"),
    field("penalize_nl", &[False], "penalizes line breaks"),
    field("samplers", &[Empty], "orders the samplers"),
    field("t_max_predict_ms", &[Number(0.0), Number(-1.0)], "ends the text after a time"),
    field("vllm_xargs", &[Empty], "passes arguments to extensions"),
    // Limits of the output
    limit("stop_regex", "ends the text at a match"),
    limit("banned_strings", "forbids texts; here it is 'bad_words', which forbids words"),
    limit("custom_token_bans", "forbids tokens; here it is 'logit_bias'"),
    limit("logits_processors", "runs code on the logits"),
    limit("custom_logit_processor", "runs code on the logits"),
    limit("structural_tag", "prescribes the output between tags"),
    limit("guided_whitespace_pattern", "limits whitespace"),
    limit("grammar_triggers", "starts a grammar at a text"),
    ForeignField { neutral: OFF, ..limit("grammar_lazy", "starts a grammar at a text") },
];

/// The fields that would change the output and that the request `T` or its stream options do not have: refused, or their
/// names. A field that limits the output is always refused. `is_idle`: whether a further field with this value changes
/// nothing.
pub fn left_out<T: PartialSchema>(
    unknown: UnknownFields,
    rest: &Map<String, Value>,
    options: Option<&StreamOptions>,
    is_idle: impl Fn(&str, &Value) -> bool,
) -> Result<Vec<String>> {
    let changes_nothing = |name: &str, value: &Value| {
        value.is_null() || is_idle(name, value) || find(name).is_some_and(|found| found.asks_for_nothing(value))
    };
    for (name, value) in rest {
        if let Some(found) = find(name)
            && !changes_nothing(name, value)
            && (found.limits_output || unknown == UnknownFields::Refused)
        {
            return Err(found.refusal());
        }
    }
    let mut names = unknown.left_out_unless::<T>(rest, changes_nothing)?;
    if let Some(options) = options {
        names.append(&mut options.left_out(unknown)?);
    }
    Ok(names)
}

fn find(name: &str) -> Option<&'static ForeignField> {
    FIELDS.iter().find(|field| field.name == name)
}

impl ForeignField {
    fn asks_for_nothing(&self, value: &Value) -> bool {
        self.neutral.iter().any(|neutral| neutral.is(value))
    }

    fn refusal(&self) -> Error {
        let Self { name, purpose, .. } = self;
        let text = format!("'{name}', which {purpose}, is not supported by this server. Leave it out.");
        Error::invalid(*name, text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_field_is_listed_once_and_says_what_it_does() {
        let mut names = HashSet::new();
        for field in FIELDS {
            assert!(names.insert(field.name), "{}", field.name);
            assert_eq!(field.purpose.is_empty(), matches!(field.neutral, [Any]), "{}", field.name);
        }
    }
}
