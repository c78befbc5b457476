//! Python's methods of strings, lists and objects. Those that would change an object are unknown, as in Jinja2's immutable
//! sandbox.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::arguments::{Arguments, MAX_WIDTH, invalid};
use super::python::{check_bounds, is_printable, is_space, lines};

/// A method of strings: its name, its parameters, and what it does.
type Method = (&'static str, &'static [&'static str], fn(&str, &Arguments) -> Result<Value, Error>);

const RANGE: &[&str] = &["sub", "start", "end"];

const TEXT_METHODS: &[Method] = &[
    ("capitalize", &[], |text, _| Ok(Value::from(capitalize(text)))),
    ("casefold", &[], |text, _| Ok(Value::from(text.to_lowercase().replace('ß', "ss")))),
    ("center", &["width", "fill"], |text, given| {
        pad(text, given, |missing, width| missing / 2 + (missing & width & 1))
    }),
    ("count", RANGE, |text, given| {
        let sub = given.required_text("sub")?;
        let found = range_of(text, given)?.map_or(0, |(_, part)| part.matches(sub).count());
        Ok(Value::from(found))
    }),
    ("endswith", RANGE, |text, given| has_affix(text, given, |text, affix| text.ends_with(affix))),
    ("expandtabs", &["tabsize"], expand_tabs),
    ("find", RANGE, |text, given| Ok(Value::from(position(text, given, |text, sub| text.find(sub))?.unwrap_or(-1)))),
    ("index", RANGE, |text, given| found(position(text, given, |text, sub| text.find(sub))?)),
    ("isdecimal", &[], |text, _| all(text, char::is_numeric)),
    ("isidentifier", &[], |text, _| {
        let starts = text.starts_with(|first: char| first.is_alphabetic() || first == '_');
        Ok(Value::from(starts && text.chars().all(|next| next.is_alphanumeric() || next == '_')))
    }),
    ("isprintable", &[], |text, _| Ok(Value::from(text.chars().all(is_printable)))),
    ("isspace", &[], |text, _| all(text, is_space)),
    ("istitle", &[], |text, _| Ok(Value::from(text.chars().any(char::is_alphabetic) && title(text) == text))),
    ("ljust", &["width", "fill"], |text, given| pad(text, given, |_, _| 0)),
    ("lstrip", &["chars"], |text, given| strip(text, given, true, false)),
    ("partition", &["sep"], |text, given| {
        let sep = separator(given)?;
        let parts = text.split_once(sep);
        Ok(triple(parts.map_or([text, "", ""], |(before, after)| [before, sep, after])))
    }),
    ("removeprefix", &["prefix"], |text, given| {
        Ok(Value::from(text.strip_prefix(given.required_text("prefix")?).unwrap_or(text)))
    }),
    ("removesuffix", &["suffix"], |text, given| {
        Ok(Value::from(text.strip_suffix(given.required_text("suffix")?).unwrap_or(text)))
    }),
    ("rfind", RANGE, |text, given| Ok(Value::from(position(text, given, |text, sub| text.rfind(sub))?.unwrap_or(-1)))),
    ("rindex", RANGE, |text, given| found(position(text, given, |text, sub| text.rfind(sub))?)),
    ("rjust", &["width", "fill"], |text, given| pad(text, given, |missing, _| missing)),
    ("rpartition", &["sep"], |text, given| {
        let sep = separator(given)?;
        let parts = text.rsplit_once(sep);
        Ok(triple(parts.map_or(["", "", text], |(before, after)| [before, sep, after])))
    }),
    ("rsplit", &["sep", "maxsplit"], |text, given| split(text, given, true)),
    ("rstrip", &["chars"], |text, given| strip(text, given, false, true)),
    ("split", &["sep", "maxsplit"], |text, given| split(text, given, false)),
    ("splitlines", &["keepends"], |text, given| {
        let keep = given.is_true("keepends");
        let line = |(line, end): &(&str, &str)| if keep { format!("{line}{end}") } else { (*line).to_owned() };
        Ok(lines(text).iter().map(line).map(Value::from).collect())
    }),
    ("startswith", RANGE, |text, given| has_affix(text, given, |text, affix| text.starts_with(affix))),
    ("strip", &["chars"], |text, given| strip(text, given, true, true)),
    ("swapcase", &[], |text, _| Ok(Value::from(swap_case(text)))),
    ("title", &[], |text, _| Ok(Value::from(title(text)))),
    ("zfill", &["width"], zero_fill),
];

/// What the environment calls for a method that a value does not have itself.
pub fn call(state: &mut State, value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    let unknown = || Error::from(ErrorKind::UnknownMethod);
    match value.kind() {
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default();
            match TEXT_METHODS.iter().find(|(method, ..)| *method == name) {
                Some((_, parameters, run)) => run(text, &Arguments::bind(name, parameters, given)?),
                None if name == "format" => format(text, given),
                None => pycompat::unknown_method_callback(state, value, name, given),
            }
        }
        ValueKind::Map if name == "copy" && given.is_empty() => Ok(value.clone()),
        ValueKind::Map => pycompat::unknown_method_callback(state, value, name, given),
        ValueKind::Seq | ValueKind::Iterable => match (name, given) {
            ("copy", []) if !value.is_tuple() => Ok(value.clone()),
            ("count", [wanted]) => Ok(Value::from(value.try_iter()?.filter(|item| item == wanted).count())),
            ("index", [wanted]) => {
                let index = value.try_iter()?.position(|item| item == *wanted);
                index.map(Value::from).ok_or_else(|| invalid("index: the value is not in the list"))
            }
            _ => Err(unknown()),
        },
        _ => Err(unknown()),
    }
}

/// `str.format`. What a format asks for is bounded before it is written: its widths, and the texts that it repeats.
fn format(text: &str, given: &[Value]) -> Result<Value, Error> {
    let mut widths = 0_usize;
    for digits in text.split(|next: char| !next.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        match digits.parse::<usize>() {
            Ok(width) if width <= MAX_WIDTH => widths += width,
            _ => return Err(invalid(format!("format: a width exceeds the maximum of {MAX_WIDTH}"))),
        }
    }
    let longest = given.iter().filter_map(Value::as_str).map(str::len).max().unwrap_or_default();
    let fields = text.matches('{').count();
    check_bounds(text.len() + widths + fields.saturating_mul(longest), 0)?;
    minijinja::formatting::format(FormatStyle::StrFormat, text, given).map(Value::from)
}

fn all(text: &str, test: fn(char) -> bool) -> Result<Value, Error> {
    Ok(Value::from(!text.is_empty() && text.chars().all(test)))
}

fn triple(parts: [&str; 3]) -> Value {
    Value::from(Tuple::from(parts.map(Value::from)))
}

fn separator(given: &Arguments) -> Result<&str, Error> {
    Some(given.required_text("sep")?).filter(|sep| !sep.is_empty()).ok_or_else(|| invalid("the separator is empty"))
}

fn found(position: Option<i64>) -> Result<Value, Error> {
    position.map(Value::from).ok_or_else(|| invalid("index: the text was not found"))
}

/// The part from `start` to `end`, in characters as in a slice, and the characters before it. `None`: it starts after the end.
fn range_of<'a>(text: &'a str, given: &Arguments) -> Result<Option<(usize, &'a str)>, Error> {
    let (start, end) = (given.integer("start")?, given.integer("end")?);
    if start.is_none() && end.is_none() {
        return Ok(Some((0, text)));
    }
    let length = text.chars().count();
    let index = |at: i64| {
        let from_end = usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX);
        if at < 0 { length.saturating_sub(from_end) } else { from_end }
    };
    let (start, end) = (start.map_or(0, index), end.map_or(length, index).min(length));
    if start > end {
        return Ok(None);
    }
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    Ok(text.get(byte(start)..byte(end)).map(|part| (start, part)))
}

/// Where the text is found, in characters.
fn position(text: &str, given: &Arguments, find: impl Fn(&str, &str) -> Option<usize>) -> Result<Option<i64>, Error> {
    let sub = given.required_text("sub")?;
    let Some((start, part)) = range_of(text, given)? else { return Ok(None) };
    let before = find(part, sub).and_then(|byte| part.get(..byte));
    Ok(before.and_then(|before| i64::try_from(start + before.chars().count()).ok()))
}

/// Whether the text begins or ends with a text, or with one of several.
fn has_affix(text: &str, given: &Arguments, has: impl Fn(&str, &str) -> bool) -> Result<Value, Error> {
    let Some((_, part)) = range_of(text, given)? else { return Ok(Value::from(false)) };
    match given.value("sub") {
        Some(affixes) if affixes.is_tuple() => {
            Ok(Value::from(affixes.try_iter()?.any(|affix| affix.as_str().is_some_and(|affix| has(part, affix)))))
        }
        _ => Ok(Value::from(has(part, given.required_text("sub")?))),
    }
}

fn strip(text: &str, given: &Arguments, start: bool, end: bool) -> Result<Value, Error> {
    let chars = given.text("chars")?;
    let stripped = |next: char| chars.map_or_else(|| is_space(next), |chars| chars.contains(next));
    let text = if start { text.trim_start_matches(stripped) } else { text };
    Ok(Value::from(if end { text.trim_end_matches(stripped) } else { text }))
}

/// The parts between separators, or between runs of white space; at most `maxsplit` separators count.
fn split(text: &str, given: &Arguments, from_end: bool) -> Result<Value, Error> {
    let most = given.integer("maxsplit")?.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<&str> = match given.text("sep")? {
        Some("") => return Err(invalid("the separator is empty")),
        Some(sep) if from_end => text.rsplitn(most + 1, sep).collect(),
        Some(sep) => text.splitn(most + 1, sep).collect(),
        None if from_end => words(
            text,
            most,
            |text| text.trim_end_matches(is_space),
            |text| {
                let word = text.rsplit(is_space).next().map_or(0, str::len);
                let (rest, word) = text.split_at(text.len() - word);
                (word, rest)
            },
        ),
        None => words(
            text,
            most,
            |text| text.trim_start_matches(is_space),
            |text| text.split_at(text.find(is_space).unwrap_or(text.len())),
        ),
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words from one end of the text, and the rest after `most` of them. `trim` removes the white space at this end, `next` takes
/// a word from it.
fn words<'a>(
    text: &'a str,
    most: usize,
    trim: impl Fn(&'a str) -> &'a str,
    next: impl Fn(&'a str) -> (&'a str, &'a str),
) -> Vec<&'a str> {
    let (mut parts, mut rest) = (Vec::new(), trim(text));
    while !rest.is_empty() && parts.len() < most {
        let (word, after) = next(rest);
        parts.push(word);
        rest = trim(after);
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}

/// The text padded to a width. `left`: how much of what is missing comes before the text.
fn pad(text: &str, given: &Arguments, left: impl Fn(usize, usize) -> usize) -> Result<Value, Error> {
    let width = given.width("width")?.unwrap_or_default();
    let fill = given.text("fill")?.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(invalid("the fill must be one character"));
    }
    let missing = width.saturating_sub(text.chars().count());
    let before = left(missing, width);
    Ok(Value::from(format!("{}{text}{}", fill.repeat(before), fill.repeat(missing - before))))
}

fn zero_fill(text: &str, given: &Arguments) -> Result<Value, Error> {
    let width = given.width("width")?.unwrap_or_default();
    let zeros = "0".repeat(width.saturating_sub(text.chars().count()));
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    Ok(Value::from(format!("{sign}{zeros}{digits}")))
}

fn expand_tabs(text: &str, given: &Arguments) -> Result<Value, Error> {
    let size = given.width("tabsize")?.unwrap_or(8);
    let (mut out, mut column) = (String::new(), 0);
    for next in text.chars() {
        match next {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                out.push_str(&" ".repeat(spaces));
                check_bounds(out.len(), 0)?;
                column += spaces;
            }
            '\t' => (),
            _ => {
                out.push(next);
                column = if matches!(next, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    Ok(Value::from(out))
}

fn capitalize(text: &str) -> String {
    let mut rest = text.chars();
    rest.next()
        .map(|first| first.to_uppercase().chain(rest.as_str().to_lowercase().chars()).collect())
        .unwrap_or_default()
}

/// Each run of letters in lower case, after a capital letter. Unlike the filter, an apostrophe begins a new run.
fn title(text: &str) -> String {
    let (mut out, mut in_word) = (String::with_capacity(text.len()), false);
    for next in text.chars() {
        if in_word {
            out.extend(next.to_lowercase())
        } else {
            out.extend(next.to_uppercase())
        }
        in_word = next.is_lowercase() || next.is_uppercase();
    }
    out
}

fn swap_case(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for next in text.chars() {
        if next.is_uppercase() { out.extend(next.to_lowercase()) } else { out.extend(next.to_uppercase()) }
    }
    out
}
