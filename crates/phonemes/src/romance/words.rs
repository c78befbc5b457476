//! Abbreviations and acronyms.

use super::super::language::Language;
use super::super::token::{Kind, Token};
use super::view::View;

/// Abbreviations that a point follows.
const SPANISH_ABBREVIATIONS: [(&str, &str); 10] = [
    ("sr", "señor"),
    ("sra", "señora"),
    ("srta", "señorita"),
    ("dr", "doctor"),
    ("dra", "doctora"),
    ("ud", "usted"),
    ("uds", "ustedes"),
    ("etc", "etcétera"),
    ("núm", "número"),
    ("pág", "página"),
];
const ITALIAN_ABBREVIATIONS: [(&str, &str); 8] = [
    ("sig", "signor"),
    ("dott", "dottor"),
    ("prof", "professor"),
    ("ecc", "eccetera"),
    ("pag", "pagina"),
    ("avv", "avvocato"),
    ("ing", "ingegner"),
    ("dr", "dottor"),
];
/// The names of letters.
const SPANISH_LETTERS: [&str; 26] = [
    "a",
    "be",
    "ce",
    "de",
    "e",
    "efe",
    "ge",
    "hache",
    "i",
    "jota",
    "ka",
    "ele",
    "eme",
    "ene",
    "o",
    "pe",
    "cu",
    "erre",
    "ese",
    "te",
    "u",
    "uve",
    "uve doble",
    "equis",
    "i griega",
    "zeta",
];
const ITALIAN_LETTERS: [&str; 26] = [
    "a",
    "bi",
    "ci",
    "di",
    "e",
    "effe",
    "gi",
    "acca",
    "i",
    "i lunga",
    "cappa",
    "elle",
    "emme",
    "enne",
    "o",
    "pi",
    "cu",
    "erre",
    "esse",
    "ti",
    "u",
    "vu",
    "doppia vu",
    "ics",
    "ipsilon",
    "zeta",
];
/// Acronyms that could be read as words, but are spelled.
const SPELLED: [&str; 9] = ["ia", "ai", "ue", "eu", "uk", "ip", "id", "it", "uv"];
/// How far around an acronym words in lower case are looked for, in tokens.
const NEAR: usize = 3;

/// `Sr.`, `etc.`, `EE. UU.` The point after *etc.* stays if it ends the sentence.
pub fn abbreviation(view: &View) -> Option<(String, usize)> {
    let word = view.word(0)?;
    if !view.is_italian()
        && let Some(taken) = united_states(view, word)
    {
        return Some(("Estados Unidos".to_owned(), taken));
    }
    if word.eq_ignore_ascii_case("nº") {
        return Some((view.pick("número", "numero").to_owned(), 1));
    }
    if !view.adjacent_is(1, '.') {
        return None;
    }
    let lower = word.to_lowercase();
    if lower == "n" && view.adjacent_word(2) == Some("º") {
        return Some((view.pick("número", "numero").to_owned(), 3));
    }
    let list: &[(&str, &str)] = if view.is_italian() { &ITALIAN_ABBREVIATIONS } else { &SPANISH_ABBREVIATIONS };
    let (name, words) = list.iter().find(|(name, _)| *name == lower)?;
    let ends = matches!(*name, "etc" | "ecc") && view.is_sentence_start(2);
    Some(((*words).to_owned(), if ends { 1 } else { 2 }))
}

/// The tokens of `EE. UU.`, `EE UU` or `EEUU`.
fn united_states(view: &View, word: &str) -> Option<usize> {
    if word == "EEUU" {
        return Some(1);
    }
    let point = usize::from(view.adjacent_is(1, '.'));
    view.word(1 + point).filter(|second| word == "EE" && *second == "UU")?;
    let last = view.adjacent_is(2 + point, '.') && !view.is_sentence_start(3 + point);
    Some(2 + point + usize::from(last))
}

/// Spells letters that are no word: `ADN`, `PDF`, `B`. Capitals are also used for emphasis.
pub fn acronym(view: &View) -> Option<(String, usize)> {
    let word = view.word(0).filter(|word| word.chars().all(|letter| letter.is_ascii_alphabetic()))?;
    let lower = word.to_ascii_lowercase();
    let is_letter = lower.len() == 1 && !lower.contains(['a', 'e', 'i', 'o', 'u', 'y']);
    let is_acronym =
        word.len() > 1 && word.chars().all(|letter| letter.is_ascii_uppercase()) && is_spelled(view, &lower);
    (is_letter || is_acronym).then(|| (letters(&lower, view.language), 1))
}

fn is_spelled(view: &View, lower: &str) -> bool {
    if !lower.contains(is_vowel) {
        return true;
    }
    (SPELLED.contains(&lower) || !is_readable(lower)) && lower.len() < 6 && !is_among_capitals(view)
}

/// True if the words around are in capitals, too.
fn is_among_capitals(view: &View) -> bool {
    let before = (1..=NEAR).filter_map(|offset| view.before(offset));
    let near = before.chain((1..=NEAR).filter_map(|offset| view.get(offset)));
    let mut words = near.filter(|token: &&Token| token.kind == Kind::Word).peekable();
    words.peek().is_some() && !words.any(|token| token.text.contains(char::is_lowercase))
}

/// Whether the word begins with at most one consonant, or with one before r or l, and ends with at most one.
fn is_readable(lower: &str) -> bool {
    let start = lower.find(is_vowel).unwrap_or(lower.len());
    let end = lower.len() - lower.rfind(is_vowel).map_or(0, |last| last + 1);
    (start < 2 || start == 2 && lower[..start].ends_with(['r', 'l', 'h', 'u'])) && end < 2
}

fn is_vowel(letter: char) -> bool {
    "aeiou".contains(letter)
}

fn letters(word: &str, language: Language) -> String {
    let list = if language == Language::Italian { &ITALIAN_LETTERS } else { &SPANISH_LETTERS };
    let name = |letter: char| {
        let index = u32::from(letter).checked_sub(u32::from('a'))?;
        list.get(usize::try_from(index).ok()?).copied()
    };
    word.chars().filter_map(name).collect::<Vec<_>>().join(" ")
}
