//! English number words.

const SMALL: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];
const TENS: [&str; 10] = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const SCALES: [(u64, &str); 6] = [
    (1_000_000_000_000_000_000, "quintillion"),
    (1_000_000_000_000_000, "quadrillion"),
    (1_000_000_000_000, "trillion"),
    (1_000_000_000, "billion"),
    (1_000_000, "million"),
    (1000, "thousand"),
];
const ORDINALS: [(&str, &str); 12] = [
    ("one", "first"),
    ("two", "second"),
    ("three", "third"),
    ("five", "fifth"),
    ("eight", "eighth"),
    ("nine", "ninth"),
    ("twelve", "twelfth"),
    ("twenty", "twentieth"),
    ("thirty", "thirtieth"),
    ("forty", "fortieth"),
    ("fifty", "fiftieth"),
    ("sixty", "sixtieth"),
];
/// The number of digits that are read as a number. Longer ones are read digit by digit.
pub const MAX_DIGITS: usize = 15;

/// The style in which numbers are read.
#[derive(Debug, Clone, Copy, Default)]
pub struct NumberWords {
    /// *one hundred and one*, as British speakers say.
    pub with_and: bool,
}

fn word(list: &[&'static str], index: u64) -> &'static str {
    usize::try_from(index).ok().and_then(|index| list.get(index)).copied().unwrap_or("")
}

impl NumberWords {
    /// *two hundred fifty-six*, with spaces for hyphens.
    pub fn cardinal(self, number: u64) -> String {
        let mut words = Vec::new();
        let mut rest = number;
        for (scale, name) in SCALES {
            if rest >= scale {
                self.below_thousand(rest / scale, &mut words);
                words.push(name);
                rest %= scale;
            }
        }
        if self.with_and && !words.is_empty() && (1..100).contains(&rest) {
            words.push("and");
        }
        if rest > 0 || words.is_empty() {
            self.below_thousand(rest, &mut words);
        }
        words.join(" ")
    }

    fn below_thousand(self, number: u64, words: &mut Vec<&'static str>) {
        let rest = number % 100;
        if number >= 100 {
            words.extend([word(&SMALL, number / 100), "hundred"]);
            if rest == 0 {
                return;
            }
            if self.with_and {
                words.push("and");
            }
        }
        if rest < 20 {
            words.push(word(&SMALL, rest));
            return;
        }
        words.push(word(&TENS, rest / 10));
        if !rest.is_multiple_of(10) {
            words.push(word(&SMALL, rest % 10));
        }
    }

    /// *twenty first*
    pub fn ordinal(self, number: u64) -> String {
        let cardinal = self.cardinal(number);
        let (before, last) = cardinal.rsplit_once(' ').map_or(("", cardinal.as_str()), |(before, last)| (before, last));
        let irregular = ORDINALS.iter().find(|(name, _)| *name == last).map(|(_, ordinal)| (*ordinal).to_owned());
        let ordinal = irregular.unwrap_or_else(|| match last.strip_suffix('y') {
            Some(stem) => format!("{stem}ieth"),
            None => format!("{last}th"),
        });
        if before.is_empty() { ordinal } else { format!("{before} {ordinal}") }
    }

    /// *nineteen ninety nine*, *two thousand five*
    pub fn year(self, year: u64) -> String {
        let (century, rest) = (year / 100, year % 100);
        if !(1000..10_000).contains(&year) || century % 10 == 0 && rest < 10 {
            return self.cardinal(year);
        }
        match rest {
            0 => format!("{} hundred", self.cardinal(century)),
            1..10 => format!("{} oh {}", self.cardinal(century), self.cardinal(rest)),
            _ => format!("{} {}", self.cardinal(century), self.cardinal(rest)),
        }
    }

    /// Digits in the reading that suits them: a number, or digit by digit after a leading zero or if there are many.
    pub fn digits_or_cardinal(self, digits: &str) -> String {
        match digits.parse() {
            Ok(number) if digits.len() <= MAX_DIGITS && (digits.len() == 1 || !digits.starts_with('0')) => {
                self.cardinal(number)
            }
            _ => spoken_digits(digits),
        }
    }
}

/// *zero four two*
pub fn spoken_digits(digits: &str) -> String {
    let words = digits.chars().filter_map(|digit| digit.to_digit(10)).map(|digit| word(&SMALL, u64::from(digit)));
    words.collect::<Vec<_>>().join(" ")
}

/// A number as it is written, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    Integer {
        digits: String,
        grouped: bool,
    },
    Decimal {
        whole: String,
        fraction: String,
    },
    /// Several numbers: versions, addresses, lists. Each is followed by its separator.
    Several(Vec<(String, Option<char>)>),
}

/// Takes apart digits with group and decimal separators.
pub fn parse_written(text: &str, group: char, decimal: char) -> Written {
    let (whole, fraction) = match text.split_once(decimal) {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (text, None),
    };
    let groups: Vec<&str> = whole.split(group).collect();
    let is_grouped = groups.len() > 1 && groups[0].len() <= 3 && groups[1..].iter().all(|digits| digits.len() == 3);
    let is_plain = groups.len() == 1 || is_grouped;
    match fraction {
        None if is_plain => Written::Integer { digits: groups.concat(), grouped: is_grouped },
        Some(fraction) if is_plain && fraction.chars().all(|c| c.is_ascii_digit()) => {
            Written::Decimal { whole: groups.concat(), fraction: fraction.to_owned() }
        }
        _ => {
            let parts = text.split_inclusive([group, decimal]).map(|part| {
                let digits = part.trim_end_matches([group, decimal]);
                (digits.to_owned(), part[digits.len()..].chars().next())
            });
            Written::Several(parts.collect())
        }
    }
}
