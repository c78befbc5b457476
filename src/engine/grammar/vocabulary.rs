//! A model's tokens as the grammar library wants them: bytes, and what is no text.

use std::sync::Arc;

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::engine::tokens::Vocabulary;

/// The trie of all tokens. Control tokens and ends are special: no grammar of text allows them.
/// Other tokens are their bytes, a marker such as `<tool_call>` too, so that it does not matter
/// whether a model writes it as one token or letter by letter.
pub(super) fn environment(tokens: &Vocabulary) -> Result<TokEnv, String> {
    let count = u32::try_from(tokens.len()).map_err(|_| "the vocabulary is too large".to_owned())?;
    let mut ends: Vec<u32> = tokens.ends().iter().copied().collect();
    ends.sort_unstable();
    let first = *ends.first().ok_or("the model has no token that ends an answer")?;
    let words: Vec<Vec<u8>> = (0..count).map(|id| word(tokens, id)).collect();
    let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(&ends);
    // Not canonical: tokens are only chosen among, never forced, so nothing needs to be tokenised.
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

fn word(tokens: &Vocabulary, id: u32) -> Vec<u8> {
    let bytes = tokens.bytes(id);
    if tokens.is_control(id) || tokens.ends().contains(&id) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
    } else {
        bytes.to_vec()
    }
}
