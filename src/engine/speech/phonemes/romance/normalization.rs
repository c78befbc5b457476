//! Replaces numbers, amounts, symbols and the usual abbreviations by words of Spanish or Italian.

use super::super::language::Language;
use super::super::numbers::{Written, parse_written};
use super::super::token::{Kind, Token};
use super::number_words::{cardinal, spoken_digits};

/// Symbols, and their Spanish and Italian words.
const SYMBOLS: [(&str, &str, &str); 17] = [
    ("%", "por ciento", "per cento"),
    ("&", "y", "e"),
    ("@", "arroba", "chiocciola"),
    ("+", "más", "più"),
    ("=", "igual a", "uguale a"),
    ("€", "euros", "euro"),
    ("$", "dólares", "dollari"),
    ("£", "libras", "sterline"),
    ("°", "grados", "gradi"),
    ("×", "por", "per"),
    ("÷", "entre", "diviso"),
    ("#", "número", "numero"),
    ("/", "barra", "barra"),
    ("_", "guion bajo", "trattino basso"),
    ("½", "medio", "mezzo"),
    ("º", "", ""),
    ("ª", "", ""),
];
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
/// Units after a number.
const UNITS: [(&str, &str, &str); 9] = [
    ("km", "kilómetros", "chilometri"),
    ("m", "metros", "metri"),
    ("cm", "centímetros", "centimetri"),
    ("kg", "kilogramos", "chilogrammi"),
    ("g", "gramos", "grammi"),
    ("h", "horas", "ore"),
    ("min", "minutos", "minuti"),
    ("GB", "gigabytes", "gigabyte"),
    ("MB", "megabytes", "megabyte"),
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
const LETTER_LIMIT: usize = 4;

/// The tokens with every number and symbol read as words.
pub fn normalize(tokens: &[Token], language: Language) -> Vec<Token> {
    let mut normalized = Vec::with_capacity(tokens.len());
    let mut at = 0;
    let mut space_before = false;
    while let Some(token) = tokens.get(at) {
        let first = normalized.len();
        match reading(tokens, at, language) {
            Some((words, taken)) => {
                let end = tokens.get(at + taken - 1).map_or(token.end, |last| last.end);
                for (index, word) in words.split_whitespace().enumerate() {
                    let kind = if word == "," { Kind::Punctuation } else { Kind::Word };
                    let space = token.space_before || index > 0 || normalized.last().is_some_and(is_word);
                    let (text, space_before) = (word.to_owned(), space && kind == Kind::Word);
                    normalized.push(Token { kind, text, space_before, start: token.start, end });
                }
                at += taken;
            }
            None => {
                normalized.push(token.clone());
                at += 1;
            }
        }
        match normalized.get_mut(first) {
            Some(next) => next.space_before |= std::mem::take(&mut space_before),
            None => space_before |= token.space_before,
        }
    }
    normalized
}

fn is_word(token: &Token) -> bool {
    token.kind == Kind::Word
}

/// The words for the tokens from a position on, and how many they replace.
fn reading(tokens: &[Token], at: usize, language: Language) -> Option<(String, usize)> {
    let token = tokens.get(at)?;
    let adjacent = |offset: usize| tokens.get(at + offset).filter(|token| !token.space_before);
    let pick = |spanish: &str, italian: &str| {
        if language == Language::Italian { italian.to_owned() } else { spanish.to_owned() }
    };
    match token.kind {
        Kind::Number => Some(number(tokens, at, language)),
        Kind::Symbol
            if token.is('-')
                && !token_before(tokens, at)
                && adjacent(1).is_some_and(|next| next.kind == Kind::Number) =>
        {
            let (words, taken) = number(tokens, at + 1, language);
            Some((format!("{} {words}", pick("menos", "meno")), taken + 1))
        }
        // The amount comes first: €5 is *cinco euros*.
        Kind::Symbol
            if "€$£".contains(token.text.as_str()) && adjacent(1).is_some_and(|next| next.kind == Kind::Number) =>
        {
            let (words, taken) = number(tokens, at + 1, language);
            let unit = SYMBOLS.iter().find(|(symbol, ..)| *symbol == token.text)?;
            Some((format!("{words} {}", pick(unit.1, unit.2)), taken + 1))
        }
        Kind::Symbol => {
            let words = SYMBOLS.iter().find(|(symbol, ..)| *symbol == token.text);
            let is_dash = matches!(token.text.as_str(), "-" | "–") && token.space_before;
            Some((
                words.map_or_else(
                    || if is_dash { ",".to_owned() } else { String::new() },
                    |words| pick(words.1, words.2),
                ),
                1,
            ))
        }
        Kind::Word => abbreviation(token, adjacent(1).is_some_and(|next| next.is('.')), language),
        _ => None,
    }
}

/// Whether a word or number directly precedes.
fn token_before(tokens: &[Token], at: usize) -> bool {
    let is_joined = tokens.get(at).is_some_and(|token| !token.space_before);
    is_joined
        && at
            .checked_sub(1)
            .and_then(|before| tokens.get(before))
            .is_some_and(|before| matches!(before.kind, Kind::Word | Kind::Number))
}

fn abbreviation(token: &Token, has_point: bool, language: Language) -> Option<(String, usize)> {
    let lower = token.text.to_lowercase();
    let list: &[(&str, &str)] =
        if language == Language::Italian { &ITALIAN_ABBREVIATIONS } else { &SPANISH_ABBREVIATIONS };
    if has_point && let Some((_, words)) = list.iter().find(|(name, _)| *name == lower) {
        return Some(((*words).to_owned(), 2));
    }
    let is_acronym = token.text.len() > 1 && token.text.chars().all(|letter| letter.is_ascii_uppercase());
    let has_vowel = lower.contains(['a', 'e', 'i', 'o', 'u']);
    if is_acronym && (!has_vowel || token.text.len() < LETTER_LIMIT) {
        return Some((letters(&lower, language), 1));
    }
    None
}

fn letters(word: &str, language: Language) -> String {
    let list = if language == Language::Italian { &ITALIAN_LETTERS } else { &SPANISH_LETTERS };
    let name = |letter: char| {
        let index = u32::from(letter).checked_sub(u32::from('a'))?;
        list.get(usize::try_from(index).ok()?).copied()
    };
    word.chars().filter_map(name).collect::<Vec<_>>().join(" ")
}

/// A number with its unit, a time or a date.
fn number(tokens: &[Token], at: usize, language: Language) -> (String, usize) {
    let text = |offset: usize| tokens.get(at + offset).map_or("", |token| token.text.as_str());
    let adjacent_number =
        |offset: usize| tokens.get(at + offset).is_some_and(|token| token.kind == Kind::Number && !token.space_before);
    let is_adjacent =
        |offset: usize, mark: char| tokens.get(at + offset).is_some_and(|token| !token.space_before && token.is(mark));
    let italian = language == Language::Italian;
    let words = spoken(text(0), language);
    if is_adjacent(1, ':') && adjacent_number(2) {
        let joint = if italian { "e" } else { "y" };
        let minutes = if text(2) == "00" { String::new() } else { format!("{joint} {}", spoken(text(2), language)) };
        return (format!("{words} {minutes}"), 3);
    }
    if (is_adjacent(1, '-') || is_adjacent(1, '–')) && adjacent_number(2) {
        return (format!("{words} {} {}", "a", spoken(text(2), language)), 3);
    }
    let unit = tokens
        .get(at + 1)
        .filter(|token| token.kind == Kind::Word)
        .and_then(|token| UNITS.iter().find(|(symbol, ..)| *symbol == token.text));
    match unit {
        Some((_, spanish, italian_name)) => (format!("{words} {}", if italian { italian_name } else { spanish }), 2),
        None => (words, 1),
    }
}

/// A number as it is written, with a decimal comma.
fn spoken(text: &str, language: Language) -> String {
    let cardinal_or_digits = |digits: &str| match digits.parse() {
        Ok(number) if digits.len() == 1 || !digits.starts_with('0') => cardinal(number, language),
        _ => spoken_digits(digits, language),
    };
    let comma = if language == Language::Italian { "virgola" } else { "coma" };
    // A single point before other than three digits is a decimal point.
    let points = text.matches('.').count();
    let is_english =
        !text.contains(',') && points == 1 && text.rsplit('.').next().is_some_and(|digits| digits.len() != 3);
    let written = if is_english { parse_written(text, ',', '.') } else { parse_written(text, '.', ',') };
    match written {
        Written::Integer { digits, .. } => cardinal_or_digits(&digits),
        Written::Decimal { whole, fraction } => {
            let whole = if whole.is_empty() { "0" } else { &whole };
            format!("{} {comma} {}", cardinal_or_digits(whole), cardinal_or_digits(&fraction))
        }
        Written::Several(parts) => {
            let words: Vec<String> = parts.iter().map(|(digits, _)| cardinal_or_digits(digits)).collect();
            words.join(" , ")
        }
    }
}
