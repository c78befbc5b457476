//! Text to token ids and back, with the vocabulary that a GGUF file carries.
//!
//! Byte-level BPE (`tokenizer.ggml.model = gpt2`), merged by the `tokenizers` crate. Special
//! tokens are not in its vocabulary: see [`super::specials`].

use std::collections::HashSet;

use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};

use super::pretokenizer::{self, Cut};
use super::specials::{Part, Specials};
use crate::models::gguf::Metadata;

/// `tokenizer.ggml.token_type`.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Control tokens that end an answer, whatever the file names as its end of sequence.
const ENDS: &[&str] = &["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>", "<|end_of_text|>", "<|eom_id|>"];

pub(super) struct Tokens {
    tokenizer: Tokenizer,
    specials: Specials,
    /// What each token stands for; a special token's own text.
    bytes: Vec<Vec<u8>>,
    control: HashSet<u32>,
    ends: HashSet<u32>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    add_bos: bool,
}

/// Whether the file's tokenizer is one of those that can be built; cheap.
pub(super) fn check(metadata: &Metadata) -> Result<&'static Cut, String> {
    match metadata.text("tokenizer.ggml.model") {
        Some("gpt2") => pretokenizer::find(metadata.text("tokenizer.ggml.pre").unwrap_or("default")),
        Some(other) => Err(format!("the tokenizer '{other}' is not supported: gpt2 (byte-level BPE) is")),
        None => Err("the file carries no tokenizer (tokenizer.ggml.model)".to_owned()),
    }
}

impl Tokens {
    /// `rows` is the number of embeddings: no token may lie beyond.
    pub fn read(metadata: &Metadata, rows: usize) -> Result<Self, String> {
        let cut = check(metadata)?;
        let texts = metadata.texts("tokenizer.ggml.tokens").ok_or("the file has no tokenizer.ggml.tokens")?;
        if texts.is_empty() || texts.len() > rows {
            return Err(format!("the tokenizer has {} tokens, the model {rows}", texts.len()));
        }
        let kinds = metadata.numbers("tokenizer.ggml.token_type").unwrap_or_default();
        let of_kind = |index: usize, kind: i64| kinds.get(index) == Some(&kind);
        let special = |index: usize| of_kind(index, CONTROL) || of_kind(index, USER_DEFINED);
        let ids = || texts.iter().enumerate();
        let specials = ids().filter(|(index, text)| special(*index) && !text.is_empty());
        let specials = Specials::new(specials.map(|(index, text)| (text.clone(), index as u32)).collect())?;
        let vocabulary: Vocab =
            ids().filter(|(index, _)| !special(*index)).map(|(index, text)| (text.clone(), index as u32)).collect();
        let id = |key: &str| {
            metadata.whole(key).and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < texts.len())
        };
        let eos = id("tokenizer.ggml.eos_token_id");
        let ends = ENDS.iter().filter_map(|text| specials.id(text)).chain(eos).chain(id("tokenizer.ggml.eot_token_id"));
        Ok(Self {
            tokenizer: build(metadata, cut, vocabulary)?,
            bytes: ids()
                .map(|(index, text)| if special(index) { text.clone().into_bytes() } else { letters(text) })
                .collect(),
            control: ids().filter(|(index, _)| of_kind(*index, CONTROL)).map(|(index, _)| index as u32).collect(),
            ends: ends.collect(),
            specials,
            bos: id("tokenizer.ggml.bos_token_id"),
            eos,
            add_bos: metadata.flag("tokenizer.ggml.add_bos_token").unwrap_or(cut.add_bos),
        })
    }

    /// Plain text: nothing in it is special, nothing is added.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        match self.tokenizer.encode_fast(text, false) {
            Ok(encoding) => encoding.get_ids().to_vec(),
            // Byte-level BPE has no input that it refuses; if it had one, bytes are still tokens.
            Err(_) => text.bytes().filter_map(|byte| self.tokenizer.token_to_id(&letter(byte).to_string())).collect(),
        }
    }

    /// See [`Specials::protect`].
    pub fn protect(&self, text: &str) -> String {
        self.specials.protect(text)
    }

    /// A rendered template, whose messages were [`Self::protect`]ed.
    pub fn encode_prompt(&self, rendered: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        for part in self.specials.split(rendered) {
            match part {
                Part::Special(id) => ids.push(id),
                Part::Text(text) => ids.extend(self.encode(&text)),
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
}

fn build(metadata: &Metadata, cut: &Cut, vocabulary: Vocab) -> Result<Tokenizer, String> {
    let merges = metadata.texts("tokenizer.ggml.merges").ok_or("the file has no tokenizer.ggml.merges")?;
    let merges = merges.iter().map(|merge| match merge.split_once(' ') {
        Some((left, right)) => Ok((left.to_owned(), right.to_owned())),
        None => Err(format!("the merge '{merge}' has no two halves")),
    });
    let merges = merges.collect::<Result<Vec<_>, _>>()?;
    let wrong = |error: tokenizers::Error| format!("the tokenizer cannot be built: {error}");
    let bpe = BPE::builder().vocab_and_merges(vocabulary, merges).ignore_merges(cut.ignore_merges);
    let mut tokenizer = Tokenizer::new(bpe.build().map_err(wrong)?);
    tokenizer.with_pre_tokenizer(Some(cut.build().map_err(wrong)?));
    Ok(tokenizer)
}

/// GPT-2's letter for a byte: printable Latin-1 stands for itself, the rest moves up to U+0100.
fn letter(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if plain(byte) {
        return char::from(byte);
    }
    let moved = (0..byte).filter(|&before| !plain(before)).count() as u32;
    char::from_u32(0x100 + moved).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The bytes of a token written in GPT-2's letters; other letters stand for themselves.
fn letters(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for one in text.chars() {
        match byte(one) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(one.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn byte(one: char) -> Option<u8> {
    match u32::from(one) {
        code @ (0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{byte, letter};

    #[test]
    fn letters_and_bytes_are_each_others_inverse() {
        for one in 0..=u8::MAX {
            assert_eq!(byte(letter(one)), Some(one));
        }
        assert_eq!(letter(b' '), 'Ġ');
        assert_eq!(letter(b'\n'), 'Ċ');
    }
}
