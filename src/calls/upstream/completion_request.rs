//! The body of a text completion to a target.

use serde_json::json;

use super::errors::unsupported;
use super::request_fields::{Fields, TextParameters, add_text_parameters};
use super::token_estimate;
use crate::calls::prompt::text_input::TextInput;
use crate::error::{Error, Result};
use crate::upstream::{Api, UpstreamModel};

/// A text completion, as the target gets it. The prompt is not echoed by the target: the call does that.
pub struct CompletionRequest<'a> {
    pub prompts: &'a [TextInput],
    /// Set if `prompt` was one prompt and not a list.
    pub single: bool,
    pub suffix: Option<&'a str>,
    /// Number of alternatives of each token.
    pub logprobs: Option<u8>,
    pub text: TextParameters<'a>,
}

impl CompletionRequest<'_> {
    /// The body without the model's name. Fails if the target's server has no field for something.
    pub fn fields(&self, model: &UpstreamModel) -> Result<Fields> {
        let prompts = self.prompts.iter().map(|prompt| text(prompt, "prompt", &model.id));
        let prompts = prompts.collect::<Result<Vec<&str>>>()?;
        let mut fields = Fields::new();
        let prompt = match prompts.as_slice() {
            [one] if self.single => json!(one),
            many => json!(many),
        };
        fields.insert("prompt".to_owned(), prompt);
        add_text_parameters(&mut fields, model, &self.text)?;
        fields.extend(self.logprobs.map(|count| ("logprobs".to_owned(), json!(count))));
        match self.suffix {
            Some(suffix) if model.api == Api::Outpost => drop(fields.insert("suffix".to_owned(), json!(suffix))),
            Some(_) => return Err(unsupported(&model.id, "suffix")),
            None => {}
        }
        Ok(fields)
    }

    /// Tokens of all prompts, estimated.
    pub fn tokens(&self) -> u32 {
        let bytes = self.prompts.iter().map(|prompt| prompt.bytes() + self.suffix.map_or(0, str::len));
        token_estimate::prompt_tokens(bytes.sum(), 0)
    }
}

/// A text. Token IDs are refused: they mean other words to any other tokenizer, and only the target knows its own.
pub fn text<'a>(input: &'a TextInput, field: &str, id: &str) -> Result<&'a str> {
    match input {
        TextInput::Text(text) => Ok(text),
        TextInput::Tokens(_) => {
            let text = format!("'{field}' has token ids, which the model '{id}' does not take. Send texts.");
            Err(Error::invalid(field, text))
        }
    }
}
