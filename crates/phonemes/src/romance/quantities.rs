//! Numbers with their units, amounts of money, fractions and ranges.

use super::super::language::Language;
use super::super::numbers::{Written, parse_written};
use super::super::token_view::integer;
use super::number_words::{cardinal, shortened, spoken_digits};
use super::ordinals::ordinal;
use super::view::View;

/// One and many, and whether the noun is feminine.
struct Noun(&'static str, &'static str, bool);

/// Units after a number, and their Spanish and Italian names.
const UNITS: [(&str, Noun, Noun); 21] = [
    ("km", Noun("kilómetro", "kilómetros", false), Noun("chilometro", "chilometri", false)),
    ("m", Noun("metro", "metros", false), Noun("metro", "metri", false)),
    ("cm", Noun("centímetro", "centímetros", false), Noun("centimetro", "centimetri", false)),
    ("mm", Noun("milímetro", "milímetros", false), Noun("millimetro", "millimetri", false)),
    ("kg", Noun("kilogramo", "kilogramos", false), Noun("chilogrammo", "chilogrammi", false)),
    ("g", Noun("gramo", "gramos", false), Noun("grammo", "grammi", false)),
    ("mg", Noun("miligramo", "miligramos", false), Noun("milligrammo", "milligrammi", false)),
    ("l", Noun("litro", "litros", false), Noun("litro", "litri", false)),
    ("L", Noun("litro", "litros", false), Noun("litro", "litri", false)),
    ("ml", Noun("mililitro", "mililitros", false), Noun("millilitro", "millilitri", false)),
    ("h", Noun("hora", "horas", true), Noun("ora", "ore", true)),
    ("min", Noun("minuto", "minutos", false), Noun("minuto", "minuti", false)),
    ("s", Noun("segundo", "segundos", false), Noun("secondo", "secondi", false)),
    ("GB", Noun("gigabyte", "gigabytes", false), Noun("gigabyte", "gigabyte", false)),
    ("MB", Noun("megabyte", "megabytes", false), Noun("megabyte", "megabyte", false)),
    ("kB", Noun("kilobyte", "kilobytes", false), Noun("kilobyte", "kilobyte", false)),
    ("TB", Noun("terabyte", "terabytes", false), Noun("terabyte", "terabyte", false)),
    ("W", Noun("vatio", "vatios", false), Noun("watt", "watt", false)),
    ("kW", Noun("kilovatio", "kilovatios", false), Noun("chilowatt", "chilowatt", false)),
    ("V", Noun("voltio", "voltios", false), Noun("volt", "volt", false)),
    ("Hz", Noun("hercio", "hercios", false), Noun("hertz", "hertz", false)),
];
const CURRENCIES: [(char, Noun, Noun); 3] = [
    ('€', Noun("euro", "euros", false), Noun("euro", "euro", false)),
    ('$', Noun("dólar", "dólares", false), Noun("dollaro", "dollari", false)),
    ('£', Noun("libra", "libras", true), Noun("sterlina", "sterline", true)),
];
/// Words after a number that multiply it.
const SCALES: [&str; 9] =
    ["mil", "millón", "millones", "billón", "billones", "milione", "milioni", "miliardo", "miliardi"];

/// Gives the words for the number at the start, and how many tokens they replace.
type Rule = fn(&View, &str) -> Option<(String, usize)>;

/// The number at the start, with what belongs to it.
pub fn number(view: &View) -> Option<(String, usize)> {
    let text = view.number(0)?;
    telephone(view, text).or_else(|| range(view, text)).or_else(|| single(view, text))
}

/// One number with what belongs to it, without a range.
fn single(view: &View, text: &str) -> Option<(String, usize)> {
    let plain = || (spoken(text, view.language), 1);
    let rules: [Rule; 4] = [mixed, fraction, multiplied, measure];
    Some(rules.iter().find_map(|rule| rule(view, text)).unwrap_or_else(plain))
}

/// `91-555-0123`: three or more groups of digits.
fn telephone(view: &View, text: &str) -> Option<(String, usize)> {
    let mut groups = vec![spoken(text, view.language)];
    let mut taken = 1;
    while groups.len() < 8 && view.adjacent_is(taken, '-') {
        let Some(digits) = view.adjacent_number(taken + 1) else { break };
        groups.push(spoken(digits, view.language));
        taken += 2;
    }
    (groups.len() > 2).then(|| (groups.join(" , "), taken))
}

/// `5-10 km`
fn range(view: &View, text: &str) -> Option<(String, usize)> {
    let last = view.adjacent_number(2).filter(|_| view.is_joint(1))?;
    let (words, taken) = single(&view.from(2), last)?;
    Some((format!("{} a {words}", spoken(text, view.language)), taken + 2))
}

/// `2 1/2`, `2½ km`
fn mixed(view: &View, text: &str) -> Option<(String, usize)> {
    let whole = integer(text).filter(|_| text.len() < 4 && view.adjacent(1).is_none())?;
    let part = parts(&view.from(1), view.number(1)?)?;
    let part = if part.is_half { part.noun } else { part.words };
    let words = format!("{} {} {part}", cardinal(whole, view.language), view.pick("y", "e"));
    Some(match view.word(4).and_then(|symbol| unit_noun(view, symbol)) {
        Some(Noun(_, many, _)) => (format!("{words} {many}"), 5),
        None => (words, 4),
    })
}

/// `1/2`, `3/4 km`
fn fraction(view: &View, text: &str) -> Option<(String, usize)> {
    let parts = parts(view, text)?;
    Some(match view.word(3).and_then(|symbol| unit_noun(view, symbol)) {
        Some(Noun(one, ..)) if parts.is_half => (format!("{} {one}", parts.noun), 4),
        Some(Noun(one, ..)) => (format!("{} {} {one}", parts.words, view.pick("de", "di")), 4),
        None => (parts.words, 3),
    })
}

/// A fraction in words.
struct Parts {
    /// *un medio*, *tres cuartos*
    words: String,
    /// *medio*, *cuarto*
    noun: String,
    is_half: bool,
}

/// The usual fraction at the start.
fn parts(view: &View, text: &str) -> Option<Parts> {
    let below = view.adjacent_number(2).filter(|_| view.adjacent_is(1, '/') && !view.adjacent_is(3, '/'))?;
    let (above, below) = (integer(text)?, integer(below)?);
    let noun = match below {
        2 => view.pick("medio", "mezzo").to_owned(),
        3 if !view.is_italian() => "tercio".to_owned(),
        3..=10 => ordinal(below, false, view.language)?,
        _ => return None,
    };
    if above == 0 || above >= below {
        return None;
    }
    let words = match (above, view.is_italian()) {
        (1, _) => format!("un {noun}"),
        (_, false) => format!("{} {noun}s", cardinal(above, view.language)),
        (_, true) => format!("{} {}i", cardinal(above, view.language), noun.trim_end_matches('o')),
    };
    Some(Parts { words, noun, is_half: below == 2 })
}

/// `3x4`, `3 × 4`
fn multiplied(view: &View, text: &str) -> Option<(String, usize)> {
    let is_sign = view.get(1)?.is('×') || view.word(1) == Some("x");
    view.number(2).filter(|_| is_sign)?;
    Some((format!("{} {}", spoken(text, view.language), view.pick("por", "per")), 2))
}

/// `5 km`, `20 €`, `20 °C`, `3 millones`
fn measure(view: &View, text: &str) -> Option<(String, usize)> {
    if let Some(scale) = view.word(1).filter(|word| SCALES.contains(word)) {
        let money = view.get(2).and_then(|token| currency(view, token.text.as_str()));
        let scaled = format!("{} {scale}", before_noun(view, text, false));
        return Some(match money {
            Some(noun) => (format!("{scaled}{} {}", of(view, scale), noun.1), 3),
            None => (scaled, 2),
        });
    }
    let after = view.get(1)?;
    if after.is('°') {
        let degrees = if text == "1" { view.pick("grado", "grado") } else { view.pick("grados", "gradi") };
        let is_celsius = view.adjacent_word(2) == Some("C");
        let celsius = if is_celsius { " celsius" } else { "" };
        return Some((format!("{} {degrees}{celsius}", before_noun(view, text, false)), 2 + usize::from(is_celsius)));
    }
    let is_prefix = after.space_before && view.adjacent_number(2).is_some();
    if let Some(noun) = currency(view, &after.text).filter(|_| !is_prefix) {
        return Some((counted(view, text, noun), 2));
    }
    unit(view, text)
}

/// `5 km`, `5 m²`, `60 km/h`
fn unit(view: &View, text: &str) -> Option<(String, usize)> {
    let symbol = view.word(1)?;
    let words = counted(view, text, unit_noun(view, symbol)?);
    let (one, many) = match view.adjacent(2) {
        Some(power) if power.is('²') => (view.pick("cuadrado", "quadrato"), view.pick("cuadrados", "quadrati")),
        Some(power) if power.is('³') => (view.pick("cúbico", "cubo"), view.pick("cúbicos", "cubi")),
        Some(slash) if slash.is('/') && view.adjacent_word(3) == Some("h") => {
            return Some((format!("{words} {}", view.pick("por hora", "all'ora")), 4));
        }
        _ => return Some((words, 2)),
    };
    Some((format!("{words} {}", if text == "1" { one } else { many }), 3))
}

fn unit_noun(view: &View, symbol: &str) -> Option<&'static Noun> {
    let (_, spanish, italian) = UNITS.iter().find(|(other, ..)| *other == symbol)?;
    Some(if view.is_italian() { italian } else { spanish })
}

/// `€5`, `€-5`, `$5 millones`, `€10-€20`: the amount comes first.
pub fn amount(view: &View) -> Option<(String, usize)> {
    let symbol = view.get(0)?.text.as_str();
    let noun = currency(view, symbol)?;
    let sign = usize::from(view.adjacent_is(1, '-'));
    let text = view.number(1 + sign)?;
    let minus = if sign > 0 { view.pick("menos ", "meno ") } else { "" };
    let after = 2 + sign;
    if view.is_joint(after) {
        let same = usize::from(view.adjacent(after + 1).is_some_and(|token| token.text == symbol));
        if let Some(last) = view.adjacent_number(after + 1 + same) {
            let (words, taken) = scaled(view, after + 2 + same, last, noun);
            return Some((format!("{minus}{} a {words}", spoken(text, view.language)), taken));
        }
    }
    let (words, taken) = scaled(view, after, text, noun);
    Some((format!("{minus}{words}"), taken))
}

/// The amount, with a word such as *millones* at the offset, and the tokens up to its end.
fn scaled(view: &View, offset: usize, text: &str, noun: &Noun) -> (String, usize) {
    match view.word(offset).filter(|word| SCALES.contains(word)) {
        Some(scale) => {
            let number = before_noun(view, text, false);
            (format!("{number} {scale}{} {}", of(view, scale), noun.1), offset + 1)
        }
        None => (counted(view, text, noun), offset),
    }
}

/// *millones de euros*, but *mil euros*
fn of(view: &View, scale: &str) -> &'static str {
    match scale {
        "mil" => "",
        _ if view.is_italian() => " di",
        _ => " de",
    }
}

fn currency(view: &View, symbol: &str) -> Option<&'static Noun> {
    let (_, spanish, italian) = CURRENCIES.iter().find(|(other, ..)| symbol.chars().eq([*other]))?;
    Some(if view.is_italian() { italian } else { spanish })
}

fn counted(view: &View, text: &str, noun: &Noun) -> String {
    let Noun(one, many, feminine) = noun;
    let words = before_noun(view, text, *feminine);
    let scale = words.rsplit(' ').next().filter(|last| SCALES.contains(last));
    format!("{words}{} {}", scale.map_or("", |scale| of(view, scale)), if text == "1" { one } else { many })
}

/// The number as it is before a noun: *un*, *una*, *veintiún*, *doscientas*.
fn before_noun(view: &View, text: &str, feminine: bool) -> String {
    let words = spoken(text, view.language);
    match (text, view.is_italian(), feminine) {
        ("1", _, true) => "una".to_owned(),
        ("1", _, false) => "un".to_owned(),
        (_, true, _) => words,
        (_, false, false) if integer(text).is_some() => shortened(words),
        (_, false, true) => {
            let words = words.replace("cientos", "cientas").replace("quinientos", "quinientas");
            words.strip_suffix("uno").map(|stem| format!("{stem}una")).unwrap_or(words)
        }
        _ => words,
    }
}

/// A number as it is written, with a decimal comma.
pub fn spoken(text: &str, language: Language) -> String {
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
