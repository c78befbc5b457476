//! Number words of Spanish and Italian.

use super::super::language::Language;

const SPANISH: [&str; 30] = [
    "cero",
    "uno",
    "dos",
    "tres",
    "cuatro",
    "cinco",
    "seis",
    "siete",
    "ocho",
    "nueve",
    "diez",
    "once",
    "doce",
    "trece",
    "catorce",
    "quince",
    "dieciséis",
    "diecisiete",
    "dieciocho",
    "diecinueve",
    "veinte",
    "veintiuno",
    "veintidós",
    "veintitrés",
    "veinticuatro",
    "veinticinco",
    "veintiséis",
    "veintisiete",
    "veintiocho",
    "veintinueve",
];
const SPANISH_TENS: [&str; 10] =
    ["", "", "", "treinta", "cuarenta", "cincuenta", "sesenta", "setenta", "ochenta", "noventa"];
const SPANISH_HUNDREDS: [&str; 10] = [
    "",
    "ciento",
    "doscientos",
    "trescientos",
    "cuatrocientos",
    "quinientos",
    "seiscientos",
    "setecientos",
    "ochocientos",
    "novecientos",
];
const ITALIAN: [&str; 20] = [
    "zero",
    "uno",
    "due",
    "tre",
    "quattro",
    "cinque",
    "sei",
    "sette",
    "otto",
    "nove",
    "dieci",
    "undici",
    "dodici",
    "tredici",
    "quattordici",
    "quindici",
    "sedici",
    "diciassette",
    "diciotto",
    "diciannove",
];
const ITALIAN_TENS: [&str; 10] =
    ["", "", "venti", "trenta", "quaranta", "cinquanta", "sessanta", "settanta", "ottanta", "novanta"];

fn item(list: &[&'static str], index: u64) -> &'static str {
    usize::try_from(index).ok().and_then(|index| list.get(index)).copied().unwrap_or("")
}

/// A number below a quadrillion in words; above, its digits.
pub fn cardinal(number: u64, language: Language) -> String {
    if number >= 1_000_000_000_000_000 {
        return spoken_digits(&number.to_string(), language);
    }
    match language {
        Language::Italian => italian(number),
        _ => spanish(number),
    }
}

/// Digit by digit.
pub fn spoken_digits(digits: &str, language: Language) -> String {
    let list: &[&'static str] = if language == Language::Italian { &ITALIAN } else { &SPANISH };
    let words = digits.chars().filter_map(|digit| digit.to_digit(10)).map(|digit| item(list, u64::from(digit)));
    words.collect::<Vec<_>>().join(" ")
}

fn spanish(number: u64) -> String {
    let join = |words: String, rest: u64| if rest == 0 { words } else { format!("{words} {}", spanish(rest)) };
    match number {
        0..30 => item(&SPANISH, number).to_owned(),
        30..100 if number.is_multiple_of(10) => item(&SPANISH_TENS, number / 10).to_owned(),
        30..100 => format!("{} y {}", item(&SPANISH_TENS, number / 10), item(&SPANISH, number % 10)),
        100 => "cien".to_owned(),
        101..1000 => join(item(&SPANISH_HUNDREDS, number / 100).to_owned(), number % 100),
        1000..2000 => join("mil".to_owned(), number % 1000),
        2000..1_000_000 => join(format!("{} mil", shortened(spanish(number / 1000))), number % 1000),
        1_000_000..2_000_000 => join("un millón".to_owned(), number % 1_000_000),
        2_000_000..1_000_000_000_000 => {
            join(format!("{} millones", shortened(spanish(number / 1_000_000))), number % 1_000_000)
        }
        1_000_000_000_000..2_000_000_000_000 => join("un billón".to_owned(), number % 1_000_000_000_000),
        _ => join(format!("{} billones", shortened(spanish(number / 1_000_000_000_000))), number % 1_000_000_000_000),
    }
}

/// *uno* before a noun.
pub fn shortened(words: String) -> String {
    match words.strip_suffix("veintiuno") {
        Some(before) => format!("{before}veintiún"),
        None => words.strip_suffix("uno").map(|before| format!("{before}un")).unwrap_or(words),
    }
}

fn italian(number: u64) -> String {
    let join = |words: String, rest: u64| if rest == 0 { words } else { format!("{words} {}", italian(rest)) };
    match number {
        0..20 => item(&ITALIAN, number).to_owned(),
        20..100 => {
            let (tens, unit) = (item(&ITALIAN_TENS, number / 10), number % 10);
            match unit {
                0 => tens.to_owned(),
                // Before a vowel the tens lose theirs.
                1 | 8 => format!("{}{}", &tens[..tens.len() - 1], item(&ITALIAN, unit)),
                3 => format!("{tens}tré"),
                _ => format!("{tens}{}", item(&ITALIAN, unit)),
            }
        }
        100..200 => join("cento".to_owned(), number % 100),
        200..1000 => join(format!("{}cento", item(&ITALIAN, number / 100)), number % 100),
        1000..2000 => join("mille".to_owned(), number % 1000),
        2000..1_000_000 => join(format!("{} mila", italian(number / 1000)), number % 1000),
        1_000_000..2_000_000 => join("un milione".to_owned(), number % 1_000_000),
        2_000_000..1_000_000_000 => join(format!("{} milioni", italian(number / 1_000_000)), number % 1_000_000),
        1_000_000_000..2_000_000_000 => join("un miliardo".to_owned(), number % 1_000_000_000),
        _ => join(format!("{} miliardi", italian(number / 1_000_000_000)), number % 1_000_000_000),
    }
}
