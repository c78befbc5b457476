//! The requests. As in llama.cpp, fields that this server does not have are left out, because editors send sampling parameters
//! and time limits that help llama.cpp; those that limit what may be generated are refused.
//!
//! Prompts of `/infill` are cut, not refused: editors send as much context as they have and do not count tokens, and a
//! 400 would switch completion off in large files. Other files are dropped first, because the text around the gap
//! matters most.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::calls::prompt::text_input::TextInput;
use crate::calls::text::completions::{CompletionCall, Gap};
use crate::calls::text::dialect::Dialect;
use crate::engine::InfillFile;
use crate::error::{Error, Result};
use crate::http::routes::foreign_fields::left_out;
use crate::http::routes::sampling_fields::{CheckedSampling, SamplingFields, limit, with_sampling_fields};
use crate::http::routes::text_inputs::TextInputs;
use crate::http::unknown_fields::UnknownFields;

/// Clients know that generation ends with the context. The API has no chats.
const DIALECT: Dialect = Dialect { limits_max_tokens: true, ..Dialect::CHAT };

const MAX_FILES: usize = 1024;
const MAX_FIELDS: usize = 64;

/// Fields of llama.cpp that prescribe the output.
const OUTPUT_FIELDS: [&str; 2] = ["grammar", "json_schema"];

with_sampling_fields! {
    #[derive(Deserialize, utoipa::ToSchema)]
    pub struct InfillRequest {
        /// Id of an installed model. May be absent if there is only one that fills gaps.
        model: Option<String>,
        /// The text before the gap.
        input_prefix: String,
        /// The text after the gap.
        input_suffix: String,
        /// How the text in the gap begins.
        prompt: Option<String>,
        /// Other files that help the model, the most important last. At most 1,024.
        input_extra: Option<Vec<ExtraFile>>,
        /// Max tokens of the text; up to the end of the context if it is absent or negative. With 0, no text is returned, and
        /// the prompt is kept for the next request.
        #[serde(alias = "max_tokens")]
        n_predict: Option<i64>,
        /// Must be 1.
        #[serde(alias = "n")]
        n_cmpl: Option<u32>,
        /// Whether `tokens` has the IDs of the generated tokens.
        return_tokens: Option<bool>,
        /// The fields of the response, as paths such as `timings/prompt_n`, which are their names in it, too. At most 64; absent
        /// or empty: all.
        response_fields: Option<Vec<String>>,
    }
}

with_sampling_fields! {
    #[derive(Deserialize, utoipa::ToSchema)]
    #[schema(as = LlamaCppCompletionRequest)]
    pub struct CompletionRequest {
        /// Id of an installed model. May be absent if there is only one that generates text.
        model: Option<String>,
        /// A text, or token ids of the model. Special tokens in it are parsed.
        #[schema(value_type = String)]
        prompt: TextInputs,
        /// Max tokens of the text; up to the end of the context if it is absent or negative. With 0, no text is returned, and
        /// the prompt is kept for the next request.
        #[serde(alias = "max_tokens")]
        n_predict: Option<i64>,
        /// Must be 1.
        #[serde(alias = "n")]
        n_cmpl: Option<u32>,
        /// Whether `tokens` has the IDs of the generated tokens.
        return_tokens: Option<bool>,
        /// The fields of the response, as paths such as `timings/prompt_n`, which are their names in it, too. At most 64; absent
        /// or empty: all.
        response_fields: Option<Vec<String>>,
    }
}

/// A file that helps the model.
#[derive(Deserialize, utoipa::ToSchema)]
pub struct ExtraFile {
    filename: Option<String>,
    text: String,
}

/// A validated request.
pub struct CheckedRequest {
    pub call: CompletionCall,
    pub is_streamed: bool,
    /// The fields of the response; empty: all.
    pub fields: Vec<String>,
    /// The fields that are left out.
    pub ignored: Vec<String>,
}

/// The fields that both requests have, besides the shared ones.
struct OwnFields {
    n_predict: Option<i64>,
    n_cmpl: Option<u32>,
    return_tokens: Option<bool>,
    response_fields: Option<Vec<String>>,
}

/// What is completed.
struct Prompt {
    model: Option<String>,
    text: TextInput,
    gap: Option<Gap>,
}

impl InfillRequest {
    /// Validates each field; the module `calls` checks what depends on the model.
    pub fn check(mut self) -> Result<CheckedRequest> {
        let ignored = ignored(left_out::<Self>(UnknownFields::Ignored, &self.rest, None, is_idle)?, &self.rest)?;
        let files = self.input_extra.take().unwrap_or_default();
        if files.len() > MAX_FILES {
            let text = format!("'input_extra' has {} entries; at most {MAX_FILES} are allowed.", files.len());
            return Err(Error::invalid("input_extra", text));
        }
        let file =
            |ExtraFile { filename, text }| InfillFile { name: filename.unwrap_or_else(|| "file".to_owned()), text };
        let sampling = self.sampling_fields()?;
        let own = OwnFields {
            n_predict: self.n_predict,
            n_cmpl: self.n_cmpl,
            return_tokens: self.return_tokens,
            response_fields: self.response_fields,
        };
        let gap = Gap {
            suffix: self.input_suffix,
            files: files.into_iter().map(file).collect(),
            middle: self.prompt.unwrap_or_default(),
            is_cut: true,
        };
        let prompt = Prompt { model: self.model, text: TextInput::Text(self.input_prefix), gap: Some(gap) };
        own.check(prompt, sampling, ignored)
    }
}

impl CompletionRequest {
    /// Validates each field; the module `calls` checks what depends on the model.
    pub fn check(mut self) -> Result<CheckedRequest> {
        let ignored = ignored(left_out::<Self>(UnknownFields::Ignored, &self.rest, None, is_idle)?, &self.rest)?;
        let sampling = self.sampling_fields()?;
        let own = OwnFields {
            n_predict: self.n_predict,
            n_cmpl: self.n_cmpl,
            return_tokens: self.return_tokens,
            response_fields: self.response_fields,
        };
        let text = match <[TextInput; 1]>::try_from(self.prompt.into_list().0) {
            Ok([text]) => text,
            Err(several) => {
                let text = format!("'prompt' has {} texts. Send one text, or use POST /completions.", several.len());
                return Err(Error::invalid("prompt", text));
            }
        };
        own.check(Prompt { model: self.model, text, gap: None }, sampling, ignored)
    }
}

impl OwnFields {
    fn check(self, prompt: Prompt, mut sampling: SamplingFields, ignored: Vec<String>) -> Result<CheckedRequest> {
        if let Some(count) = self.n_cmpl.filter(|count| *count != 1) {
            let text = format!("'n_cmpl' is {count}; it must be 1. POST /completions returns several completions.");
            return Err(Error::invalid("n_cmpl", text));
        }
        let fields = self.response_fields.unwrap_or_default();
        if fields.len() > MAX_FIELDS {
            let text = format!("'response_fields' has {} entries; at most {MAX_FIELDS} are allowed.", fields.len());
            return Err(Error::invalid("response_fields", text));
        }
        let n_predict = self.n_predict.filter(|count| *count >= 0);
        let max_tokens = limit("n_predict", n_predict)?;
        sampling.seed = sampling.seed.filter(|seed| !is_random(*seed));
        sampling.stream_options = None;
        sampling.text.has_token_ids |= self.return_tokens == Some(true);
        let is_streamed = sampling.stream == Some(true);
        let CheckedSampling { sampling, seed, stop, .. } = sampling.check(max_tokens, true)?;
        let Prompt { model, text, gap } = prompt;
        let call = CompletionCall {
            model,
            prompts: vec![text],
            single: true,
            gap,
            choices: 1,
            max_tokens,
            default_max_tokens: None,
            sampling,
            seed,
            stop,
            logprobs: None,
            prompt_logprobs: None,
            echo: false,
            dialect: &DIALECT,
        };
        Ok(CheckedRequest { call, is_streamed, fields, ignored })
    }
}

/// Whether a seed stands for a random one: -1, also as an unsigned number of 32 bits.
fn is_random(seed: i64) -> bool {
    seed == -1 || seed == i64::from(u32::MAX)
}

/// Fields of llama.cpp that ask for nothing.
fn is_idle(name: &str, value: &Value) -> bool {
    match name {
        "n_indent" | "t_max_prompt_ms" | "n_probs" => value.as_i64().is_some_and(|count| count <= 0),
        "repeat_last_n" | "sse_ping_interval" => true,
        // Without text, nothing is to be prescribed.
        "grammar" => value.as_str().is_some_and(str::is_empty),
        _ => false,
    }
}

/// The fields that are left out, unless one prescribes the output. `rest`: those of the request.
fn ignored(left_out: Vec<String>, rest: &Map<String, Value>) -> Result<Vec<String>> {
    match OUTPUT_FIELDS.into_iter().find(|name| left_out.iter().any(|left| left == name) && rest.contains_key(*name)) {
        None => Ok(left_out),
        Some(name) => {
            let text = format!(
                "'{name}', which prescribes the text, is not supported here. Leave it out, or use POST /chat/completions."
            );
            Err(Error::invalid(name, text))
        }
    }
}
