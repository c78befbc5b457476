//! Checks of a prompt's length and of other fields that depend on the model.
//!
//! Before tokenization, the length of the messages of users and tools gives a lower bound on the number of tokens.
//! Requests that cannot fit into the context, the rate limit or the budget are refused because of this bound alone.

use crate::calls::errors;
use crate::calls::prompt::text_input::check_ids;
use crate::calls::text::dialect::Dialect;
use crate::calls::text::sampling_request::SamplingRequest;
use crate::engine::{Engine, TextModel};
use crate::error::{Code, Error, Result};

/// The number of tokens of a prompt, or a lower bound.
#[derive(Clone, Copy)]
pub(in crate::calls) struct PromptLength<'a> {
    pub tokens: u32,
    /// Set if `tokens` is the whole length, and not a lower bound.
    pub exact: bool,
    /// The field of the request with the prompt: `messages`, `prompt` or `prompt[1]`.
    pub field: &'a str,
    pub dialect: &'static Dialect,
}

impl<'a> PromptLength<'a> {
    /// A lower bound.
    pub fn at_least(tokens: u64, field: &'a str, dialect: &'static Dialect) -> Self {
        Self { tokens: u32::try_from(tokens).unwrap_or(u32::MAX), exact: false, field, dialect }
    }

    /// The field in a sentence.
    fn noun(&self) -> String {
        match self.field.ends_with(']') {
            true => format!("'{}'", self.field),
            false => format!("the {}", self.field),
        }
    }

    fn counts(&self, completion: u32) -> String {
        let Self { tokens, field, .. } = *self;
        let (noun, has) = (self.noun(), if field == "messages" { "have" } else { "has" });
        if !self.exact {
            return format!("However, {noun} {has} at least {tokens} tokens.");
        }
        let total = u64::from(tokens) + u64::from(completion);
        format!("However, you requested {total} tokens: {tokens} tokens in {noun}, {completion} in the completion.")
    }
}

/// The number of tokens that may be generated: the requested number, if prompt and completion fit into the model's
/// context and the KV cache; without one, what the context leaves. If the dialect says so, what fits of it. `requested`: with
/// the name of the field. `remedy`: further advice.
pub(in crate::calls) fn completion_limit(
    engine: &Engine,
    model: &TextModel,
    prompt: PromptLength<'_>,
    requested: Option<(u32, &'static str)>,
    remedy: &str,
) -> Result<u32> {
    let left = engine.positions(model).saturating_sub(prompt.tokens);
    let completion = requested.map_or(left.max(1), |(count, _)| count);
    if completion <= left && prompt.tokens <= engine.positions(model) {
        return Ok(completion);
    }
    let is_limited = prompt.dialect.limits_max_tokens;
    if is_limited && left > 0 {
        return Ok(left);
    }
    let needed = if is_limited { 1 } else { completion };
    let (total, window) = (u64::from(prompt.tokens) + u64::from(needed), model.context_window());
    let or_lower = requested
        .filter(|(count, _)| *count > 0 && !is_limited)
        .map_or_else(String::new, |(_, field)| format!(" or lower {field}"));
    let shorten = format!("Shorten {}{or_lower}", prompt.noun());
    let param = requested.map_or(prompt.field, |(_, field)| if left == 0 { prompt.field } else { field });
    if total <= u64::from(window) {
        engine.fits(model, total).map_err(|large| errors::too_large(&large, param, &shorten, remedy))?;
    }
    let (id, counts) = (model.id(), prompt.counts(if is_limited { needed } else { completion }));
    // Clients recognise the error by how the text of their API begins.
    let message = match prompt.dialect.prompt_too_long {
        None => {
            format!(
                "This model's maximum context length is {window} tokens. {counts} {shorten} (model: '{id}').{remedy}"
            )
        }
        Some(first) => {
            let (first, noun) = (first(prompt.tokens, window), prompt.noun());
            format!("{first} Shorten {noun}, or use a model with a longer context (model: '{id}').")
        }
    };
    Err(Error::new(Code::ContextLengthExceeded, message).param(param))
}

/// Refuses a prompt that is too long for the context, by an estimate made before it is tokenised.
pub(in crate::calls) fn check_estimate(engine: &Engine, model: &TextModel, prompt: PromptLength<'_>) -> Result<()> {
    if prompt.tokens <= engine.positions(model) {
        return Ok(());
    }
    completion_limit(engine, model, prompt, None, "").map(drop)
}

/// Refuses tokens that the model does not have.
pub(in crate::calls) fn check_token_ids(sampling: &SamplingRequest, model: &TextModel) -> Result<()> {
    let (id, vocabulary) = (model.id(), model.vocabulary());
    check_ids(id, vocabulary, &sampling.stop_token_ids, "stop_token_ids")?;
    check_ids(id, vocabulary, &sampling.allowed_token_ids, "allowed_token_ids")?;
    match sampling.logit_bias.iter().find(|(token, _)| *token as usize >= vocabulary) {
        None => Ok(()),
        Some((token, _)) => {
            let message = format!(
                "logit_bias names the token {token}, but the model '{id}' has tokens 0 to {}.",
                vocabulary.saturating_sub(1)
            );
            Err(Error::invalid(format!("logit_bias.{token}"), message))
        }
    }
}
