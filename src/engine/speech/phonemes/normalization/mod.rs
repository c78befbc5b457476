//! Replaces what is not a word (numbers, dates, amounts, abbreviations, addresses, symbols) by the words that a speaker of
//! English says.
//!
//! Each rule looks at the tokens from one position on. The first rule that applies gives the words and how many tokens they
//! replace. Rules look ahead by a bounded number of tokens, so the work is proportional to the text.

mod abbreviations;
mod addresses;
mod amounts;
mod dates;
mod quantities;
mod symbols;
#[cfg(test)]
mod tests;

use super::numbers::{NumberWords, Written, parse_written, spoken_digits};
use super::token::{Kind, Token};

/// What a rule sees.
#[derive(Clone, Copy)]
struct View<'a> {
    tokens: &'a [Token],
    at: usize,
    numbers: NumberWords,
    british: bool,
}

/// The words that replace tokens.
struct Reading {
    taken: usize,
    parts: Vec<Part>,
}

enum Part {
    /// Words separated by spaces. A comma or a full stop among them is punctuation.
    Words(String),
    /// A word to be read letter by letter.
    Letters(String),
}

type Rule = fn(&View) -> Option<Reading>;

const RULES: [Rule; 11] = [
    addresses::address,
    abbreviations::abbreviation,
    abbreviations::roman_numeral,
    amounts::money,
    dates::iso_date,
    dates::slash_date,
    dates::time,
    dates::day_of_month,
    quantities::number,
    symbols::symbol,
    symbols::letter_name,
];

/// The tokens with every number, abbreviation and symbol read as words.
pub fn normalize(tokens: &[Token], british: bool) -> Vec<Token> {
    let mut normalized = Vec::with_capacity(tokens.len());
    let mut view = View { tokens, at: 0, numbers: NumberWords { with_and: british }, british };
    // White space before something that is not spoken goes to what follows.
    let mut space_before = false;
    while let Some(token) = tokens.get(view.at) {
        let first = normalized.len();
        match RULES.iter().find_map(|rule| rule(&view)) {
            Some(reading) => {
                let taken = reading.taken.max(1);
                let end = tokens.get(view.at + taken - 1).map_or(token.end, |last| last.end);
                push(reading.parts, token, end, follows_word(&view), &mut normalized);
                view.at += taken;
            }
            None => {
                let joins = token.kind == Kind::Word && normalized.last().is_some_and(is_spoken);
                normalized.push(Token { space_before: token.space_before || joins, ..token.clone() });
                view.at += 1;
            }
        }
        match normalized.get_mut(first) {
            Some(next) => next.space_before |= std::mem::take(&mut space_before),
            None => space_before |= token.space_before,
        }
    }
    normalized
}

fn is_spoken(token: &Token) -> bool {
    matches!(token.kind, Kind::Word | Kind::Letters | Kind::Phonemes)
}

/// Whether the token directly follows a word or number, as the digits do in *MP3*.
fn follows_word(view: &View) -> bool {
    view.before(1).is_some_and(|token| matches!(token.kind, Kind::Word | Kind::Number | Kind::Symbol | Kind::Letters))
}

fn push(parts: Vec<Part>, first: &Token, end: usize, separate: bool, normalized: &mut Vec<Token>) {
    let mut space_before = first.space_before || separate;
    let mut push = |kind: Kind, text: &str| {
        let space = space_before && kind != Kind::Punctuation;
        normalized.push(Token { kind, text: text.to_owned(), space_before: space, start: first.start, end });
        space_before = true;
    };
    for part in parts {
        match part {
            Part::Letters(letters) => push(Kind::Letters, &letters),
            Part::Words(words) => {
                for word in words.split(' ').filter(|word| !word.is_empty()) {
                    match word {
                        "," | "." => push(Kind::Punctuation, word),
                        // Unstressed between the digits of a decimal.
                        "point" => push(Kind::Phonemes, "pYnt"),
                        _ => push(Kind::Word, word),
                    }
                }
            }
        }
    }
}

impl Reading {
    fn new(taken: usize, words: impl Into<String>) -> Option<Self> {
        Some(Self { taken, parts: vec![Part::Words(words.into())] })
    }

    fn letters(taken: usize, letters: impl Into<String>) -> Option<Self> {
        Some(Self { taken, parts: vec![Part::Letters(letters.into())] })
    }
}

impl<'a> View<'a> {
    fn get(&self, offset: usize) -> Option<&'a Token> {
        self.tokens.get(self.at.checked_add(offset)?)
    }

    fn before(&self, offset: usize) -> Option<&'a Token> {
        self.tokens.get(self.at.checked_sub(offset)?)
    }

    /// The token at the offset, if no white space separates it from the one before.
    fn adjacent(&self, offset: usize) -> Option<&'a Token> {
        self.get(offset).filter(|token| !token.space_before)
    }

    fn adjacent_is(&self, offset: usize, mark: char) -> bool {
        self.adjacent(offset).is_some_and(|token| token.is(mark))
    }

    /// The text of the number at the offset.
    fn number(&self, offset: usize) -> Option<&'a str> {
        self.get(offset).filter(|token| token.kind == Kind::Number).map(|token| token.text.as_str())
    }

    fn adjacent_number(&self, offset: usize) -> Option<&'a str> {
        self.adjacent(offset).and_then(|_| self.number(offset))
    }

    fn word(&self, offset: usize) -> Option<&'a str> {
        self.get(offset).filter(|token| token.kind == Kind::Word).map(|token| token.text.as_str())
    }

    fn adjacent_word(&self, offset: usize) -> Option<&'a str> {
        self.adjacent(offset).and_then(|_| self.word(offset))
    }

    fn word_before(&self, offset: usize) -> Option<&'a str> {
        self.before(offset).filter(|token| token.kind == Kind::Word).map(|token| token.text.as_str())
    }

    /// Whether the sentence may end before the token at the offset: there is none, or a paragraph ends, or it has a capital
    /// and can begin a sentence.
    fn is_sentence_start(&self, offset: usize) -> bool {
        match self.get(offset) {
            None => true,
            Some(token) if token.kind == Kind::Break => true,
            Some(token) if token.is('"') || token.is('”') || token.is(')') => {
                self.is_sentence_start_after(offset + 1)
            }
            Some(token) => token.is_capitalized() && super::word_lists::is_function_word(&token.text.to_lowercase()),
        }
    }

    fn is_sentence_start_after(&self, offset: usize) -> bool {
        self.get(offset).is_none_or(|token| token.kind == Kind::Break || token.is_capitalized())
    }

    /// Reads a number as it is written.
    fn spoken(&self, text: &str) -> String {
        match parse_written(text, ',', '.') {
            Written::Integer { digits, .. } => self.numbers.digits_or_cardinal(&digits),
            Written::Decimal { whole, fraction } => {
                let whole = if whole.is_empty() { String::new() } else { self.numbers.digits_or_cardinal(&whole) };
                format!("{whole} point {}", spoken_digits(&fraction))
            }
            Written::Several(parts) => {
                let part = |(digits, separator): (String, Option<char>)| {
                    let separator = separator.map_or("", |mark| if mark == '.' { " point " } else { " , " });
                    self.numbers.digits_or_cardinal(&digits) + separator
                };
                parts.into_iter().map(part).collect()
            }
        }
    }
}

/// A whole number without separators.
fn integer(text: &str) -> Option<u64> {
    text.chars().all(|c| c.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
