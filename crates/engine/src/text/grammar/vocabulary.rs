//! Converts a model's vocabulary to the token trie of the grammar library.

use std::collections::HashSet;
use std::sync::Arc;

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::tokenizer::Vocabulary;

/// Max bytes of one token in the trie, and of all tokens together. GLM-4 has a token of 1,024 spaces; the largest
/// published vocabularies have about 3 MB.
const MAX_TOKEN_BYTES: usize = 1024;
const MAX_TOTAL_BYTES: usize = 16 << 20;

/// The trie of all tokens. Control and end-of-sequence tokens are special: no grammar of text allows them. Other tokens
/// are plain bytes, including markers such as `<tool_call>`, so it does not matter whether a model writes one as a
/// single token or in parts.
pub(super) fn token_env(tokens: &Vocabulary) -> Result<TokEnv, String> {
    let count = u32::try_from(tokens.len()).map_err(|_| "the vocabulary is too large".to_owned())?;
    let mut ends: Vec<u32> = tokens.eos_ids().iter().copied().collect();
    ends.sort_unstable();
    let first = *ends.first().ok_or("the model has no end-of-sequence token")?;
    let mut words: Vec<Vec<u8>> = (0..count).map(|id| trie_bytes(tokens, id)).collect();
    drop_unusable(&mut words)?;
    let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(&ends);
    // Approximate: tokens are only masked, never forced, so nothing needs to be tokenised.
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// Empties tokens that the trie cannot hold: it recurses once per byte, and takes quadratic time for tokens with the
/// same bytes. Constrained output does without such tokens.
fn drop_unusable(words: &mut [Vec<u8>]) -> Result<(), String> {
    let mut seen = HashSet::new();
    let mut total = 0;
    for word in words {
        if word.len() > MAX_TOKEN_BYTES || !seen.insert(word.clone()) {
            word.clear();
        }
        total += word.len();
    }
    match total <= MAX_TOTAL_BYTES {
        true => Ok(()),
        false => {
            Err(format!("the vocabulary has {total} bytes; constrained decoding supports at most {MAX_TOTAL_BYTES}"))
        }
    }
}

fn trie_bytes(tokens: &Vocabulary, id: u32) -> Vec<u8> {
    let bytes = tokens.bytes(id);
    if tokens.is_control(id) || tokens.eos_ids().contains(&id) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
    } else {
        bytes.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_TOKEN_BYTES, MAX_TOTAL_BYTES, drop_unusable};

    #[test]
    fn unusable_tokens_are_dropped() {
        let mut words =
            [b"a".to_vec(), b"b".to_vec(), b"a".to_vec(), vec![b'x'; MAX_TOKEN_BYTES], vec![b'x'; MAX_TOKEN_BYTES + 1]];
        drop_unusable(&mut words).unwrap();
        assert_eq!(words.each_ref().map(Vec::len), [1, 1, 0, MAX_TOKEN_BYTES, 0]);
        let mut many: Vec<Vec<u8>> =
            (0..MAX_TOTAL_BYTES / 512 + 1).map(|id| format!("{id:0>512}").into_bytes()).collect();
        assert!(drop_unusable(&mut many).unwrap_err().contains("bytes"));
    }
}
