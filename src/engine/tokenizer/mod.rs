//! Text to token ids, and the vocabulary that a checkpoint carries.
//!
//! SpecialToken tokens are not in what encodes plain text: see [`crate::engine::tokenizer::special_tokens`].

pub mod files;
mod gguf;
mod hub;
mod letters;
mod pieces;
pub mod pretokenizer;
mod slices;
pub mod special_tokens;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use tokenizers::Tokenizer;

use crate::engine::tokenizer::special_tokens::{Part, SpecialTokens};
pub use gguf::{Table, check};
pub use hub::{check as check_hub, tokenizer_json};
pub use slices::slices;
pub use vocabulary::Vocabulary;

/// Control tokens that end an answer, whatever the file names as its end of sequence.
const ENDS: &[&str] =
    &["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>"];

/// Encodes texts and prompts. What its tokens stand for is in the [`Vocabulary`] that is built with it.
pub struct ChatTokenizer {
    encoder: Encoder,
    special_tokens: SpecialTokens,
    /// Put before every prompt that does not begin with it.
    prefix: Option<u32>,
}

/// How far tokenising goes. Prompts of up to [`slices::LONGEST`] bytes are always tokenised to their end.
#[derive(Clone, Debug, Default)]
pub struct TokenBound {
    /// It stops once there are more tokens than this.
    most: Option<usize>,
    /// It stops once the request is dropped.
    request: Option<Weak<()>>,
}

impl TokenBound {
    /// Stops, too, once there are more tokens than `most`.
    pub fn with_most(self, most: usize) -> Self {
        Self { most: Some(most), ..self }
    }

    /// Stops, too, once every clone of `request` is dropped.
    pub fn with_request(self, request: &Arc<()>) -> Self {
        self.with_weak(Arc::downgrade(request))
    }

    pub fn with_weak(self, request: Weak<()>) -> Self {
        Self { request: Some(request), ..self }
    }

    pub fn most(&self) -> Option<usize> {
        self.most
    }

    /// Whether the request was dropped, so that its work is no longer wanted.
    pub fn is_cancelled(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.strong_count() == 0)
    }

    pub fn is_reached(&self, tokens: usize) -> bool {
        self.most.is_some_and(|most| tokens > most) || self.is_cancelled()
    }
}

/// A prompt's tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    pub ids: Vec<u32>,
    /// Whether these are all tokens. `false`: tokenising stopped at its [`TokenBound`], and there are more.
    pub complete: bool,
}

/// Encodes text in which nothing is special.
enum Encoder {
    /// By the `tokenizers` crate. The other two are for text that does not begin a prompt, where they differ.
    Merges {
        tokenizer: Box<Tokenizer>,
        /// For text that follows a special token.
        inside: Option<Box<Tokenizer>>,
        /// For the slices of a text after its first.
        continued: Option<Box<Tokenizer>>,
    },
    Pieces(Box<pieces::Pieces>),
}

/// Where a text stands: some tokenizers put a space before it in some of these places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// At the beginning of the prompt.
    First,
    /// After a special token.
    Inside,
    /// After another slice of the same text.
    Continued,
}

impl Encoder {
    fn encode(&self, text: &str, place: Place) -> Vec<u32> {
        let tokenizer = match self {
            Self::Pieces(pieces) => return pieces.encode(text, place != Place::Continued),
            Self::Merges { continued: Some(continued), .. } if place == Place::Continued => continued,
            Self::Merges { inside: Some(inside), .. } if place != Place::First => inside,
            Self::Merges { tokenizer, .. } => tokenizer,
        };
        match tokenizer.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            // Byte-level BPE has no input that it refuses; if it had one, bytes are still tokens.
            Err(_) => {
                text.bytes().filter_map(|byte| tokenizer.token_to_id(&letters::letter(byte).to_string())).collect()
            }
        }
    }

    /// Appends the tokens of a text. `false`: it stopped at the bound before the end.
    fn append(&self, text: &str, first: Place, bound: &TokenBound, ids: &mut Vec<u32>) -> bool {
        for (index, slice) in slices(text).enumerate() {
            if bound.is_reached(ids.len()) {
                return false;
            }
            ids.extend(self.encode(slice, if index == 0 { first } else { Place::Continued }));
        }
        true
    }
}

/// Whether an added token that is not marked as special still belongs to the template alone: it
/// writes the token, or the token looks like one of control. Runs of spaces are vocabulary.
fn privileged(text: &str, template: &str) -> bool {
    !text.trim().is_empty() && (text.starts_with("<|") || template.contains(text))
}

impl ChatTokenizer {
    /// Plain text: nothing in it is special, nothing is added.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encoder.append(text, Place::First, &TokenBound::default(), &mut ids);
        ids
    }

    /// See [`SpecialTokens::protect`].
    pub fn protect(&self, text: &str) -> String {
        self.special_tokens.protect(text)
    }

    /// A rendered template, whose messages were [`Self::protect`]ed.
    pub fn encode_prompt(&self, rendered: &str, bound: &TokenBound) -> Prompt {
        let bound = if rendered.len() > slices::LONGEST { bound } else { &TokenBound::default() };
        let (mut ids, mut complete) = (Vec::new(), true);
        for (index, part) in self.special_tokens.split(rendered).enumerate() {
            match part {
                Part::SpecialToken(id) => ids.push(id),
                Part::Text(text) => {
                    let place = if index == 0 { Place::First } else { Place::Inside };
                    complete = self.encoder.append(&text, place, bound, &mut ids);
                }
            }
            if !complete {
                break;
            }
        }
        if let Some(first) = self.prefix.filter(|first| ids.first() != Some(first)) {
            ids.insert(0, first);
        }
        Prompt { ids, complete }
    }
}
