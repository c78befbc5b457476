//! Ordinals, and Roman numerals, which are mostly read as ordinals.

use super::super::language::Language;
use super::super::token_view::integer;
use super::number_words::cardinal;
use super::view::View;

const SPANISH: [&str; 20] = [
    "",
    "primero",
    "segundo",
    "tercero",
    "cuarto",
    "quinto",
    "sexto",
    "séptimo",
    "octavo",
    "noveno",
    "décimo",
    "undécimo",
    "duodécimo",
    "decimotercero",
    "decimocuarto",
    "decimoquinto",
    "decimosexto",
    "decimoséptimo",
    "decimoctavo",
    "decimonoveno",
];
const SPANISH_TENS: [&str; 10] = [
    "",
    "",
    "vigésimo",
    "trigésimo",
    "cuadragésimo",
    "quincuagésimo",
    "sexagésimo",
    "septuagésimo",
    "octogésimo",
    "nonagésimo",
];
const ITALIAN: [&str; 11] =
    ["", "primo", "secondo", "terzo", "quarto", "quinto", "sesto", "settimo", "ottavo", "nono", "decimo"];
/// Nouns before a Roman numeral, and whether they are feminine.
const COUNTED: [(&str, bool); 22] = [
    ("siglo", false),
    ("siglos", false),
    ("capítulo", false),
    ("tomo", false),
    ("volumen", false),
    ("título", false),
    ("acto", false),
    ("escena", true),
    ("parte", true),
    ("fase", true),
    ("libro", false),
    ("artículo", false),
    ("anexo", false),
    ("secolo", false),
    ("capitolo", false),
    ("volume", false),
    ("titolo", false),
    ("atto", false),
    ("scena", true),
    ("articolo", false),
    ("allegato", false),
    ("canto", false),
];
/// Nouns after a Roman numeral, and whether they are feminine.
const COUNTED_AFTER: [(&str, bool); 15] = [
    ("guerra", true),
    ("república", true),
    ("edición", true),
    ("congreso", false),
    ("aniversario", false),
    ("centenario", false),
    ("cumbre", true),
    ("dinastía", true),
    ("secolo", false),
    ("edizione", true),
    ("congresso", false),
    ("anniversario", false),
    ("dinastia", true),
    ("repubblica", true),
    ("legislatura", true),
];
/// Names of rulers, after which X is a number. Names in *-a* of men, and of women in other letters.
const TENTH: [&str; 8] = ["Pío", "Pio", "Alfonso", "León", "Leone", "Luis", "Carlos", "Carlo"];
const MASCULINE: [&str; 3] = ["Luca", "Andrea", "Nicola"];
const FEMININE: [&str; 3] = ["Isabel", "Beatriz", "Carmen"];
/// Greater Roman numerals after a name are rather acronyms.
const MAX_AFTER_NAME: u64 = 30;

/// *primero*, *vigésima segunda*, *ventunesimo*; `None` above a thousand, and in Spanish above ninety nine.
pub fn ordinal(number: u64, feminine: bool, language: Language) -> Option<String> {
    let masculine = match language {
        Language::Italian => italian(number)?,
        _ => spanish(number)?,
    };
    let to_feminine = |word: &str| word.strip_suffix('o').map_or_else(|| word.to_owned(), |stem| format!("{stem}a"));
    Some(if feminine { masculine.split(' ').map(to_feminine).collect::<Vec<_>>().join(" ") } else { masculine })
}

fn spanish(number: u64) -> Option<String> {
    let index = usize::try_from(number).ok().filter(|index| *index > 0)?;
    if let Some(word) = SPANISH.get(index) {
        return Some((*word).to_owned());
    }
    let tens = SPANISH_TENS.get(index / 10)?;
    Some(if index % 10 == 0 { (*tens).to_owned() } else { format!("{tens} {}", SPANISH.get(index % 10)?) })
}

fn italian(number: u64) -> Option<String> {
    let index = usize::try_from(number).ok().filter(|index| (1..1000).contains(index))?;
    if let Some(word) = ITALIAN.get(index) {
        return Some((*word).to_owned());
    }
    let cardinal = cardinal(number, Language::Italian).replace(' ', "");
    if let Some(stem) = cardinal.strip_suffix("tré") {
        return Some(format!("{stem}treesimo"));
    }
    let stem = if cardinal.ends_with("sei") { &cardinal } else { cardinal.trim_end_matches(['a', 'e', 'i', 'o']) };
    Some(format!("{stem}esimo"))
}

/// `1º`, `2.ª`, `3er`, and in Italian `1°` before a word.
pub fn ordinal_number(view: &View) -> Option<(String, usize)> {
    let number = integer(view.number(0)?)?;
    let point = usize::from(view.adjacent_is(1, '.'));
    let mark = view.adjacent(1 + point);
    if mark.is_some_and(|mark| matches!(mark.text.as_str(), "º" | "ª")) {
        let feminine = mark.is_some_and(|mark| mark.text == "ª");
        return Some((ordinal(number, feminine, view.language)?, 2 + point));
    }
    if view.is_italian() && view.adjacent_is(1, '°') && (1..=31).contains(&number) {
        let is_noun = |word: &str| word.len() > 2 && word != "gradi" && word.chars().all(char::is_lowercase);
        view.word(2).filter(|word| view.adjacent(2).is_none() && is_noun(word))?;
        return Some((ordinal(number, false, view.language)?, 2));
    }
    view.adjacent_word(1).filter(|suffix| *suffix == "er" && !view.is_italian() && matches!(number % 10, 1 | 3))?;
    let words = ordinal(number, false, view.language)?;
    Some((words.strip_suffix('o').unwrap_or(&words).to_owned(), 2))
}

/// `siglo XXI`, `Juan Pablo II`, `II Guerra Mundial`.
pub fn roman_numeral(view: &View) -> Option<(String, usize)> {
    let numeral = view.word(0)?;
    if let Some(value) = century(view, numeral) {
        let siglo =
            || if value <= 10 { ordinal(value, false, view.language) } else { Some(cardinal(value, view.language)) };
        let number = if view.is_italian() { ordinal(value, false, view.language) } else { siglo() }?;
        return Some((format!("{} {number}", view.pick("siglo", "secolo")), 3));
    }
    let value = roman(numeral)?;
    if let Some((_, feminine)) = counted(&COUNTED_AFTER, view.word(1).unwrap_or_default()) {
        return Some((ordinal(value, feminine, view.language)?, 1));
    }
    let before = view.word_before(1)?;
    if let Some((noun, feminine)) = counted(&COUNTED, before) {
        let is_ordinal = view.is_italian() || (noun.starts_with("siglo") && value <= 10);
        let words = if is_ordinal { ordinal(value, feminine, view.language)? } else { cardinal(value, view.language) };
        return Some((words, 1));
    }
    is_after_name(view, before, numeral, value).then_some(())?;
    let feminine = FEMININE.contains(&before) || (before.ends_with('a') && !MASCULINE.contains(&before));
    let is_ordinal = view.is_italian() || value <= 10;
    Some((if is_ordinal { ordinal(value, feminine, view.language)? } else { cardinal(value, view.language) }, 1))
}

/// The value of `s. XXI` or `sec. XXI`.
fn century(view: &View, word: &str) -> Option<u64> {
    let is_century = word.eq_ignore_ascii_case(view.pick("s", "sec")) && view.adjacent_is(1, '.');
    roman(view.word(2).filter(|_| is_century)?)
}

/// The noun in the list, and whether it is feminine.
fn counted(list: &[(&'static str, bool)], noun: &str) -> Option<(&'static str, bool)> {
    let noun = noun.to_lowercase();
    list.iter().find(|(other, _)| *other == noun).copied()
}

/// Whether the numeral belongs to the name before it.
fn is_after_name(view: &View, before: &str, numeral: &str, value: u64) -> bool {
    let is_name = before.starts_with(char::is_uppercase) && before.chars().skip(1).all(char::is_lowercase);
    let is_clear = match numeral {
        // The Italian article.
        "I" => !view.is_italian() || view.word(1).is_none(),
        "X" => TENTH.contains(&before),
        _ => true,
    };
    is_name && before.chars().count() > 2 && is_clear && value <= MAX_AFTER_NAME
}

/// The value of a Roman numeral below a hundred in its usual spelling.
fn roman(numeral: &str) -> Option<u64> {
    const TENS: [&str; 10] = ["", "X", "XX", "XXX", "XL", "L", "LX", "LXX", "LXXX", "XC"];
    const UNITS: [&str; 10] = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"];
    let value = TENS.iter().enumerate().rev().find_map(|(tens, prefix)| {
        let rest = numeral.strip_prefix(prefix)?;
        let units = UNITS.iter().position(|units| *units == rest)?;
        Some(10 * tens + units)
    });
    u64::try_from(value?).ok().filter(|value| *value > 0)
}
