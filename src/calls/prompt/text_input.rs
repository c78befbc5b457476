//! A text of a request, given as text or as token IDs.

use serde::Deserialize;

use crate::error::{Error, Result};

/// A text.
#[derive(Deserialize)]
#[serde(untagged)]
pub enum TextInput {
    Text(String),
    /// Token IDs of the model.
    Tokens(Vec<u32>),
}

/// A field with one text or a list of texts, for error messages.
#[derive(Clone, Copy)]
pub struct TextField {
    pub name: &'static str,
    /// Set if the field has one text and not a list.
    pub single: bool,
}

impl TextField {
    /// The name of the text with this index.
    pub fn of(self, index: usize) -> String {
        if self.single { self.name.to_owned() } else { format!("{}[{index}]", self.name) }
    }
}

impl TextInput {
    /// Its size in memory.
    pub(in crate::calls) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Tokens(ids) => size_of_val(ids.as_slice()),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes() == 0
    }
}

/// Refuses token IDs that the model `id` does not have. `vocabulary`: the number of its tokens. `field`: the list's.
pub(in crate::calls) fn check_ids(id: &str, vocabulary: usize, tokens: &[u32], field: &str) -> Result<()> {
    let Some((index, token)) = tokens.iter().enumerate().find(|(_, token)| **token as usize >= vocabulary) else {
        return Ok(());
    };
    let field = format!("{field}[{index}]");
    let text = format!("'{field}' is {token}, but the model '{id}' has tokens 0 to {}.", vocabulary.saturating_sub(1));
    Err(Error::invalid(field, text))
}
