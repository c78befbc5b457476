//! Money.

use super::super::numbers::{Written, parse_written};
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

/// `$5`, `-$5`, `£3.50`, `$1.2 million`, `$5k`, `20 €`, `20 USD`.
pub fn money(view: &View) -> Option<Reading> {
    let sign = usize::from(view.get(0).is_some_and(|token| token.is('-')) && view.adjacent(1).is_some());
    let symbol = view.get(sign).and_then(|token| token.text.chars().next());
    let (currency, number, taken) = match symbol.and_then(by_symbol) {
        Some(currency) => (currency, view.number(sign + 1)?, sign + 2),
        None => {
            let number = view.number(0)?;
            let after = view.get(1)?;
            let code = CODES.iter().find(|(code, _)| *code == after.text).map(|(_, symbol)| *symbol);
            (by_symbol(code.or(after.text.chars().next().filter(|_| after.text.chars().count() == 1))?)?, number, 2)
        }
    };
    let minus = if sign > 0 { "minus " } else { "" };
    let (scale, scale_tokens) = scale(view, taken).unwrap_or(("", 0));
    let amount = if scale.is_empty() { exact(view, number, currency) } else { None };
    let amount = amount.unwrap_or_else(|| {
        let many = number != "1" || !scale.is_empty();
        format!("{} {scale} {}", view.spoken(number), if many { currency.many } else { currency.one })
    });
    Reading::new(taken + scale_tokens, format!("{minus}{amount}"))
}

/// An amount with two decimals, in both units.
fn exact(view: &View, number: &str, currency: &Currency) -> Option<String> {
    let Written::Decimal { whole, fraction } = parse_written(number, ',', '.') else { return None };
    let (whole, part): (u64, u64) = (whole.parse().unwrap_or(0), fraction.parse().ok()?);
    if fraction.len() != 2 || currency.part[0].is_empty() {
        return None;
    }
    let units = counted(view, whole, currency.one, currency.many);
    let parts = counted(view, part, currency.part[0], currency.part[1]);
    Some(match (whole, part) {
        (_, 0) => units,
        (0, _) => parts,
        _ => format!("{units} and {parts}"),
    })
}

fn counted(view: &View, count: u64, one: &str, many: &str) -> String {
    format!("{} {}", view.numbers.cardinal(count), if count == 1 { one } else { many })
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
