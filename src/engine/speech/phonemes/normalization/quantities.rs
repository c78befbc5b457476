//! Numbers: ordinals, decades, fractions, ranges, percentages, measures and plain numbers.

use super::super::numbers::{Written, parse_written, spoken_digits};
use super::super::token::Kind;
use super::dates::is_ordinal_suffix;
use super::view::{Part, Reading, View, integer};

/// Symbols of units, and their names for one and for many.
const UNITS: [(&str, &str, &str); 58] = [
    ("km", "kilometer", "kilometers"),
    ("m", "meter", "meters"),
    ("cm", "centimeter", "centimeters"),
    ("mm", "millimeter", "millimeters"),
    ("nm", "nanometer", "nanometers"),
    ("mi", "mile", "miles"),
    ("ft", "foot", "feet"),
    ("yd", "yard", "yards"),
    ("kg", "kilogram", "kilograms"),
    ("g", "gram", "grams"),
    ("mg", "milligram", "milligrams"),
    ("lb", "pound", "pounds"),
    ("lbs", "pound", "pounds"),
    ("oz", "ounce", "ounces"),
    ("L", "liter", "liters"),
    ("l", "liter", "liters"),
    ("ml", "milliliter", "milliliters"),
    ("mL", "milliliter", "milliliters"),
    ("km²", "square kilometer", "square kilometers"),
    ("m²", "square meter", "square meters"),
    ("m³", "cubic meter", "cubic meters"),
    ("ha", "hectare", "hectares"),
    ("s", "second", "seconds"),
    ("sec", "second", "seconds"),
    ("ms", "millisecond", "milliseconds"),
    ("ns", "nanosecond", "nanoseconds"),
    ("min", "minute", "minutes"),
    ("mins", "minute", "minutes"),
    ("h", "hour", "hours"),
    ("hr", "hour", "hours"),
    ("hrs", "hour", "hours"),
    ("km/h", "kilometer per hour", "kilometers per hour"),
    ("kph", "kilometer per hour", "kilometers per hour"),
    ("mph", "mile per hour", "miles per hour"),
    ("m/s", "meter per second", "meters per second"),
    ("B", "byte", "bytes"),
    ("kB", "kilobyte", "kilobytes"),
    ("KB", "kilobyte", "kilobytes"),
    ("MB", "megabyte", "megabytes"),
    ("GB", "gigabyte", "gigabytes"),
    ("TB", "terabyte", "terabytes"),
    ("GiB", "gibibyte", "gibibytes"),
    ("MiB", "mebibyte", "mebibytes"),
    ("MB/s", "megabyte per second", "megabytes per second"),
    ("GB/s", "gigabyte per second", "gigabytes per second"),
    ("Mbps", "megabit per second", "megabits per second"),
    ("Gbps", "gigabit per second", "gigabits per second"),
    ("Hz", "hertz", "hertz"),
    ("kHz", "kilohertz", "kilohertz"),
    ("MHz", "megahertz", "megahertz"),
    ("GHz", "gigahertz", "gigahertz"),
    ("W", "watt", "watts"),
    ("kW", "kilowatt", "kilowatts"),
    ("kWh", "kilowatt hour", "kilowatt hours"),
    ("V", "volt", "volts"),
    ("px", "pixel", "pixels"),
    ("fps", "frame per second", "frames per second"),
    ("x", "times", "times"),
];

/// A number and what belongs to it.
pub fn number(view: &View) -> Option<Reading> {
    let minus = negative(view);
    let sign = usize::from(minus);
    let text = view.number(sign)?;
    if minus {
        let Reading { taken, parts } = positive(&View { at: view.at + 1, ..*view }, text)?;
        let parts = std::iter::once(Part::Words("minus".to_owned())).chain(parts).collect();
        return Some(Reading { taken: taken + 1, parts });
    }
    positive(view, text)
}

fn negative(view: &View) -> bool {
    let free = view.before(1).is_none_or(|before| before.kind != Kind::Number && !before.is(')'));
    let opens = view.get(0).is_some_and(|token| {
        token.is('-') && (token.space_before || view.at == 0 || view.before(1).is_some_and(|before| before.is('(')))
    });
    opens && view.adjacent(1).is_some() && (free || view.get(0).is_some_and(|token| token.space_before))
}

fn positive(view: &View, text: &str) -> Option<Reading> {
    let rules: [fn(&View, &str) -> Option<Reading>; 8] =
        [digit_groups, ordinal, decade, fraction, range, multiplied, measure, score];
    rules.iter().find_map(|rule| rule(view, text)).or_else(|| Reading::new(1, plain(view, text)))
}

/// A year or a number.
fn plain(view: &View, text: &str) -> String {
    match parse_written(text, ',', '.') {
        Written::Integer { digits, grouped: false } if is_year(&digits) => {
            view.numbers.year(digits.parse().unwrap_or(0))
        }
        _ => view.spoken(text),
    }
}

fn is_year(digits: &str) -> bool {
    digits.len() == 4 && integer(digits).is_some_and(|year| (1100..2100).contains(&year))
}

/// `555-0123`, `+1 (555) 010-0199`: three or more groups, or a group with a leading zero, are read digit by digit.
fn digit_groups(view: &View, text: &str) -> Option<Reading> {
    let mut groups = vec![integer(text).map(|_| text)?];
    let mut taken = 1;
    while groups.len() < 8 && view.adjacent_is(taken, '-') {
        let Some(digits) = view.adjacent_number(taken + 1).filter(|digits| integer(digits).is_some()) else { break };
        groups.push(digits);
        taken += 2;
    }
    let is_phone = groups.len() > 2 || (groups.len() == 2 && groups[0].len() == 3 && groups[1].len() == 4);
    if !is_phone {
        return None;
    }
    Reading::new(taken, groups.iter().map(|digits| spoken_digits(digits)).collect::<Vec<_>>().join(" , "))
}

fn ordinal(view: &View, text: &str) -> Option<Reading> {
    let suffix = view.adjacent_word(1).filter(|word| is_ordinal_suffix(word))?;
    let number = integer(&text.replace(',', ""))?;
    Reading::new(1 + usize::from(!suffix.is_empty()), view.numbers.ordinal(number))
}

/// `1990s`, `the 90s`, `'90s`.
fn decade(view: &View, text: &str) -> Option<Reading> {
    let apostrophe = usize::from(view.adjacent_is(1, '\''));
    view.adjacent_word(1 + apostrophe).filter(|word| *word == "s")?;
    let year = integer(text).filter(|year| year % 10 == 0 && *year > 0)?;
    let words = if is_year(text) { view.numbers.year(year) } else { view.numbers.cardinal(year) };
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
    let parts = match below {
        2 if above == 1 => "half".to_owned(),
        2 => "halves".to_owned(),
        4 if above == 1 => "quarter".to_owned(),
        4 => "quarters".to_owned(),
        3 | 5..=20 | 100 | 1000 if above < below => view.numbers.ordinal(below) + if above == 1 { "" } else { "s" },
        _ => return Reading::new(3, format!("{} {}", view.numbers.cardinal(above), view.spoken(below_text))),
    };
    Reading::new(3, format!("{} {parts}", view.numbers.cardinal(above)))
}

/// `5–10`, `1990-1995`, `pages 5-10`, with what belongs to the second number.
fn range(view: &View, text: &str) -> Option<Reading> {
    let joined = ['-', '–', '—', '~'].iter().any(|mark| view.adjacent_is(1, *mark));
    view.adjacent_number(2).filter(|_| joined)?;
    let rest = number(&View { at: view.at + 2, ..*view })?;
    let first = std::iter::once(Part::Words(format!("{} to", plain(view, text))));
    Some(Reading { taken: rest.taken + 2, parts: first.chain(rest.parts).collect() })
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
    Reading::new(1 + taken, format!("{number} {name}"))
}

/// The name of the unit after a number, and its tokens.
fn unit(view: &View, is_one: bool) -> Option<(String, usize)> {
    let word = view.word(1)?;
    let with = |more: &str| format!("{word}{more}");
    let longer = match view.adjacent(2) {
        Some(token) if token.is('²') || token.is('³') => Some((with(&token.text), 2)),
        Some(token) if token.is('/') => view.adjacent_word(3).map(|per| (with(&format!("/{per}")), 3)),
        _ => None,
    };
    let find = |symbol: &str| UNITS.iter().find(|(other, ..)| *other == symbol);
    let long = longer.and_then(|(symbol, taken)| Some((find(&symbol)?, taken)));
    let ((symbol, one, many), taken) = match long {
        Some(found) => found,
        None => (find(word)?, 1),
    };
    // A letter after a space is rather a word or a name than a unit, except for the usual ones.
    let is_letter = symbol.chars().count() == 1;
    if is_letter && view.adjacent(1).is_none() && !matches!(*symbol, "m" | "g" | "W" | "V" | "s" | "h") {
        return None;
    }
    let name = if is_one { *one } else { *many };
    let name = if view.british { name.replace("meter", "metre").replace("liter", "litre") } else { name.to_owned() };
    Some((name, taken))
}

/// `a 3:1 ratio`.
fn score(view: &View, text: &str) -> Option<Reading> {
    let second = view.adjacent_number(2).filter(|_| view.adjacent_is(1, ':'))?;
    Reading::new(3, format!("{} to {}", view.spoken(text), view.spoken(second)))
}
