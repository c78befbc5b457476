//! Words that are made of several words: with hyphens, with capitals inside, or written together.

use super::super::lexicon::{Found, Lexicon};
use super::super::stress::{PRIMARY, StressChange, change_stress, is_stress};
use super::super::tagging::Tag;

/// The shortest part of a compound, in letters.
const MIN_PART: usize = 3;

/// The parts between hyphens and at changes of case: `well-known`, `iPhone`, `OpenAIKey`.
pub fn pieces(word: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    for part in word.split('-') {
        let letters: Vec<(usize, char)> = part.char_indices().collect();
        let mut start = 0;
        for window in letters.windows(3) {
            let [(_, before), (at, letter), (next_at, next)] = window else { continue };
            let from_lower = before.is_lowercase() && letter.is_uppercase();
            let word_after_acronym =
                before.is_uppercase() && letter.is_uppercase() && next.is_lowercase() && *next != 's';
            if from_lower || word_after_acronym {
                pieces.push(&part[start..*at]);
                start = *at;
            } else if letter.is_lowercase() && next.is_uppercase() && *next_at + next.len_utf8() == part.len() {
                pieces.push(&part[start..*next_at]);
                start = *next_at;
            }
        }
        pieces.push(&part[start..]);
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// Joins the phonemes of the parts of a word. If most of them have primary stress, the lighter half loses it.
pub fn joined(pieces: &[&str], mut phonemes: Vec<String>) -> String {
    let mut spoken: Vec<(bool, usize, usize)> = phonemes
        .iter()
        .enumerate()
        .filter(|(_, phonemes)| !phonemes.is_empty())
        .map(|(at, phonemes)| (phonemes.contains(PRIMARY), weight(phonemes), at))
        .collect();
    let stressed = spoken.iter().filter(|(has_primary, ..)| *has_primary).count();
    if spoken.len() == 2 && pieces.get(spoken[0].2).is_some_and(|piece| piece.chars().count() == 1) {
        spoken = vec![spoken[1]];
    } else if spoken.len() < 2 || stressed <= spoken.len().div_ceil(2) {
        spoken.clear();
    } else {
        spoken.sort_unstable();
        spoken.truncate(spoken.len() / 2);
    }
    for (_, _, at) in spoken {
        phonemes[at] = change_stress(&phonemes[at], StressChange::Weaken);
    }
    phonemes.concat()
}

fn weight(phonemes: &str) -> usize {
    phonemes.chars().map(|symbol| if "AIOQWYʤʧ".contains(symbol) { 2 } else { 1 }).sum()
}

/// The pronunciation of a word that is two known words written together: the second one has secondary stress.
pub fn split_compound(word: &str, lexicon: &Lexicon, british: bool) -> Option<String> {
    if !word.is_ascii() || word.len() < 2 * MIN_PART + 1 {
        return None;
    }
    let known = |part: &str| match lexicon.get(part, Tag::Other, false) {
        Some(Found::Phonemes(phonemes)) if lexicon.has_gold(part) && phonemes.contains(is_stress) => {
            Some(phonemes.to_owned())
        }
        _ => None,
    };
    let splits = (MIN_PART..=word.len() - MIN_PART).filter_map(|at| {
        let (first, second) = word.split_at(at);
        Some((first.len().min(second.len()), known(first)?, known(second)?))
    });
    let (_, first, second) = splits.max_by_key(|(shortest, ..)| *shortest)?;
    // The British lexicons do not mark the secondary stress of compounds.
    let change = if british { StressChange::Remove } else { StressChange::Weaken };
    Some(first + &change_stress(&second, change))
}
