//! A model's tokens as the grammar library wants them: bytes, and what is no text.

use std::collections::HashSet;
use std::sync::Arc;

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::engine::tokenizer::Vocabulary;

/// Bytes of the longest token in the trie, and of all tokens together. GLM-4 has one of 1,024 spaces; the largest
/// published vocabularies have some 3 MB.
const LONGEST: usize = 1024;
const MOST: usize = 16 << 20;

/// The trie of all tokens. Control tokens and ends are special: no grammar of text allows them.
/// Other tokens are their bytes, a marker such as `<tool_call>` too, so that it does not matter
/// whether a model writes it as one token or letter by letter.
pub(super) fn environment(tokens: &Vocabulary) -> Result<TokEnv, String> {
    let count = u32::try_from(tokens.len()).map_err(|_| "the vocabulary is too large".to_owned())?;
    let mut ends: Vec<u32> = tokens.eos_ids().iter().copied().collect();
    ends.sort_unstable();
    let first = *ends.first().ok_or("the model has no token that ends an answer")?;
    let mut words: Vec<Vec<u8>> = (0..count).map(|id| word(tokens, id)).collect();
    leave_out(&mut words)?;
    let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(&ends);
    // Not canonical: tokens are only chosen among, never forced, so nothing needs to be tokenised.
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// Empties words that the trie cannot take: it recurses as deep as a word is long, and looks through all words of the
/// same bytes for each of them. Answers of a demanded form do without such tokens.
fn leave_out(words: &mut [Vec<u8>]) -> Result<(), String> {
    let mut seen = HashSet::new();
    let mut total = 0;
    for word in words {
        if word.len() > LONGEST || !seen.insert(word.clone()) {
            word.clear();
        }
        total += word.len();
    }
    match total <= MOST {
        true => Ok(()),
        false => Err(format!("the vocabulary has {total} bytes, {MOST} are the most for demanded forms")),
    }
}

fn word(tokens: &Vocabulary, id: u32) -> Vec<u8> {
    let bytes = tokens.bytes(id);
    if tokens.is_control(id) || tokens.eos_ids().contains(&id) {
        [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
    } else {
        bytes.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, MOST, leave_out};

    #[test]
    fn words_that_the_trie_cannot_take_are_left_out() {
        let mut words = [b"a".to_vec(), b"b".to_vec(), b"a".to_vec(), vec![b'x'; LONGEST], vec![b'x'; LONGEST + 1]];
        leave_out(&mut words).unwrap();
        assert_eq!(words.each_ref().map(Vec::len), [1, 1, 0, LONGEST, 0]);
        let mut many: Vec<Vec<u8>> = (0..MOST / 512 + 1).map(|id| format!("{id:0>512}").into_bytes()).collect();
        assert!(leave_out(&mut many).unwrap_err().contains("bytes"));
    }
}
