//! A request field with texts or token IDs: one, or a list.

use serde::Deserialize;

use crate::calls::prompt::text_input::TextInput;
use crate::error::{Error, Result};

#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a string, an array of strings, or token ids")]
pub enum TextInputs {
    Text(String),
    Many(Vec<TextInput>),
    Tokens(Vec<u32>),
}

/// A request field with texts: one, or a list.
#[derive(Deserialize)]
#[serde(untagged, expecting = "must be a string or an array of strings")]
pub enum Texts {
    One(String),
    Many(Vec<String>),
}

impl TextInputs {
    pub fn has_tokens(&self) -> bool {
        match self {
            Self::Text(_) => false,
            Self::Many(inputs) => inputs.iter().any(|input| matches!(input, TextInput::Tokens(_))),
            Self::Tokens(_) => true,
        }
    }

    /// The texts, and whether there is one instead of a list.
    pub fn into_list(self) -> (Vec<TextInput>, bool) {
        match self {
            Self::Text(text) => (vec![TextInput::Text(text)], true),
            Self::Many(inputs) => (inputs, false),
            Self::Tokens(tokens) => (vec![TextInput::Tokens(tokens)], true),
        }
    }
}

/// Refuses a number of texts outside of 1 to `max`. `field`: their name.
pub fn check_count(field: &str, count: usize, max: usize) -> Result<()> {
    if (1..=max).contains(&count) {
        return Ok(());
    }
    Err(Error::invalid(field, format!("'{field}' has {count} entries; it must have 1 to {max}.")))
}

/// Whether texts that are too long are truncated: `truncate`, or vLLM's `truncate_prompt_tokens`, whose -1 means the model's
/// limit.
pub fn is_truncated(truncate: Option<bool>, truncate_prompt_tokens: Option<i64>) -> Result<bool> {
    match truncate_prompt_tokens {
        None => Ok(truncate.unwrap_or(false)),
        Some(-1) => Ok(true),
        Some(other) => {
            let text = format!(
                "'truncate_prompt_tokens' is {other}; only -1, which truncates texts to what the model takes, is supported. Leave it out."
            );
            Err(Error::invalid("truncate_prompt_tokens", text))
        }
    }
}
