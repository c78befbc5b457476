//! Replaces numbers, amounts, dates, symbols and the usual abbreviations by words of Spanish or Italian.

use super::super::language::Language;
use super::super::token::{Kind, Token};
use super::dates::date_or_time;
use super::ordinals::{ordinal_number, roman_numeral};
use super::quantities::{amount, number};
use super::view::View;
use super::words::{abbreviation, acronym};

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
    ("^", "elevado a", "elevato a"),
    ("²", "al cuadrado", "al quadrato"),
    ("³", "al cubo", "al cubo"),
];

/// The tokens with every number and symbol read as words.
pub fn normalize(tokens: &[Token], language: Language) -> Vec<Token> {
    let mut normalized = Vec::with_capacity(tokens.len());
    let mut at = 0;
    let mut space_before = false;
    while let Some(token) = tokens.get(at) {
        let first = normalized.len();
        match reading(&View { tokens, at, language }) {
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
fn reading(view: &View) -> Option<(String, usize)> {
    let token = view.get(0)?;
    match token.kind {
        Kind::Number => date_or_time(view).or_else(|| ordinal_number(view)).or_else(|| number(view)),
        Kind::Symbol => negative(view).or_else(|| amount(view)).or_else(|| symbol(view, token)),
        Kind::Word => abbreviation(view).or_else(|| roman_numeral(view)).or_else(|| acronym(view)),
        _ => None,
    }
}

/// `-5`, `-€5`
fn negative(view: &View) -> Option<(String, usize)> {
    view.get(0).filter(|sign| sign.is('-') && !view.follows_word())?;
    view.adjacent(1)?;
    let rest = view.from(1);
    let (words, taken) = number(&rest).or_else(|| amount(&rest))?;
    Some((format!("{} {words}", view.pick("menos", "meno")), taken + 1))
}

fn symbol(view: &View, token: &Token) -> Option<(String, usize)> {
    let words = SYMBOLS.iter().find(|(symbol, ..)| *symbol == token.text);
    let is_dash = (token.is('-') || token.is('–')) && token.space_before;
    let otherwise = if is_dash { "," } else { "" };
    Some((words.map_or(otherwise, |(_, spanish, italian)| view.pick(spanish, italian)).to_owned(), 1))
}
