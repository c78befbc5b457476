//! Abbreviations with points, initials, titles and Roman numerals.

use super::super::token::Kind;
use super::super::word_lists::is_function_word;
use super::dates::month;
use super::view::{Reading, View};

/// Abbreviations before a name, which a point follows that ends no sentence.
const TITLES: [(&str, &str); 17] = [
    ("Mr", "Mister"),
    ("Mrs", "Missus"),
    ("Ms", "Miz"),
    ("Dr", "Doctor"),
    ("Prof", "Professor"),
    ("Rev", "Reverend"),
    ("Gen", "General"),
    ("Sen", "Senator"),
    ("Rep", "Representative"),
    ("Gov", "Governor"),
    ("Capt", "Captain"),
    ("Lt", "Lieutenant"),
    ("Col", "Colonel"),
    ("Sgt", "Sergeant"),
    ("Hon", "Honorable"),
    ("Pres", "President"),
    ("Mt", "Mount"),
];
/// Abbreviations that need their point.
const WITH_POINT: [(&str, &str); 24] = [
    ("jr", "junior"),
    ("sr", "senior"),
    ("inc", "incorporated"),
    ("ltd", "limited"),
    ("corp", "corporation"),
    ("co", "company"),
    ("dept", "department"),
    ("est", "established"),
    ("approx", "approximately"),
    ("vol", "volume"),
    ("fig", "figure"),
    ("figs", "figures"),
    ("ch", "chapter"),
    ("sec", "section"),
    ("eq", "equation"),
    ("ave", "avenue"),
    ("blvd", "boulevard"),
    ("rd", "road"),
    ("ed", "edition"),
    ("al", "al"),
    ("cf", "compare"),
    ("pp", "pages"),
    ("min", "minutes"),
    ("max", "maximum"),
];
/// Those among them that are words or names of their own, or end sentences: they need a number or a word in lower case after them.
const AMBIGUOUS: [&str; 9] = ["ed", "fig", "figs", "min", "max", "sec", "ch", "eq", "vol"];
/// Words that are spoken as an abbreviation unless they end a sentence.
const NOT_LAST: [&str; 2] = ["est", "rd"];
const DAYS: [(&str, &str); 5] =
    [("Mon", "Monday"), ("Tue", "Tuesday"), ("Wed", "Wednesday"), ("Thu", "Thursday"), ("Fri", "Friday")];
const WITH_POINTS: [(&str, &str); 5] =
    [("eg", "for example"), ("ie", "that is"), ("phd", "P H D"), ("ad", "A D"), ("bc", "B C")];
const ROMAN: [&str; 20] = [
    "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII", "XIII", "XIV", "XV", "XVI", "XVII",
    "XVIII", "XIX", "XX",
];
/// Names of rulers, after which a Roman numeral is an ordinal.
const RULERS: [&str; 26] = [
    "Henry",
    "George",
    "Louis",
    "Charles",
    "Elizabeth",
    "Edward",
    "James",
    "Richard",
    "William",
    "Paul",
    "Benedict",
    "Pius",
    "Philip",
    "Alexander",
    "Catherine",
    "Napoleon",
    "Nicholas",
    "Frederick",
    "Leo",
    "Mary",
    "John",
    "Peter",
    "Gregory",
    "Ferdinand",
    "Ramesses",
    "Wilhelm",
];
/// Words after which a Roman numeral is a number.
const COUNTED: [&str; 22] = [
    "chapter", "part", "volume", "book", "act", "scene", "section", "article", "appendix", "war", "phase", "type",
    "level", "class", "stage", "grade", "final", "fantasy", "rocky", "title", "schedule", "bowl",
];

/// `Dr.`, `e.g.`, `U.S.`, `J. Smith`, `etc.`
pub fn abbreviation(view: &View) -> Option<Reading> {
    let word = view.word(0)?;
    if word.len() > 10 {
        return None;
    }
    initials(view).or_else(|| title(view, word)).or_else(|| with_point(view, word))
}

/// Letters with points between. The last point stays if it ends the sentence.
fn initials(view: &View) -> Option<Reading> {
    let mut letters = String::new();
    let mut taken = 0;
    while taken < 20 && view.adjacent_is(taken + 1, '.') {
        let word = if taken == 0 { view.word(0) } else { view.adjacent_word(taken) };
        let Some(word) =
            word.filter(|word| word.chars().count() < 3 && (taken > 0 || word.chars().count() == 1 || *word == "Ph"))
        else {
            break;
        };
        letters.push_str(word);
        taken += 2;
    }
    if taken == 2 {
        return initial(view, &letters);
    }
    if taken == 0 || letters.len() < 2 {
        return None;
    }
    // "U.S.A" has no last point.
    if let Some(last) = view.adjacent_word(taken).filter(|word| word.chars().count() == 1) {
        return Reading::letters(taken + 1, letters + last);
    }
    let known = WITH_POINTS.iter().find(|(name, _)| letters.eq_ignore_ascii_case(name));
    let (is_latin, keeps_point) = (letters.chars().all(char::is_lowercase), view.is_sentence_start(taken));
    let keeps_point = keeps_point && !(is_latin && known.is_some());
    let taken = taken - usize::from(keeps_point);
    match known {
        Some((_, words)) => Reading::new(taken, *words),
        None => Reading::letters(taken, letters),
    }
}

/// One initial before a name: the point ends no sentence.
fn initial(view: &View, letter: &str) -> Option<Reading> {
    let is_capital = letter.chars().all(|c| c.is_ascii_uppercase());
    let before_name =
        view.get(2).is_some_and(|next| next.is_capitalized() && !is_function_word(&next.text.to_lowercase()));
    let after_name =
        view.before(1).is_none_or(|before| before.is_capitalized() || before.kind == Kind::Break || before.is('.'));
    (is_capital && letter != "I" && before_name && after_name).then(|| Reading::letters(2, letter)).flatten()
}

fn title(view: &View, word: &str) -> Option<Reading> {
    let point = usize::from(view.adjacent_is(1, '.'));
    let next = view.get(1 + point);
    let before_name = next.is_some_and(|next| next.is_capitalized() || next.kind == Kind::Letters);
    if word == "St" {
        let after_name = view
            .word_before(1)
            .is_some_and(|before| before.starts_with(char::is_uppercase) && !is_function_word(&before.to_lowercase()));
        let is_saint = before_name
            && !(after_name
                && view.before(1).is_some_and(|before| before.is_capitalized())
                && view.before(2).is_some_and(|number| number.kind == Kind::Number));
        let ends = !is_saint && point == 1 && view.is_sentence_start(2);
        return Reading::new(1 + point - usize::from(ends), if is_saint { "Saint" } else { "Street" });
    }
    if word == "Dr"
        && point == 1
        && !before_name
        && view.word_before(1).is_some_and(|before| before.starts_with(char::is_uppercase))
    {
        return Reading::new(1, "Drive");
    }
    let (_, spoken) = TITLES.iter().find(|(title, _)| *title == word)?;
    let always = matches!(word, "Mr" | "Mrs" | "Ms" | "Dr");
    (always || (point == 1 && before_name)).then(|| Reading::new(1 + point, *spoken)).flatten()
}

fn with_point(view: &View, word: &str) -> Option<Reading> {
    let lower = word.to_ascii_lowercase();
    if matches!(lower.as_str(), "vs" | "v") && view.before(1).is_some() && (lower == "vs" || view.adjacent_is(1, '.')) {
        return Reading::new(1 + usize::from(view.adjacent_is(1, '.')), "versus");
    }
    if !view.adjacent_is(1, '.') {
        return None;
    }
    let keeps_point =
        view.is_sentence_start(2) || view.get(2).is_some_and(|next| next.is_capitalized()) && lower == "etc";
    let taken = 2 - usize::from(keeps_point);
    if lower == "etc" {
        return Reading::new(taken, "etcetera");
    }
    if matches!(word, "No" | "no" | "Nos") && view.number(2).is_some() {
        return Reading::new(2, if word == "Nos" { "numbers" } else { "number" });
    }
    if word == "p" && view.number(2).is_some() {
        return Reading::new(2, "page");
    }
    if let Some(name) = month_or_day(view, word) {
        // A name seldom follows, but the next sentence may.
        let ends = view.is_sentence_start(2) || view.is_sentence_start_after(2);
        return Reading::new(2 - usize::from(ends), name);
    }
    let (name, spoken) = WITH_POINT.iter().find(|(name, _)| *name == lower)?;
    let next = view.get(2);
    let has_number = next.is_some_and(|next| next.kind == Kind::Number);
    let goes_on = !view.is_sentence_start(2) && next.is_some_and(|next| !next.is_capitalized());
    let belongs = if AMBIGUOUS.contains(name) {
        has_number || goes_on || is_reference(view, name)
    } else {
        !NOT_LAST.contains(name) || has_number || !view.is_sentence_start(2)
    };
    belongs.then(|| Reading::new(taken, *spoken)).flatten()
}

/// `Jan.`, `Sept.`, `Mon.`; a point after a full name ends the sentence.
fn month_or_day(view: &View, word: &str) -> Option<&'static str> {
    if let Some((_, day)) = DAYS.iter().find(|(short, _)| *short == word) {
        return Some(day);
    }
    let name = month(word).filter(|name| !name.eq_ignore_ascii_case(word) && !word.eq_ignore_ascii_case("mar"))?;
    view.number(2).is_none().then_some(name)
}

/// `fig. B`, `ch. IV`
fn is_reference(view: &View, name: &str) -> bool {
    let is_label = |label: &str| label != "I" && label.len() < 4 && label.chars().all(|c| c.is_ascii_uppercase());
    matches!(name, "fig" | "figs" | "sec" | "ch" | "eq" | "vol") && view.word(2).is_some_and(is_label)
}

/// `Henry VIII`, `Chapter IV`, `World War II`.
pub fn roman_numeral(view: &View) -> Option<Reading> {
    let word = view.word(0)?;
    let value = ROMAN.iter().position(|numeral| *numeral == word)?;
    let value = u64::try_from(value).ok()? + 1;
    let before = view.word_before(1)?;
    let is_counted = COUNTED.iter().any(|noun| before.eq_ignore_ascii_case(noun));
    let is_ruler = RULERS.contains(&before);
    if is_ruler && (value > 1 || view.get(1).is_none_or(|next| next.kind != Kind::Word)) && !matches!(word, "V" | "X") {
        return Reading::new(1, format!("the {}", view.language.numbers.ordinal(value)));
    }
    let is_name = before.starts_with(char::is_uppercase) && !is_function_word(&before.to_lowercase());
    let is_long = word.len() > 1 && is_name;
    let unambiguous = word != "I" || view.get(1).is_none_or(|next| next.kind != Kind::Word);
    ((is_counted && unambiguous) || is_long).then(|| Reading::new(1, view.language.numbers.cardinal(value))).flatten()
}
