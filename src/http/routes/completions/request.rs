//! OpenAI's request for text completions. Every field is supported, ignored because it cannot change the result, or
//! rejected by name.

use serde::Deserialize;

use crate::calls::prompt::text_input::TextInput;
use crate::calls::text::completions::{CompletionCall, DEFAULT_MAX_TOKENS, Gap};
use crate::calls::text::dialect::Dialect;
use crate::engine::{MAX_CHOICES, MAX_TOP_LOGPROBS};
use crate::error::{Error, Result};
use crate::http::routes::foreign_fields::left_out;
use crate::http::routes::prompt_logprobs;
use crate::http::routes::sampling_fields::{
    CheckedSampling, StreamOptions, check_logprobs, limit, with_sampling_fields, within,
};
use crate::http::routes::text_inputs::{TextInputs, check_count};
use crate::http::unknown_fields::UnknownFields;

with_sampling_fields! {
    #[derive(Deserialize, utoipa::ToSchema)]
    pub struct CompletionRequest {
        /// Id of an installed model.
        model: String,
        /// Texts, or token ids of the model: one, or an array. At most 128 completions (`n` of each prompt) in all. Special
        /// tokens in texts are parsed, unless `suffix` is sent.
        #[schema(value_type = Vec<String>)]
        prompt: TextInputs,
        /// The text after the completion, for models that were trained to fill in the middle. Only with texts as prompts.
        suffix: Option<String>,
        /// Number of completions of each prompt, 1–128; fewer with `logprobs`: completions × (`logprobs` + 1) may be 336.
        n: Option<u32>,
        /// Only 1 or the value of `n`: all completions are returned.
        best_of: Option<u32>,
        /// 16 if absent, or fewer if the model's context leaves fewer; up to the end of the context if -1;
        /// no completion if 0.
        max_tokens: Option<i64>,
        /// Log-probabilities of the tokens and of so many alternatives each, 0–20.
        logprobs: Option<u32>,
        /// Return the prompt before each completion; with `logprobs`, its tokens before those of the completion.
        echo: Option<bool>,
        /// Log-probabilities of the prompt's tokens and of so many alternatives each, 0–20. Not with `stream`.
        prompt_logprobs: Option<i64>,
    }
}

/// A validated request.
pub struct CheckedRequest {
    pub call: CompletionCall,
    /// Stream options; `None` if not streaming.
    pub stream: Option<StreamOptions>,
    /// The fields that are left out.
    pub ignored: Vec<String>,
}

impl CompletionRequest {
    /// Validates each field; the module `calls` checks what depends on the model.
    pub fn check(mut self, unknown: UnknownFields) -> Result<CheckedRequest> {
        let ignored = left_out::<Self>(unknown, &self.rest, self.stream_options.as_ref(), |_, _| false)?;
        let max_tokens = limit("max_tokens", self.max_tokens)?;
        let default_max_tokens = self.max_tokens.is_none().then_some(DEFAULT_MAX_TOKENS);
        let checked_limit = max_tokens.or(default_max_tokens.map(|count| (count, "max_tokens")));
        let CheckedSampling { sampling, seed, stop, stream } = self.sampling_fields()?.check(checked_limit, true)?;
        let choices = within("n", self.n.unwrap_or(1), 1, MAX_CHOICES)?;
        self.check_best_of(choices)?;
        let logprobs = self.logprobs()?;
        let prompt_logprobs = prompt_logprobs::check(self.prompt_logprobs, stream.is_some())?;
        let (prompts, single) = self.prompt.into_list();
        check_prompts(&prompts, choices)?;
        check_logprobs(choices * u32::try_from(prompts.len()).unwrap_or(u32::MAX), "logprobs", logprobs)?;
        let suffix = self.suffix.filter(|suffix| !suffix.is_empty());
        if suffix.is_some() && prompts.iter().any(|prompt| matches!(prompt, TextInput::Tokens(_))) {
            let text = "'suffix' needs prompts that are texts, but 'prompt' has token ids. Send texts, or write the model's fill-in-the-middle tokens into 'prompt' and leave 'suffix' out.";
            return Err(Error::invalid("suffix", text));
        }
        let call = CompletionCall {
            model: Some(self.model),
            prompts,
            single,
            gap: suffix.map(|suffix| Gap { suffix, ..Gap::default() }),
            choices,
            max_tokens,
            default_max_tokens,
            sampling,
            seed,
            stop,
            logprobs,
            prompt_logprobs,
            echo: self.echo.unwrap_or(false),
            dialect: &Dialect::CHAT,
        };
        Ok(CheckedRequest { call, stream, ignored })
    }

    fn check_best_of(&self, choices: u32) -> Result<()> {
        match self.best_of {
            None | Some(1) => Ok(()),
            Some(count) if count == choices => Ok(()),
            Some(count) => {
                let text = format!(
                    "'best_of' is {count}, but 'n' is {choices}. This server returns every completion that it generates: leave 'best_of' out, or ask for more completions with 'n'."
                );
                Err(Error::invalid("best_of", text))
            }
        }
    }

    fn logprobs(&self) -> Result<Option<u8>> {
        let Some(top) = self.logprobs else { return Ok(None) };
        if self.echo == Some(true) && self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            let text = "'logprobs' with echo: true is not available with 'suffix': the tokens of such a prompt are not those of the echoed text. Leave one of them out.";
            return Err(Error::invalid("logprobs", text));
        }
        let top = within("logprobs", top, 0, MAX_TOP_LOGPROBS.into())?;
        Ok(Some(u8::try_from(top).unwrap_or(MAX_TOP_LOGPROBS)))
    }
}

fn check_prompts(prompts: &[TextInput], choices: u32) -> Result<()> {
    check_count("prompt", prompts.len(), MAX_CHOICES as usize)?;
    let all = prompts.len() * choices as usize;
    if all > MAX_CHOICES as usize {
        let text = format!(
            "'n' is {choices} and 'prompt' has {} entries, which makes {all} completions; at most {MAX_CHOICES} are allowed. Send fewer prompts in one request.",
            prompts.len()
        );
        return Err(Error::invalid("prompt", text));
    }
    let empty = |prompt: &TextInput| matches!(prompt, TextInput::Tokens(tokens) if tokens.is_empty());
    match prompts.iter().any(empty) {
        false => Ok(()),
        true => Err(Error::invalid("prompt", "'prompt' has an empty list of token ids. Send at least one token.")),
    }
}
