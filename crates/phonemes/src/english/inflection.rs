//! The endings -s, -'s, -ed, -ing and a few others: the stem of a word, and the sound of the ending after it.

use super::super::stress::is_vowel;
use super::super::tagging::Tag;

/// An ending that a known word can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inflection {
    S,
    Ed,
    Ing,
    /// Another ending or a prefix, with its phonemes.
    Suffix(&'static str),
    Prefix(&'static str),
}

/// Endings that leave the stem as it is, with their phonemes.
const SUFFIXES: [(&str, &str); 7] = [
    ("ness", "nəs"),
    ("less", "ləs"),
    ("like", "lˌIk"),
    ("wise", "wˌIz"),
    ("ship", "ʃˌɪp"),
    ("ly", "li"),
    ("ment", "mənt"),
];
const PREFIXES: [(&str, &str); 8] = [
    ("un", "ˌʌn"),
    ("non", "nˌɑn"),
    ("anti", "ˌænti"),
    ("super", "sˌupəɹ"),
    ("micro", "mˌIkɹO"),
    ("hyper", "hˌIpəɹ"),
    ("multi", "mˌʌlti"),
    ("cyber", "sˌIbəɹ"),
];

impl Inflection {
    /// The part of speech of the stem: verbs have -ed and -ing.
    pub fn stem_tag(self, tag: Tag) -> Tag {
        match self {
            Self::Ed | Self::Ing => Tag::Verb,
            _ => tag,
        }
    }
}

/// Stems that the word may have, the most probable first.
pub fn stems(word: &str) -> impl Iterator<Item = (Inflection, String)> {
    let mut found = Vec::new();
    s_stems(word, &mut found);
    ed_stems(word, &mut found);
    ing_stems(word, &mut found);
    for (suffix, phonemes) in SUFFIXES {
        if let Some(stem) = word.strip_suffix(suffix).filter(|stem| stem.len() > 2) {
            found.push((Inflection::Suffix(phonemes), stem.to_owned()));
            if let Some(stem) = stem.strip_suffix('i') {
                found.push((Inflection::Suffix(phonemes), format!("{stem}y")));
            }
        }
    }
    for (prefix, phonemes) in PREFIXES {
        if let Some(stem) = word.strip_prefix(prefix).filter(|stem| stem.len() > 3) {
            found.push((Inflection::Prefix(phonemes), stem.to_owned()));
        }
    }
    found.into_iter()
}

fn s_stems(word: &str, found: &mut Vec<(Inflection, String)>) {
    let Some(stem) = word.strip_suffix('s').filter(|stem| stem.len() > 1) else { return };
    if !stem.ends_with('s') {
        found.push((Inflection::S, stem.to_owned()));
    }
    if let Some(stem) = stem.strip_suffix('\'') {
        found.push((Inflection::S, stem.to_owned()));
    }
    if let Some(stem) = stem.strip_suffix("ie").filter(|stem| stem.len() > 1) {
        found.push((Inflection::S, format!("{stem}y")));
    } else if let Some(stem) = stem.strip_suffix('e').filter(|stem| stem.len() > 2) {
        found.push((Inflection::S, stem.to_owned()));
    }
}

fn ed_stems(word: &str, found: &mut Vec<(Inflection, String)>) {
    let Some(stem) = word.strip_suffix('d').filter(|stem| stem.len() > 2 && stem.ends_with('e')) else { return };
    found.push((Inflection::Ed, stem.to_owned()));
    if let Some(stem) = stem.strip_suffix("ie") {
        found.push((Inflection::Ed, format!("{stem}y")));
    } else if let Some(stem) = stem.strip_suffix('e').filter(|stem| !stem.ends_with('e')) {
        found.push((Inflection::Ed, stem.to_owned()));
        found.extend(undoubled(stem).map(|stem| (Inflection::Ed, stem.to_owned())));
    }
}

fn ing_stems(word: &str, found: &mut Vec<(Inflection, String)>) {
    let Some(stem) = word.strip_suffix("ing").filter(|stem| stem.len() > 1) else { return };
    if stem.len() > 2 {
        found.push((Inflection::Ing, stem.to_owned()));
    }
    found.push((Inflection::Ing, format!("{stem}e")));
    found.extend(undoubled(stem).map(|stem| (Inflection::Ing, stem.to_owned())));
}

/// `stopp` without its second p.
fn undoubled(stem: &str) -> Option<&str> {
    let mut letters = stem.chars().rev();
    let (last, before) = (letters.next()?, letters.next()?);
    let doubles = "bcdgklmnprstvxz".contains(last) && (last == before || (last == 'k' && before == 'c'));
    doubles.then(|| stem.strip_suffix(last)).flatten()
}

/// The stem's phonemes with the ending. `None` if the stem is empty, or if British English links it with an r.
pub fn with_ending(stem: &str, inflection: Inflection, british: bool) -> Option<String> {
    let mut symbols = stem.chars().rev();
    let last = symbols.next()?;
    let before = symbols.next();
    // An American t between vowels is a tap.
    let tap =
        !british && last == 't' && before.is_some_and(|before| before == 'ɹ' || (is_vowel(before) && before != 'ᵊ'));
    let reduced = if british { 'ɪ' } else { 'ᵻ' };
    let ending = match inflection {
        Inflection::S if "ptkfθ".contains(last) => "s".to_owned(),
        Inflection::S if "szʃʒʧʤ".contains(last) => format!("{reduced}z"),
        Inflection::S => "z".to_owned(),
        Inflection::Ed if "pkfθʃsʧ".contains(last) => "t".to_owned(),
        Inflection::Ed if tap => return Some(format!("{}ɾᵻd", stem.strip_suffix('t')?)),
        Inflection::Ed if matches!(last, 'd' | 't') => format!("{reduced}d"),
        Inflection::Ed => "d".to_owned(),
        Inflection::Ing if british && matches!(last, 'ə' | 'ː') => "ɹɪŋ".to_owned(),
        Inflection::Ing if tap => return Some(format!("{}ɾɪŋ", stem.strip_suffix('t')?)),
        Inflection::Ing => "ɪŋ".to_owned(),
        Inflection::Suffix(phonemes) => phonemes.to_owned(),
        Inflection::Prefix(phonemes) => return Some(format!("{}{stem}", localized(phonemes, british))),
    };
    let ending = localized(&ending, british);
    // *-ical* and *-ly* share their l.
    let shared = last == 'l' && ending.starts_with('l');
    Some(format!("{}{ending}", if shared { stem.strip_suffix('l')? } else { stem }))
}

/// The British form of an ending or prefix that is written in American phonemes.
fn localized(phonemes: &str, british: bool) -> String {
    if !british {
        return phonemes.to_owned();
    }
    phonemes
        .replace("əɹ", "ə")
        .replace("nˌɑn", "nˌɒn")
        .replace('æ', "a")
        .replace('O', "Q")
        .replace("su", "suː")
        .replace("nəs", "nɪs")
        .replace("ləs", "lɪs")
}
