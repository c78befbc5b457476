//! Tokenizers: text to token IDs, and the vocabulary of a checkpoint.
//!
//! Plain text is encoded without special tokens: see [`crate::tokenizer::special_tokens`].

mod byte_alphabet;
pub mod checks;
mod chunks;
pub mod files;
mod fill_in_the_middle;
mod gguf;
pub mod harmony;
mod hugging_face;
mod infill_encoder;
pub mod pretokenizer;
mod sentencepiece_bpe;
pub mod special_tokens;
#[cfg(test)]
mod tests;
pub mod tokenizer_json;
mod vocabulary;
pub mod vocabulary_files;
mod whisper;

use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use tokenizers::Tokenizer;

use crate::tokenizer::special_tokens::{Part, SpecialTokens};
pub use byte_alphabet::META_SPACE;
pub use chunks::chunks;
use fill_in_the_middle::FimTokens;
pub use fill_in_the_middle::{InfillFile, InfillTexts};
pub use gguf::{GgufVocabulary, check, has_fim_tokens};
pub use hugging_face::check as check_hugging_face;
pub use vocabulary::Vocabulary;

/// Control tokens that end generation, in addition to the EOS token that the file names. Those of the last line end the
/// middle of a fill-in-the-middle prompt.
#[rustfmt::skip]
const EOS_TOKENS: &[&str] = &[
    "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>", "<|end_of_text|>", "<|eom_id|>", "<end_of_turn>", "<turn|>",
    // After the calls of Gemma 4.
    "<|tool_response>",
    "▁<EOT>", "<EOT>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
];

/// Encodes texts and prompts. The [`Vocabulary`] that is built with it decodes tokens.
pub struct ChatTokenizer {
    encoder: Encoder,
    special_tokens: SpecialTokens,
    /// The BOS token, prepended to every prompt that does not begin with it.
    prefix: Option<u32>,
    /// The BOS token of texts without a template.
    document_bos: Option<u32>,
    /// `None`: the model was not trained to fill in the middle.
    fim: Option<FimTokens>,
}

/// How special tokens are handled in a text without a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialTokenOptions {
    /// Adds the model's BOS token, if it has one, before the text.
    pub add: bool,
    /// Parses the texts of special tokens as these tokens. Otherwise, they stay text.
    pub parse: bool,
}

/// When tokenizing stops early. Prompts of up to [`chunks::MAX_CHUNK`] bytes are always tokenized completely.
#[derive(Clone, Debug, Default)]
pub struct TokenizeLimits {
    /// Stops once there are more tokens than this.
    max_tokens: Option<usize>,
    /// Stops once the request is dropped.
    request: Option<Weak<()>>,
}

impl TokenizeLimits {
    /// Also stops once there are more tokens than `max_tokens`.
    pub fn with_max_tokens(self, max_tokens: usize) -> Self {
        Self { max_tokens: Some(max_tokens), ..self }
    }

    /// Also stops once every clone of `request` is dropped.
    pub fn with_request(self, request: &Arc<()>) -> Self {
        self.with_weak(Arc::downgrade(request))
    }

    pub fn with_weak(self, request: Weak<()>) -> Self {
        Self { request: Some(request), ..self }
    }

    pub fn max_tokens(&self) -> Option<usize> {
        self.max_tokens
    }

    /// True once the request was dropped.
    pub fn is_cancelled(&self) -> bool {
        self.request.as_ref().is_some_and(|request| request.strong_count() == 0)
    }

    pub fn are_reached(&self, tokens: usize) -> bool {
        self.max_tokens.is_some_and(|max_tokens| tokens > max_tokens) || self.is_cancelled()
    }
}

/// The tokens of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenIds {
    pub ids: Vec<u32>,
    /// `false`: tokenizing stopped at its [`TokenizeLimits`], and there are more tokens.
    pub complete: bool,
}

/// Encodes plain text, without special tokens.
enum Encoder {
    /// The `tokenizers` crate. The other two are for text that does not begin a prompt, if they differ.
    HuggingFace {
        tokenizer: Box<Tokenizer>,
        /// For text that follows a special token.
        after_special: Option<Box<Tokenizer>>,
        /// For the chunks of a text after the first.
        continuation: Option<Box<Tokenizer>>,
    },
    SentencePiece(Box<sentencepiece_bpe::SentencePieceBpe>),
}

/// Where a text is in the prompt. Some tokenizers prepend a space in some of these positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// At the beginning of the prompt.
    Start,
    /// After a special token.
    AfterSpecial,
    /// After another chunk of the same text.
    Continuation,
}

impl Encoder {
    fn encode(&self, text: &str, position: Position) -> Vec<u32> {
        let tokenizer = match self {
            Self::SentencePiece(pieces) => return pieces.encode(text, position != Position::Continuation),
            Self::HuggingFace { continuation: Some(continuation), .. } if position == Position::Continuation => {
                continuation
            }
            Self::HuggingFace { after_special: Some(after_special), .. } if position != Position::Start => {
                after_special
            }
            Self::HuggingFace { tokenizer, .. } => tokenizer,
        };
        match tokenizer.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            // Byte-level BPE refuses no input; as a fallback, bytes are tokens.
            Err(_) => text
                .bytes()
                .filter_map(|byte| tokenizer.token_to_id(&byte_alphabet::byte_to_char(byte).to_string()))
                .collect(),
        }
    }

    /// Appends the tokens of a text. `false`: it stopped at the limits before the end.
    fn append(&self, text: &str, first: Position, limits: &TokenizeLimits, ids: &mut Vec<u32>) -> bool {
        for (index, chunk) in chunks(text).enumerate() {
            if limits.are_reached(ids.len()) {
                return false;
            }
            ids.extend(self.encode(chunk, if index == 0 { first } else { Position::Continuation }));
        }
        true
    }
}

/// True for added tokens that are not marked as special and still are parsed only in templates: the template writes
/// them, or they look like control tokens. Whitespace is ordinary vocabulary.
fn is_template_token(text: &str, template: &str) -> bool {
    !text.trim().is_empty() && (text.starts_with("<|") || template.contains(text))
}

impl ChatTokenizer {
    /// Encodes plain text: special tokens in it stay text, and none are added.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.encoder.append(text, Position::Start, &TokenizeLimits::default(), &mut ids);
        ids
    }

    /// Encodes a text without a template. A BOS token that the text begins with is not added again.
    pub fn encode_text(&self, text: &str, special: SpecialTokenOptions, limits: &TokenizeLimits) -> TokenIds {
        let limits = if text.len() > chunks::MAX_CHUNK { limits } else { &TokenizeLimits::default() };
        let mut ids = Vec::new();
        let complete = match special.parse {
            true => self.append_parts(&special_tokens::escape_placeholders(text), Position::Start, limits, &mut ids),
            false => self.encoder.append(text, Position::Start, limits, &mut ids),
        };
        if let Some(bos) = self.document_bos.filter(|bos| special.add && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        TokenIds { ids, complete }
    }

    /// Whether [`Self::encode_text`] adds the BOS token.
    pub fn adds_bos(&self) -> bool {
        self.document_bos.is_some()
    }

    /// Like [`Self::encode`], after the model's BOS token if it has one.
    pub fn encode_document(&self, text: &str) -> Vec<u32> {
        self.document_bos.into_iter().chain(self.encode(text)).collect()
    }

    /// Encodes plain text that continues the plain text `before`.
    pub fn encode_after(&self, before: &str, text: &str) -> Vec<u32> {
        let position = if before.is_empty() { Position::Start } else { Position::Continuation };
        let mut ids = Vec::new();
        self.encoder.append(text, position, &TokenizeLimits::default(), &mut ids);
        ids
    }

    /// The tokens of a word within a text, with a space before it and without. A word of white space has one form.
    pub fn encode_word(&self, word: &str) -> Vec<Vec<u32>> {
        let bare = word.trim_start();
        let forms = if bare.is_empty() { vec![word.to_owned()] } else { vec![bare.to_owned(), format!(" {bare}")] };
        let forms = forms.iter().map(|form| self.encoder.encode(form, Position::Continuation));
        forms.filter(|tokens| !tokens.is_empty()).collect()
    }

    /// See [`SpecialTokens::protect`].
    pub fn protect(&self, text: &str) -> String {
        self.special_tokens.protect(text)
    }

    /// The text of a rendered template whose messages were [`Self::protect`]ed.
    pub fn unprotect(&self, rendered: &str) -> String {
        self.special_tokens.unprotect(rendered)
    }

    /// Encodes a rendered template whose messages were [`Self::protect`]ed.
    pub fn encode_prompt(&self, rendered: &str, limits: &TokenizeLimits) -> TokenIds {
        let limits = if rendered.len() > chunks::MAX_CHUNK { limits } else { &TokenizeLimits::default() };
        let mut ids = Vec::new();
        let complete = self.append_parts(rendered, Position::Start, limits, &mut ids);
        if let Some(first) = self.prefix.filter(|first| ids.first() != Some(first)) {
            ids.insert(0, first);
        }
        TokenIds { ids, complete }
    }

    /// Encodes what follows `prompt` in a rendered template whose messages were [`Self::protect`]ed. No token has text of
    /// both.
    pub fn encode_continuation(&self, prompt: &str, rest: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        let (position, rest) = match self.special_tokens.split(prompt).last() {
            None => (Position::Start, rest),
            Some(Part::Text(_)) => (Position::Continuation, rest),
            Some(Part::SpecialToken(id)) if self.special_tokens.strips_after(id) => {
                (Position::AfterSpecial, rest.trim_start())
            }
            Some(Part::SpecialToken(_)) => (Position::AfterSpecial, rest),
        };
        self.append_parts(rest, position, &TokenizeLimits::default(), &mut ids);
        ids
    }

    /// Appends the tokens of a rendered template, or of a part of it at `first`. `false`: it stopped at the limits before
    /// the end.
    fn append_parts(&self, rendered: &str, first: Position, limits: &TokenizeLimits, ids: &mut Vec<u32>) -> bool {
        self.special_tokens.split(rendered).enumerate().all(|(index, part)| match part {
            Part::SpecialToken(id) => {
                ids.push(id);
                true
            }
            Part::Text(text) => {
                let position = if index == 0 { first } else { Position::AfterSpecial };
                self.encoder.append(&text, position, limits, ids)
            }
        })
    }
}
