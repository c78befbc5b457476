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
mod units;
mod view;

use super::numbers::NumberWords;
use super::token::{Kind, Token};
use view::{English, Part, Reading, View};

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
    let language = English { numbers: NumberWords { with_and: british }, british };
    let mut view = View { tokens, at: 0, language };
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
    let is_word = |token: &Token| matches!(token.kind, Kind::Word | Kind::Number | Kind::Symbol | Kind::Letters);
    view.before(1).is_some_and(|token| is_word(token) || token.is(')'))
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
