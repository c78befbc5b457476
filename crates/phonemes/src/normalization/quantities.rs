//! Numbers: ordinals, decades, fractions, ranges, percentages, measures and plain numbers.

use super::super::numbers::{Written, parse_written, spoken_digits};
use super::super::token::Kind;
use super::super::token_view::integer;
use super::amounts::suffixed;
use super::dates::is_ordinal_suffix;
use super::units::unit;
use super::view::{Part, Reading, View};

/// A number and what belongs to it.
pub fn number(view: &View) -> Option<Reading> {
    if !view.is_minus() {
        return positive(view, view.number(0)?);
    }
    let text = view.number(1)?;
    let Reading { taken, parts } = positive(&view.from(1), text)?;
    let parts = std::iter::once(Part::Words("minus".to_owned())).chain(parts).collect();
    Some(Reading { taken: taken + 1, parts })
}

fn positive(view: &View, text: &str) -> Option<Reading> {
    digit_groups(view, text).or_else(|| range(view, text)).or_else(|| single(view, text))
}

/// One number with what belongs to it, without a range, so that ranges do not nest.
fn single(view: &View, text: &str) -> Option<Reading> {
    let rules: [fn(&View, &str) -> Option<Reading>; 8] =
        [ordinal, decade, mixed, fraction, scientific, multiplied, measure, score];
    let amount = || suffixed(view);
    amount().or_else(|| rules.iter().find_map(|rule| rule(view, text))).or_else(|| Reading::new(1, plain(view, text)))
}

/// A year or a number.
fn plain(view: &View, text: &str) -> String {
    match parse_written(text, ',', '.') {
        Written::Integer { digits, grouped: false } if is_year(&digits) => {
            view.language.numbers.year(digits.parse().unwrap_or(0))
        }
        _ => view.spoken(text),
    }
}

fn is_year(digits: &str) -> bool {
    digits.len() == 4 && integer(digits).is_some_and(|year| (1100..2100).contains(&year))
}

/// `555-0123`, `+1 (555) 010-0199`: three or more groups, or two that are a local telephone number, are read digit by digit.
fn digit_groups(view: &View, text: &str) -> Option<Reading> {
    let mut groups = vec![integer(text).map(|_| text)?];
    let mut taken = 1;
    while groups.len() < 8 && view.adjacent_is(taken, '-') {
        let Some(digits) = view.adjacent_number(taken + 1).filter(|digits| integer(digits).is_some()) else { break };
        groups.push(digits);
        taken += 2;
    }
    let is_phone = match groups.as_slice() {
        [_] => false,
        [exchange, line] => is_local_number(view, exchange, line),
        _ => true,
    };
    if !is_phone {
        return None;
    }
    Reading::new(taken, groups.iter().map(|digits| spoken_digits(digits)).collect::<Vec<_>>().join(" , "))
}

/// `555-0123`; `500-1000` is a range, unless the words before say otherwise.
fn is_local_number(view: &View, exchange: &str, line: &str) -> bool {
    const PHONE: [&str; 7] = ["call", "dial", "phone", "tel", "telephone", "fax", "number"];
    let after_phone = || {
        let mut before = (1..4).filter_map(|offset| view.word_before(offset));
        before.any(|word| PHONE.iter().any(|phone| word.eq_ignore_ascii_case(phone)))
    };
    exchange.len() == 3 && line.len() == 4 && (line.starts_with('0') || exchange == "555" || after_phone())
}

fn ordinal(view: &View, text: &str) -> Option<Reading> {
    let suffix = view.adjacent_word(1).filter(|word| is_ordinal_suffix(word))?;
    let number = integer(&text.replace(',', ""))?;
    Reading::new(1 + usize::from(!suffix.is_empty()), view.language.numbers.ordinal(number))
}

/// `1990s`, `the 90s`, `'90s`.
fn decade(view: &View, text: &str) -> Option<Reading> {
    let apostrophe = usize::from(view.adjacent_is(1, '\''));
    view.adjacent_word(1 + apostrophe).filter(|word| *word == "s")?;
    let year = integer(text).filter(|year| year % 10 == 0 && *year > 0)?;
    let words = if is_year(text) { view.language.numbers.year(year) } else { view.language.numbers.cardinal(year) };
    let plural = match words.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None => format!("{words}s"),
    };
    Reading::new(2 + apostrophe, plural)
}

/// `1/2`, `3/4`, `24/7`.
fn fraction(view: &View, text: &str) -> Option<Reading> {
    let below_text = view.adjacent_number(2).filter(|_| view.adjacent_is(1, '/'))?;
    let (above, below) = (integer(text)?, integer(below_text)?);
    if view.adjacent_is(3, '/') {
        return None;
    }
    let above_words = view.language.numbers.cardinal(above);
    match parts(view, above, below) {
        Some(parts) => with_unit(view, 2, format!("{above_words} {parts}"), true),
        None => Reading::new(3, format!("{above_words} {}", view.spoken(below_text))),
    }
}

/// *half*, *thirds*; `None` if the numbers are no usual fraction.
fn parts(view: &View, above: u64, below: u64) -> Option<String> {
    Some(match below {
        2 if above == 1 => "half".to_owned(),
        2 => "halves".to_owned(),
        4 if above == 1 => "quarter".to_owned(),
        4 => "quarters".to_owned(),
        3 | 5..=20 | 32 | 64 | 100 | 1000 if above < below => {
            view.language.numbers.ordinal(below) + if above == 1 { "" } else { "s" }
        }
        _ => return None,
    })
}

/// `2 1/2`, `2½`.
fn mixed(view: &View, text: &str) -> Option<Reading> {
    let whole = integer(text).filter(|_| text.len() < 4 && view.adjacent(1).is_none())?;
    let below = view.adjacent_number(3).filter(|_| view.adjacent_is(2, '/') && !view.adjacent_is(4, '/'))?;
    let (above, below) = (integer(view.number(1)?)?, integer(below)?);
    let parts = parts(view, above, below).filter(|_| above < below)?;
    let [whole, above] = [whole, above].map(|number| view.language.numbers.cardinal(number));
    with_unit(view, 3, format!("{whole} and {above} {parts}"), false)
}

/// The words, and the name of the unit after the number at the offset.
fn with_unit(view: &View, offset: usize, words: String, is_one: bool) -> Option<Reading> {
    match unit(&view.from(offset), is_one) {
        Some((name, taken)) => Reading::new(offset + 1 + taken, format!("{words} {name}")),
        None => Reading::new(offset + 1, words),
    }
}

/// `5–10`, `1990-1995`, `pages 5-10`, with what belongs to the second number.
fn range(view: &View, text: &str) -> Option<Reading> {
    let joined = ['-', '–', '—', '~'].iter().any(|mark| view.adjacent_is(1, *mark));
    let last = view.adjacent_number(2).filter(|_| joined)?;
    let rest = single(&view.from(2), last)?;
    let first = std::iter::once(Part::Words(format!("{} to", plain(view, text))));
    Some(Reading { taken: rest.taken + 2, parts: first.chain(rest.parts).collect() })
}

/// `1e-5`, `2.5E+3`.
fn scientific(view: &View, text: &str) -> Option<Reading> {
    view.adjacent_word(1).filter(|word| word.eq_ignore_ascii_case("e"))?;
    let is_negative = view.adjacent_is(2, '-');
    let sign = usize::from(is_negative || view.adjacent_is(2, '+'));
    let exponent = view.adjacent_number(2 + sign).filter(|digits| digits.len() < 4).and_then(integer)?;
    let joined = view.adjacent(0).is_some() && view.word_before(1).is_some();
    if joined || view.adjacent_word(3 + sign).is_some() {
        return None;
    }
    let minus = if is_negative { "minus " } else { "" };
    let (number, exponent) = (view.spoken(text), view.language.numbers.cardinal(exponent));
    Reading::new(3 + sign, format!("{number} times ten to the power of {minus}{exponent}"))
}

/// `3x4`, `1920×1080`, `3 * 4`.
fn multiplied(view: &View, text: &str) -> Option<Reading> {
    let sign = view.get(1)?;
    let is_sign = sign.is('×') || sign.is('*') || (sign.kind == Kind::Word && sign.text == "x");
    view.number(2).filter(|_| is_sign)?;
    Reading::new(2, format!("{} {}", view.spoken(text), if sign.is('*') || sign.space_before { "times" } else { "by" }))
}

/// `50%`, `5 km`, `20°C`, `30k`, `3 million`.
fn measure(view: &View, text: &str) -> Option<Reading> {
    let number = view.spoken(text);
    let is_one = text == "1";
    if view.get(1).is_some_and(|token| token.is('%')) {
        return Reading::new(2, format!("{number} percent"));
    }
    if view.get(1).is_some_and(|token| token.is('°')) {
        let degrees = if is_one { "degree" } else { "degrees" };
        return match view.adjacent_word(2) {
            Some("C") => Reading::new(3, format!("{number} {degrees} Celsius")),
            Some("F") => Reading::new(3, format!("{number} {degrees} Fahrenheit")),
            _ => Reading::new(2, format!("{number} {degrees}")),
        };
    }
    if let Some("k" | "K") = view.adjacent_word(1) {
        return Reading::new(
            2,
            format!("{number} {}", if text.len() < 2 && view.adjacent_word(1) == Some("K") { "K" } else { "thousand" }),
        );
    }
    let (name, taken) = unit(view, is_one)?;
    // `5 min. later`
    let goes_on = view.word(2 + taken).is_some_and(|next| next.starts_with(char::is_lowercase));
    let has_point = goes_on && view.adjacent_is(1 + taken, '.') && view.adjacent(2 + taken).is_none();
    Reading::new(1 + taken + usize::from(has_point), format!("{number} {name}"))
}

/// `a 3:1 ratio`.
fn score(view: &View, text: &str) -> Option<Reading> {
    let second = view.adjacent_number(2).filter(|_| view.adjacent_is(1, ':'))?;
    Reading::new(3, format!("{} to {}", view.spoken(text), view.spoken(second)))
}
