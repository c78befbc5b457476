//! Text to token ids and back, with the vocabulary that a checkpoint carries.
//!
//! Special tokens are not in what encodes plain text: see [`super::specials`].

mod gguf;
mod hub;
mod letters;
mod pieces;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use tokenizers::Tokenizer;

use super::specials::{Part, Specials};
pub(super) use gguf::{Table, check};
pub(super) use hub::Hub;

/// Control tokens that end an answer, whatever the file names as its end of sequence.
const ENDS: &[&str] =
    &["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>"];

pub(super) struct Tokens {
    encoder: Encoder,
    specials: Specials,
    /// What each token stands for; a special token's own text.
    bytes: Vec<Vec<u8>>,
    control: HashSet<u32>,
    ends: HashSet<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    add_bos: bool,
}

/// Encodes text in which nothing is special.
enum Encoder {
    /// By the `tokenizers` crate. `inside` is for text that follows something, where that differs.
    Merges {
        tokenizer: Box<Tokenizer>,
        inside: Option<Box<Tokenizer>>,
    },
    Pieces(Box<pieces::Pieces>),
}

impl Encoder {
    fn encode(&self, text: &str, first: bool) -> Vec<u32> {
        let tokenizer = match self {
            Self::Pieces(pieces) => return pieces.encode(text),
            Self::Merges { inside: Some(inside), .. } if !first => inside,
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
}

/// Whether an added token that is not marked as special still belongs to the template alone: it
/// writes the token, or the token looks like one of control. Runs of spaces are vocabulary.
fn privileged(text: &str, template: &str) -> bool {
    !text.trim().is_empty() && (text.starts_with("<|") || template.contains(text))
}

impl Tokens {
    /// Plain text: nothing in it is special, nothing is added.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.encoder.encode(text, true)
    }

    /// See [`Specials::protect`].
    pub fn protect(&self, text: &str) -> String {
        self.specials.protect(text)
    }

    /// A rendered template, whose messages were [`Self::protect`]ed.
    pub fn encode_prompt(&self, rendered: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        for (index, part) in self.specials.split(rendered).into_iter().enumerate() {
            match part {
                Part::Special(id) => ids.push(id),
                Part::Text(text) => ids.extend(self.encoder.encode(&text, index == 0)),
            }
        }
        if self.add_bos
            && let Some(bos) = self.bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// Whether a token stands for no text of its own.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.contains(&id)
    }

    /// The control token that is written so.
    pub fn control_id(&self, text: &str) -> Option<u32> {
        self.specials.id(text).filter(|id| self.control.contains(id))
    }

    /// The bytes that a token stands for; empty for an id without a token.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// What a token adds to an answer: control tokens add nothing.
    pub fn visible(&self, id: u32) -> &[u8] {
        if self.control.contains(&id) { &[] } else { self.bytes(id) }
    }

    pub fn text(&self, id: Option<u32>) -> String {
        id.map(|id| String::from_utf8_lossy(self.bytes(id)).into_owned()).unwrap_or_default()
    }

    pub fn ends(&self) -> &HashSet<u32> {
        &self.ends
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether every id that both have stands for the same. Vocabularies of one family differ by what
    /// pads them.
    pub fn agree(&self, other: &Self) -> bool {
        self.bytes.iter().zip(&other.bytes).all(|(one, other)| one == other)
    }
}
