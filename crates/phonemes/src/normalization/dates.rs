//! Dates and times.

use super::super::numbers::spoken_digits;
use super::super::token_view::integer;
use super::view::{Part, Reading, View};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The full name of a month from its name or abbreviation.
pub fn month(word: &str) -> Option<&'static str> {
    let is_capitalized = word.starts_with(|c: char| c.is_ascii_uppercase());
    let lower = word.to_ascii_lowercase();
    let matches = |name: &&&str| {
        let name = name.to_ascii_lowercase();
        lower == name || (lower.len() == 3 && name.starts_with(&lower)) || (lower == "sept" && name == "september")
    };
    if is_capitalized { MONTHS.iter().find(|name| matches(name)).copied() } else { None }
}

fn month_name(number: u64) -> Option<&'static str> {
    MONTHS.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
}

fn day(text: &str) -> Option<u64> {
    integer(text).filter(|day| text.len() <= 2 && (1..=31).contains(day))
}

fn spoken_date(view: &View, day: u64, month: &str, year: Option<u64>) -> String {
    let day = view.language.numbers.ordinal(day);
    let date = if view.language.british { format!("the {day} of {month}") } else { format!("{month} {day}") };
    match year {
        Some(year) => format!("{date} , {}", view.language.numbers.year(year)),
        None => date,
    }
}

/// `2024-05-01`
pub fn iso_date(view: &View) -> Option<Reading> {
    let year = integer(view.number(0)?).filter(|year| (1000..3000).contains(year))?;
    let separated = |offset: usize| view.adjacent_is(offset, '-');
    let (month, day_text) = (view.adjacent_number(2)?, view.adjacent_number(4)?);
    let month = month_name(integer(month).filter(|_| month.len() == 2)?)?;
    let day = day(day_text).filter(|_| separated(1) && separated(3))?;
    Reading::new(5, spoken_date(view, day, month, Some(year)))
}

/// `1/5/2024`: month first in American English, day first in British English, unless only the other order is a date.
pub fn slash_date(view: &View) -> Option<Reading> {
    let separator =
        ['/', '.', '-'].into_iter().find(|mark| view.adjacent_is(1, *mark) && view.adjacent_is(3, *mark))?;
    let (first, second) = (integer(view.number(0)?)?, integer(view.adjacent_number(2)?)?);
    let year_text = view.adjacent_number(4)?;
    let year = integer(year_text).filter(|_| year_text.len() == 4 || (year_text.len() == 2 && separator == '/'))?;
    let year = if year_text.len() == 2 { year + if year < 50 { 2000 } else { 1900 } } else { year };
    let orders =
        if view.language.british { [(second, first), (first, second)] } else { [(first, second), (second, first)] };
    let (month, day) = orders.into_iter().find(|(month, day)| (1..=12).contains(month) && (1..=31).contains(day))?;
    Reading::new(5, spoken_date(view, day, month_name(month)?, Some(year)))
}

/// `May 1st`, `Jan. 5, 2024`, `5 May 2024`, `the 5th of May` (by the rule for ordinals).
pub fn day_of_month(view: &View) -> Option<Reading> {
    month_first(view).or_else(|| day_first(view))
}

fn month_first(view: &View) -> Option<Reading> {
    let word = view.word(0)?;
    let name = month(word)?;
    // A point after the full name ends the sentence.
    let dot = usize::from(!word.eq_ignore_ascii_case(name) && view.adjacent_is(1, '.'));
    let number = view.number(1 + dot).filter(|_| view.adjacent(1 + dot).is_none())?;
    let Some(day) = day(number) else {
        // "May 2024"
        let year = integer(number).filter(|year| number.len() == 4 && (1000..3000).contains(year))?;
        return Reading::new(2 + dot, format!("{name} {}", view.language.numbers.year(year)));
    };
    if is_amount(view, 2 + dot) {
        return None;
    }
    let mut taken = 2 + dot;
    let mut words = format!("{name} {}", view.language.numbers.ordinal(day));
    if view.adjacent_word(taken).is_some_and(is_ordinal_suffix) {
        taken += 1;
    }
    let is_range = view.adjacent_is(taken, '-') || view.adjacent_is(taken, '–');
    if let Some(last) = view.adjacent_number(taken + 1).filter(|_| is_range).and_then(self::day) {
        words = format!("{words} to {}", view.language.numbers.ordinal(last));
        taken += 2;
    }
    let comma = usize::from(view.adjacent_is(taken, ','));
    let year = view.number(taken + comma).filter(|text| text.len() == 4).and_then(integer);
    if let Some(year) = year.filter(|year| (1000..3000).contains(year) && view.adjacent(taken + comma).is_none()) {
        words = format!("{words} {} {}", if comma > 0 { "," } else { "" }, view.language.numbers.year(year));
        taken += 1 + comma;
    }
    Reading::new(taken, words)
}

fn day_first(view: &View) -> Option<Reading> {
    let day = day(view.number(0)?)?;
    let suffix = usize::from(view.adjacent_word(1).is_some_and(is_ordinal_suffix));
    let name = view.word(1 + suffix).and_then(month).filter(|_| view.adjacent(1 + suffix).is_none())?;
    let year = view.number(2 + suffix).filter(|text| text.len() == 4).and_then(integer);
    let year = year.filter(|year| (1000..3000).contains(year) && !is_amount(view, 3 + suffix));
    let after_the = view.word_before(1).is_some_and(|word| word.eq_ignore_ascii_case("the"));
    let article = if after_the { "" } else { "the " };
    let year_words = year.map_or_else(String::new, |year| format!(" {}", view.language.numbers.year(year)));
    let words = format!("{article}{} of {name}{year_words}", view.language.numbers.ordinal(day));
    Reading::new(2 + suffix + usize::from(year.is_some()), words)
}

/// True if the number before this offset is a quantity and not a day: *May 5% more*, *March 5.30*.
fn is_amount(view: &View, offset: usize) -> bool {
    ['%', ':', '/', '°'].iter().any(|mark| view.adjacent_is(offset, *mark))
}

pub fn is_ordinal_suffix(word: &str) -> bool {
    ["st", "nd", "rd", "th"].iter().any(|suffix| word.eq_ignore_ascii_case(suffix))
}

/// `3:30 pm`, `15:00`, `7:05`, `1:02:03`, `5pm`.
pub fn time(view: &View) -> Option<Reading> {
    let hour_text = view.number(0)?;
    let hour = integer(hour_text).filter(|hour| hour_text.len() <= 2 && *hour < 25)?;
    if !view.adjacent_is(1, ':') {
        let (letters, taken) = half_of_day(view, 1).filter(|_| (1..=12).contains(&hour))?;
        return Some(with_letters(1 + taken, view.language.numbers.cardinal(hour), letters));
    }
    let minute_text = view.adjacent_number(2)?;
    let minute = integer(minute_text).filter(|minute| minute_text.len() == 2 && *minute < 60)?;
    if view.adjacent_is(3, ':')
        && let Some(seconds) = view.adjacent_number(4)
    {
        return duration(view, hour, minute, seconds);
    }
    let hours = view.language.numbers.cardinal(hour);
    let half = half_of_day(view, 3);
    let minutes = match minute {
        0 if half.is_some() => String::new(),
        0 if (1..=12).contains(&hour) => "o'clock".to_owned(),
        0 => "hundred".to_owned(),
        1..10 => format!("oh {}", view.language.numbers.cardinal(minute)),
        _ => view.language.numbers.cardinal(minute),
    };
    let words = format!("{hours} {minutes}");
    match half {
        Some((letters, more)) => Some(with_letters(3 + more, words, letters)),
        None => Reading::new(3, words),
    }
}

/// `1:02:03`, `1:02:03.5`.
fn duration(view: &View, hours: u64, minutes: u64, seconds: &str) -> Option<Reading> {
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let whole = integer(whole).filter(|seconds| *seconds < 60 && whole.len() == 2)?;
    let counted = |count: u64, noun: &str| {
        let plural = if count == 1 { "" } else { "s" };
        format!("{} {noun}{plural}", view.language.numbers.cardinal(count))
    };
    let seconds = if fraction.is_empty() {
        counted(whole, "second")
    } else {
        integer(fraction)?;
        format!("{} point {} seconds", view.language.numbers.cardinal(whole), spoken_digits(fraction))
    };
    Reading::new(5, format!("{} {} and {seconds}", counted(hours, "hour"), counted(minutes, "minute")))
}

fn with_letters(taken: usize, words: String, letters: &str) -> Reading {
    Reading { taken, parts: vec![Part::Words(words), Part::Letters(letters.to_owned())] }
}

/// AM or PM, and the number of tokens: `pm`, `p.m.`. The last point stays if it ends the sentence.
fn half_of_day(view: &View, offset: usize) -> Option<(&'static str, usize)> {
    let word = view.word(offset)?.to_ascii_lowercase();
    let spoken = |letter: &str| if letter.starts_with('a') { "AM" } else { "PM" };
    if matches!(word.as_str(), "am" | "pm") {
        return Some((spoken(&word), 1));
    }
    let has_points = matches!(word.as_str(), "a" | "p")
        && view.adjacent_is(offset + 1, '.')
        && view.adjacent_word(offset + 2).is_some_and(|word| word.eq_ignore_ascii_case("m"));
    if !has_points {
        return None;
    }
    let point = view.adjacent_is(offset + 3, '.') && !view.is_sentence_start(offset + 4);
    Some((spoken(&word), 3 + usize::from(point)))
}
