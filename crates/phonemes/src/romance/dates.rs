//! Dates and times.

use super::super::token_view::integer;
use super::number_words::cardinal;
use super::ordinals::ordinal;
use super::quantities::spoken;
use super::view::View;

const SPANISH_MONTHS: [&str; 12] = [
    "enero",
    "febrero",
    "marzo",
    "abril",
    "mayo",
    "junio",
    "julio",
    "agosto",
    "septiembre",
    "octubre",
    "noviembre",
    "diciembre",
];
const ITALIAN_MONTHS: [&str; 12] = [
    "gennaio",
    "febbraio",
    "marzo",
    "aprile",
    "maggio",
    "giugno",
    "luglio",
    "agosto",
    "settembre",
    "ottobre",
    "novembre",
    "dicembre",
];

/// `12/05/2024`, `2024-05-12`, `15:30`.
pub fn date_or_time(view: &View) -> Option<(String, usize)> {
    iso_date(view).or_else(|| day_first(view)).or_else(|| time(view))
}

fn iso_date(view: &View) -> Option<(String, usize)> {
    let [year, month, day] = three(view, '-').filter(|[year, month, _]| year.len() == 4 && month.len() == 2)?;
    Some((date(view, integer(day)?, integer(month)?, integer(year)?)?, 5))
}

/// The day comes first, unless only the other order is a date.
fn day_first(view: &View) -> Option<(String, usize)> {
    let [day, month, year] = three(view, '/').or_else(|| three(view, '-'))?;
    let year_number = integer(year).filter(|_| year.len() == 4 || (year.len() == 2 && view.adjacent_is(1, '/')))?;
    let year = match year.len() {
        2 if year_number < 50 => year_number + 2000,
        2 => year_number + 1900,
        _ => year_number,
    };
    let (day, month) = (integer(day)?, integer(month)?);
    let words = date(view, day, month, year).or_else(|| date(view, month, day, year))?;
    Some((words, 5))
}

/// Three numbers with a separator.
fn three<'a>(view: &View<'a>, separator: char) -> Option<[&'a str; 3]> {
    let separated = view.adjacent_is(1, separator) && view.adjacent_is(3, separator);
    let numbers = [view.number(0)?, view.adjacent_number(2)?, view.adjacent_number(4)?];
    separated.then_some(numbers)
}

fn date(view: &View, day: u64, month: u64, year: u64) -> Option<String> {
    let index = usize::try_from(month.checked_sub(1)?).ok()?;
    let (spanish, italian) = (SPANISH_MONTHS.get(index)?, ITALIAN_MONTHS.get(index)?);
    if !(1..=31).contains(&day) || !(1000..3000).contains(&year) {
        return None;
    }
    let year = cardinal(year, view.language);
    if !view.is_italian() {
        return Some(format!("{} de {spanish} de {year}", cardinal(day, view.language)));
    }
    let day = if day == 1 { ordinal(1, false, view.language)? } else { cardinal(day, view.language) };
    Some(format!("{day} {italian} {year}"))
}

fn time(view: &View) -> Option<(String, usize)> {
    let minutes = view.adjacent_number(2).filter(|_| view.adjacent_is(1, ':'))?;
    let hours = spoken(view.number(0)?, view.language);
    let joint = view.pick("y", "e");
    let minutes = if minutes == "00" { String::new() } else { format!("{joint} {}", spoken(minutes, view.language)) };
    let is_marked = view.word(3) == Some("h");
    let unit = if is_marked { view.pick(" horas", " ore") } else { "" };
    Some((format!("{hours} {minutes}{unit}"), 3 + usize::from(is_marked)))
}
