//! Symbols that are read as words, and letters that stand alone.

use super::super::token::{Kind, Token};
use super::view::{Reading, View};

/// Symbols that are always read, and their words.
const WORDS: [(char, &str); 19] = [
    ('&', "and"),
    ('%', "percent"),
    ('@', "at"),
    ('+', "plus"),
    ('=', "equals"),
    ('±', "plus or minus"),
    ('×', "times"),
    ('÷', "divided by"),
    ('°', "degrees"),
    ('§', "section"),
    ('€', "euro"),
    ('£', "pound"),
    ('¥', "yen"),
    ('$', "dollar"),
    ('≈', "approximately"),
    ('≤', "less than or equal to"),
    ('≥', "greater than or equal to"),
    ('²', "squared"),
    ('³', "cubed"),
];

/// Reads a symbol, or leaves it out.
pub fn symbol(view: &View) -> Option<Reading> {
    let token = view.get(0)?;
    if token.kind == Kind::Symbol && token.is('#') {
        return hash(view);
    }
    if token.is('.') && view.adjacent(0).is_some() && view.word_before(1).is_some() {
        // `config.yaml`; before a capital, the space after a sentence is missing.
        let is_name = view.adjacent_word(1).is_some_and(|word| word.starts_with(char::is_lowercase));
        return if is_name { Reading::new(1, "dot") } else { None };
    }
    if token.kind != Kind::Symbol {
        return None;
    }
    let between_numbers = view.number(1).is_some() && view.before(1).is_some_and(|before| before.kind == Kind::Number);
    let words =
        match token.text.chars().next()? {
            '-' | '–' if token.space_before && view.get(1).is_some_and(|next| next.space_before) => {
                if between_numbers { "minus" } else { return dash(view) }
            }
            '-' | '–' if between_numbers && view.adjacent(0).is_some() && view.adjacent(1).is_some() => "to",
            '–' => return dash(view),
            '/' if between_numbers || token.space_before => "slash",
            '<' if between_numbers || is_comparison(view) => "is less than",
            '>' if between_numbers || (is_comparison(view) && view.adjacent(0).is_some()) => "is greater than",
            '*' | '·' if between_numbers => "times",
            '~' if view.adjacent_number(1).is_some() => "about",
            '^' if is_power(view) => "to the power of",
            other => WORDS.iter().find(|(symbol, _)| *symbol == other).map_or("", |(_, words)| *words),
        };
    Reading::new(1, words)
}

/// `a<b`, `x < y`.
fn is_comparison(view: &View) -> bool {
    let is_operand = |token: Option<&Token>| token.is_some_and(|token| matches!(token.kind, Kind::Word | Kind::Number));
    is_operand(view.before(1)) && is_operand(view.get(1)) && view.adjacent(0).is_some() == view.adjacent(1).is_some()
}

/// `10^6`, `10^-3`, `x^n`.
fn is_power(view: &View) -> bool {
    let has_base = view.before(1).is_some_and(|base| matches!(base.kind, Kind::Word | Kind::Number) || base.is(')'));
    let is_variable = |word: &str| word.chars().count() == 1;
    let sign = usize::from(view.adjacent_is(1, '-'));
    has_base && (view.number(1 + sign).is_some() || view.adjacent_word(1).is_some_and(is_variable))
}

/// A dash between words is a pause. The comma stands for it where the model's dash is not in the text.
fn dash(view: &View) -> Option<Reading> {
    let is_joint = view.adjacent(0).is_some() && view.adjacent_word(1).is_some();
    Reading::new(1, if is_joint { "" } else { "," })
}

/// `#1` is number one; `#topic` is a hashtag; `C#` is C sharp.
fn hash(view: &View) -> Option<Reading> {
    let after_letter = view.adjacent(0).is_some() && view.word_before(1).is_some_and(|word| word.len() == 1);
    let words = match view.adjacent(1).map(|token| token.kind) {
        _ if after_letter => "sharp",
        Some(Kind::Number) => "number",
        Some(Kind::Word) => "hashtag",
        _ => "",
    };
    Reading::new(1, words)
}

/// A capital letter that stands alone is read by its name; `A` at the beginning of a sentence is the article.
pub fn letter_name(view: &View) -> Option<Reading> {
    let word = view.word(0)?;
    let mut letters = word.chars();
    let letter = letters.next().filter(|_| letters.as_str().is_empty())?;
    if !letter.is_ascii_alphabetic() || matches!(letter, 'I' | 'a') {
        return None;
    }
    let ends = view.get(1).is_none_or(|next| {
        next.kind != Kind::Word || (next.text.len() == 1 && next.is_capitalized() && next.text != "I")
    });
    let starts = view.before(1).is_none_or(|before| {
        before.is('.')
            || before.is('!')
            || before.is('?')
            || before.is('"')
            || before.is('“')
            || before.is('(')
            || before.is(':')
            || before.kind == Kind::Break
    });
    if letter == 'A' && starts && !ends {
        return None;
    }
    Reading::letters(1, word)
}
