//! Money.

use super::super::numbers::{MAX_DIGITS, Written, parse_written};
use super::view::{Reading, View};

struct Currency {
    one: &'static str,
    many: &'static str,
    /// The hundredth part, one and many; empty if there is none.
    part: [&'static str; 2],
}

const fn currency(one: &'static str, many: &'static str, part: [&'static str; 2]) -> Currency {
    Currency { one, many, part }
}

const CENTS: [&str; 2] = ["cent", "cents"];
const SYMBOLS: [(char, Currency); 7] = [
    ('$', currency("dollar", "dollars", CENTS)),
    ('£', currency("pound", "pounds", ["penny", "pence"])),
    ('€', currency("euro", "euros", CENTS)),
    ('¥', currency("yen", "yen", ["", ""])),
    ('₹', currency("rupee", "rupees", ["paisa", "paise"])),
    ('₩', currency("won", "won", ["", ""])),
    ('₿', currency("bitcoin", "bitcoins", ["", ""])),
];
const CODES: [(&str, char); 5] = [("USD", '$'), ("GBP", '£'), ("EUR", '€'), ("JPY", '¥'), ("INR", '₹')];

fn by_symbol(symbol: char) -> Option<&'static Currency> {
    SYMBOLS.iter().find(|(other, _)| *other == symbol).map(|(_, currency)| currency)
}

/// A number and *million* after it, without its currency.
struct Amount<'a> {
    number: &'a str,
    /// *million*, or empty.
    scale: &'static str,
    /// Where the tokens after it begin.
    end: usize,
}

impl<'a> Amount<'a> {
    fn new(view: &View, number: &'a str, end: usize) -> Self {
        let (scale, tokens) = scale(view, end).unwrap_or(("", 0));
        Self { number, scale, end: end + tokens }
    }

    fn words(&self, view: &View, currency: &Currency) -> String {
        self.exact(view, currency).unwrap_or_else(|| {
            let is_one = self.number == "1" && self.scale.is_empty();
            format!("{} {}", self.without_currency(view), if is_one { currency.one } else { currency.many })
        })
    }

    fn without_currency(&self, view: &View) -> String {
        format!("{} {}", view.spoken(self.number), self.scale)
    }

    /// An amount with two decimals, in both units.
    fn exact(&self, view: &View, currency: &Currency) -> Option<String> {
        let Written::Decimal { whole, fraction } = parse_written(self.number, ',', '.') else { return None };
        if fraction.len() != 2 || whole.len() > MAX_DIGITS || currency.part[0].is_empty() || !self.scale.is_empty() {
            return None;
        }
        let (whole, part): (u64, u64) = (format!("0{whole}").parse().ok()?, fraction.parse().ok()?);
        let units = counted(view, whole, currency.one, currency.many);
        let parts = counted(view, part, currency.part[0], currency.part[1]);
        Some(match (whole, part) {
            (_, 0) => units,
            (0, _) => parts,
            _ => format!("{units} and {parts}"),
        })
    }
}

/// `$5`, `-$5`, `£3.50`, `$1.2 million`, `$5k`, `$10-$20`, `20 €`, `20 USD`.
pub fn money(view: &View) -> Option<Reading> {
    prefixed(view).or_else(|| suffixed(view))
}

fn prefixed(view: &View) -> Option<Reading> {
    let sign = usize::from(view.is_minus());
    let currency = symbol_at(view, sign)?;
    // `$-5`
    let inner_sign = usize::from(sign == 0 && view.adjacent_is(1, '-') && view.adjacent_number(2).is_some());
    let at = sign + 1 + inner_sign;
    let first = Amount::new(view, view.number(at)?, at + 1);
    let minus = if sign + inner_sign > 0 { "minus " } else { "" };
    match range_end(view, first.end, currency) {
        Some(last) => {
            let start = first.exact(view, currency).unwrap_or_else(|| first.without_currency(view));
            Reading::new(last.end, format!("{minus}{start} to {}", last.words(view, currency)))
        }
        None => Reading::new(first.end, format!("{minus}{}", first.words(view, currency))),
    }
}

fn symbol_at(view: &View, offset: usize) -> Option<&'static Currency> {
    view.get(offset).and_then(|token| token.text.chars().next()).and_then(by_symbol)
}

/// The second amount of `$10-$20` or `$10-20`, after the first one.
fn range_end<'a>(view: &View<'a>, offset: usize, currency: &Currency) -> Option<Amount<'a>> {
    let joined = ['-', '–', '~'].iter().any(|mark| view.adjacent_is(offset, *mark));
    let is_same = |other: &Currency| other.one == currency.one;
    let has_symbol = view.adjacent(offset + 1).is_some() && symbol_at(view, offset + 1).is_some_and(is_same);
    let at = offset + 1 + usize::from(has_symbol);
    let number = view.adjacent_number(at).filter(|_| joined)?;
    Some(Amount::new(view, number, at + 1))
}

/// `20 €`, `20 USD`. The symbol in `3 $20 bills` belongs to the number after it.
pub fn suffixed(view: &View) -> Option<Reading> {
    let number = view.number(0)?;
    let after = view.get(1)?;
    let code = CODES.iter().find(|(code, _)| *code == after.text).map(|(_, symbol)| *symbol);
    let is_prefix = code.is_none() && after.space_before && view.adjacent_number(2).is_some();
    let symbol = code.or(after.text.chars().next().filter(|_| after.text.chars().count() == 1));
    let currency = symbol.and_then(by_symbol).filter(|_| !is_prefix)?;
    let amount = Amount::new(view, number, 2);
    Reading::new(amount.end, amount.words(view, currency))
}

fn counted(view: &View, count: u64, one: &str, many: &str) -> String {
    format!("{} {}", view.language.numbers.cardinal(count), if count == 1 { one } else { many })
}

/// *million* after an amount, and the tokens that it takes.
fn scale(view: &View, offset: usize) -> Option<(&'static str, usize)> {
    let word = view.word(offset)?;
    let is_adjacent = view.adjacent(offset).is_some();
    let long = ["hundred", "thousand", "million", "billion", "trillion"].into_iter().find(|scale| *scale == word);
    let short = match word {
        "k" | "K" => Some("thousand"),
        "m" | "M" | "mn" => Some("million"),
        "b" | "B" | "bn" => Some("billion"),
        "T" | "tn" => Some("trillion"),
        _ => None,
    };
    long.filter(|_| !is_adjacent).or(short.filter(|_| is_adjacent || word.len() == 2)).map(|scale| (scale, 1))
}
