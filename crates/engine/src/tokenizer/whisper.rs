//! The tokenizer of Whisper models whose file lists only the bytes of tokens, as `ggml-*.bin` does.

use std::collections::HashSet;

use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::byte_alphabet::byte_to_char;
use super::special_tokens::{SpecialToken, SpecialTokens};
use super::vocabulary::Vocabulary;
use super::{ChatTokenizer, Encoder};
use outpost_models::whisper::{self, byte_pair_merges, timestamp_texts};

impl ChatTokenizer {
    /// `tokens`: the bytes of the tokens of text, by ID. `rows`: the rows of the token embedding, which decide the special
    /// tokens.
    ///
    /// # Errors
    /// If the vocabulary is not one of OpenAI's.
    pub fn from_whisper_vocabulary(tokens: &[Vec<u8>], rows: usize) -> Result<(Self, Vocabulary), String> {
        let special = whisper::SpecialTokens::of_vocabulary(rows)
            .ok_or_else(|| format!("its embedding has {rows} rows, which is not the size of a Whisper vocabulary"))?;
        // Some files list special tokens, too.
        let text_tokens = usize::try_from(special.end_of_text).unwrap_or(usize::MAX);
        let texts = tokens.get(..text_tokens).ok_or_else(|| {
            format!("it lists {} tokens; a Whisper vocabulary has at least {text_tokens}", tokens.len())
        })?;
        let controls = special.control_texts();
        let first = texts.len();
        let control = (first..first + controls.len()).filter_map(|id| u32::try_from(id).ok()).collect::<HashSet<_>>();
        let timestamps = timestamp_texts();
        let texts_of_special = controls.iter().cloned().chain(timestamps).map(String::into_bytes);
        let bytes = texts.iter().cloned().chain(texts_of_special).collect();
        let end = u32::try_from(first).ok();
        let vocabulary =
            Vocabulary { bytes, eos_ids: end.into_iter().collect(), control: control.clone(), bos: None, eos: end };
        let tokenizer = Box::new(tokenizer(texts)?);
        let encoder = Encoder::HuggingFace { tokenizer, after_special: None, continuation: None };
        let parsed = controls.into_iter().zip(first..);
        let parsed = parsed.filter_map(|(text, id)| {
            Some(SpecialToken { text, id: u32::try_from(id).ok()?, lstrip: false, rstrip: false })
        });
        let special_tokens = SpecialTokens::new(parsed.collect())?;
        Ok((Self { encoder, special_tokens, prefix: None, document_bos: None, fim: None }, vocabulary))
    }
}

/// Byte-level BPE with these tokens.
fn tokenizer(tokens: &[Vec<u8>]) -> Result<Tokenizer, String> {
    let text = |bytes: &[u8]| bytes.iter().map(|byte| byte_to_char(*byte)).collect::<String>();
    let merges = byte_pair_merges(tokens).map_err(|id| format!("its token {id} is not the merge of two others"))?;
    let merges = merges.into_iter().map(|(left, right)| (text(left), text(right))).collect::<Vec<_>>();
    let vocabulary: Vocab = tokens.iter().zip(0_u32..).map(|(token, id)| (text(token), id)).collect();
    let wrong = |error: tokenizers::Error| format!("the tokenizer cannot be built: {error}");
    let mut tokenizer = Tokenizer::new(BPE::builder().vocab_and_merges(vocabulary, merges).build().map_err(wrong)?);
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    Ok(tokenizer)
}
