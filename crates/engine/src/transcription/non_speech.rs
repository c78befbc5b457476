//! The tokens that stand for sounds and signs rather than for speech, for checkpoints that do not list them.

use std::collections::HashMap;

use super::vocabulary::WhisperVocabulary;

/// Signs of annotations, such as `[MUSIC]` and `♪`. They are suppressed as whole tokens.
const SIGNS: &str = "\"#()*+/:;<=>@[\\]^_`{|}~「」『』";
const SEQUENCES: [&str; 16] =
    ["<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", "(\"", "((", "))", "(((", ")))", "[[", "]]"];
const MORE_SEQUENCES: [&str; 4] = ["{{", "}}", "♪♪", "♪♪♪"];
/// Their first token is suppressed, too.
const MUSIC: &str = "♩♪♫♬♭♮♯";

/// The tokens, in ascending order, as Whisper's reference implementation suppresses them.
pub fn non_speech_tokens(vocabulary: &WhisperVocabulary) -> Vec<u32> {
    let ids: HashMap<&[u8], u32> = (0..vocabulary.end_of_text).rev().map(|id| (vocabulary.bytes(id), id)).collect();
    let id = |bytes: &[u8]| ids.get(bytes).copied();
    let sequences = SEQUENCES.iter().chain(&MORE_SEQUENCES).map(|text| (*text).to_owned());
    let whole = SIGNS.chars().chain(MUSIC.chars()).map(String::from).chain(sequences);
    let whole = whole.flat_map(|text| [id(text.as_bytes()), id(format!(" {text}").as_bytes())]);
    let music = MUSIC.chars().flat_map(|one| {
        let (plain, spaced) = (one.to_string(), format!(" {one}"));
        [longest_prefix(&id, plain.as_bytes()), longest_prefix(&id, spaced.as_bytes())]
    });
    // A hyphen and an apostrophe occur within words, but do not begin one.
    let mut all: Vec<u32> = whole.chain(music).chain([id(b" -"), id(b" '")]).flatten().collect();
    all.extend(vocabulary.special_tokens_of_prompts());
    all.sort_unstable();
    all.dedup();
    all
}

fn longest_prefix(id: &dyn Fn(&[u8]) -> Option<u32>, bytes: &[u8]) -> Option<u32> {
    (1..=bytes.len()).rev().find_map(|end| id(&bytes[..end]))
}
