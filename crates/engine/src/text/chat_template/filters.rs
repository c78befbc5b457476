//! The filters in which minijinja differs from Jinja2, or which it lacks.

use minijinja::value::{Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};
use minijinja_contrib::filters as more_filters;

use super::arguments::{Arguments, invalid};
use super::json;
use super::python::{as_float, check_bounds, is_space, lines, text_of};

type Run = fn(&mut State, &Value, &Arguments) -> Result<Value, Error>;

/// Name, parameters after the value as Jinja2 names them, and what the filter does.
const FILTERS: &[(&str, &[&str], Run)] = &[
    ("batch", &["linecount", "fill_with"], |state, value, given| {
        filters::batch(state, value.clone(), count(given, "linecount")?, given.value("fill_with").cloned())
    }),
    ("center", &["width"], |_, value, given| {
        let (text, width) = (text_of(value)?, given.width("width")?.unwrap_or(80));
        let missing = width.saturating_sub(text.chars().count());
        let left = missing / 2 + (missing & width & 1);
        Ok(Value::from(format!("{}{text}{}", " ".repeat(left), " ".repeat(missing - left))))
    }),
    ("d", DEFAULT, default),
    ("default", DEFAULT, default),
    ("dictsort", &["case_sensitive", "by", "reverse"], |_, value, given| filters::dictsort(value, given.by_name())),
    ("e", &[], escape),
    ("escape", &[], escape),
    ("filesizeformat", &["binary"], |_, value, given| {
        Ok(Value::from(file_size(float(value, 0.0), given.is_true("binary"))))
    }),
    ("float", &["default"], |_, value, given| {
        let default = given.value("default").map_or(Ok(0.0), |value| f64::try_from(value.clone()))?;
        Ok(Value::from(float(value, default)))
    }),
    ("forceescape", &[], escape),
    ("groupby", &["attribute", "default", "case_sensitive"], |_, value, given| {
        filters::groupby(value.clone(), None, given.by_name())
    }),
    ("indent", &["width", "first", "blank"], indent),
    ("int", &["default", "base"], int),
    ("join", &["d", "attribute"], join),
    ("lower", &[], |_, value, _| Ok(Value::from(text_of(value)?.to_lowercase()))),
    ("max", &["case_sensitive", "attribute"], |state, value, given| {
        filters::max(state, value.clone(), given.by_name())
    }),
    ("min", &["case_sensitive", "attribute"], |state, value, given| {
        filters::min(state, value.clone(), given.by_name())
    }),
    ("replace", &["old", "new", "count"], replace),
    ("round", &["precision", "method"], round),
    ("slice", &["slices", "fill_with"], |state, value, given| {
        filters::slice(state, value.clone(), count(given, "slices")?, given.value("fill_with").cloned())
    }),
    ("sort", &["reverse", "case_sensitive", "attribute"], |state, value, given| {
        filters::sort(state, value.clone(), given.by_name())
    }),
    ("string", &[], |_, value, _| text_of(value).map(Value::from)),
    ("striptags", &[], |_, value, _| Ok(Value::from(more_filters::striptags(text_of(value)?)))),
    ("sum", &["attribute", "start"], |state, value, given| {
        filters::sum(state, value.clone(), None, None, given.by_name())
    }),
    ("tojson", json::PARAMETERS, |_, value, given| json::Format::from_arguments(given)?.dumps(value).map(Value::from)),
    ("trim", &["chars"], |_, value, given| {
        let text = text_of(value)?;
        Ok(Value::from(match given.text("chars")? {
            Some(chars) => text.trim_matches(|next| chars.contains(next)),
            None => text.trim_matches(is_space),
        }))
    }),
    ("truncate", &["length", "killwords", "end", "leeway"], |state, value, given| {
        more_filters::truncate(state, &Value::from(text_of(value)?), given.by_name())
    }),
    ("unique", &["case_sensitive", "attribute"], |state, value, given| {
        filters::unique(state, value.clone(), given.by_name())
    }),
    ("upper", &[], |_, value, _| Ok(Value::from(text_of(value)?.to_uppercase()))),
    ("wordcount", &[], |_, value, _| {
        let text = text_of(value)?;
        let words = text.split(|next: char| !next.is_alphanumeric() && next != '_').filter(|word| !word.is_empty());
        Ok(Value::from(words.count()))
    }),
];

const DEFAULT: &[&str] = &["default_value", "boolean"];

pub fn add_to(environment: &mut Environment<'static>) {
    for (name, parameters, run) in FILTERS {
        environment.add_filter(*name, move |state: &mut State, given: Rest<ValueOrKwargs>| {
            let given = given.into_values();
            let (value, rest) = given.split_first().ok_or_else(|| invalid(format!("{name} needs a value")))?;
            run(state, value, &Arguments::bind(name, parameters, rest)?)
        });
    }
}

/// The options of a filter. `None`: it takes any, or there is no such filter.
pub fn parameters(filter: &str) -> Option<&'static [&'static str]> {
    FILTERS.iter().find(|(name, ..)| *name == filter).map(|(_, parameters, _)| *parameters)
}

fn count(given: &Arguments, name: &str) -> Result<usize, Error> {
    given.width(name)?.filter(|count| *count > 0).ok_or_else(|| invalid(format!("'{name}' must be at least 1")))
}

fn default(_: &mut State, value: &Value, given: &Arguments) -> Result<Value, Error> {
    let replaced = value.is_undefined() || (given.is_true("boolean") && !value.is_true());
    let default = || given.given("default_value").cloned().unwrap_or_else(|| Value::from(""));
    Ok(if replaced { default() } else { value.clone() })
}

/// The entities of HTML, as MarkupSafe writes them.
fn escape(_: &mut State, value: &Value, _: &Arguments) -> Result<Value, Error> {
    let mut out = String::new();
    for next in text_of(value)?.chars() {
        match next {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(next),
        }
    }
    Ok(Value::from(out))
}

/// A number that Python's `float` reads; otherwise `default`.
fn float(value: &Value, default: f64) -> f64 {
    value.as_str().map_or_else(|| as_number(value), parse_float).unwrap_or(default)
}

/// The number, or 0 and 1 for booleans.
fn as_number(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    }
}

fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let is_grouped = !text.starts_with('_') && !text.ends_with('_') && !text.contains("__");
    text.replace('_', "").parse().ok().filter(|_| is_grouped)
}

fn int(_: &mut State, value: &Value, given: &Arguments) -> Result<Value, Error> {
    let default = || given.given("default").cloned().unwrap_or_else(|| Value::from(0));
    if value.kind() == ValueKind::Number && value.is_integer() {
        return Ok(value.clone());
    }
    let whole = value.as_str().and_then(|text| parse_int(text, given.integer("base").ok().flatten().unwrap_or(10)));
    let truncated = || {
        let number = value.as_str().map_or_else(|| as_number(value), parse_float);
        number.filter(|number| number.is_finite()).map(whole_number)
    };
    Ok(whole.map(Value::from).or_else(truncated).unwrap_or_else(default))
}

/// Text that Python's `int` reads in this base; base 0 goes by the prefix.
fn parse_int(text: &str, base: i64) -> Option<i64> {
    let text = text.trim_matches(is_space);
    let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
    let lower = digits.to_lowercase();
    let prefix = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(prefix, _)| lower.starts_with(prefix));
    let (digits, base) = match prefix {
        Some((prefix, of)) if base == of || base == 0 => (lower.strip_prefix(prefix)?, of),
        _ => (lower.as_str(), if base == 0 { 10 } else { base }),
    };
    let is_grouped = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    let base = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
    if !is_grouped || !digits.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        return None;
    }
    i64::from_str_radix(&format!("{sign}{}", digits.replace('_', "")), base).ok()
}

/// A float without its fraction, as an integer.
#[expect(clippy::cast_possible_truncation, reason = "saturates beyond 128 bits")]
fn whole_number(number: f64) -> Value {
    Value::from(number.trunc() as i128)
}

fn indent(_: &mut State, value: &Value, given: &Arguments) -> Result<Value, Error> {
    let text = text_of(value)?;
    let pad = match given.value("width").and_then(Value::as_str) {
        Some(pad) => pad.to_owned(),
        None => " ".repeat(given.width("width")?.unwrap_or(4)),
    };
    let lines = lines(&text);
    let needed = text.len().saturating_add(pad.len().saturating_mul(lines.len() + 1));
    check_bounds(needed, 0)?;
    let mut out = String::with_capacity(needed);
    // A text that ends with a line feed has an empty line at its end.
    let last =
        if text.is_empty() || lines.last().is_some_and(|(_, end)| !end.is_empty()) { Some(("", "")) } else { None };
    for (index, (line, _)) in lines.into_iter().chain(last).enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let is_padded = if index == 0 { given.is_true("first") } else { !line.is_empty() || given.is_true("blank") };
        if is_padded {
            out.push_str(&pad);
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

fn join(_: &mut State, value: &Value, given: &Arguments) -> Result<Value, Error> {
    let separator = given.value("d").map(text_of).transpose()?.unwrap_or_default();
    let mut out = String::new();
    for (index, item) in value.try_iter()?.checked().enumerate() {
        let item = item?;
        if index > 0 {
            out.push_str(&separator);
        }
        match given.value("attribute") {
            Some(path) => out.push_str(&text_of(&attribute(&item, path)?)?),
            None => out.push_str(&text_of(&item)?),
        }
        check_bounds(out.len(), 0)?;
    }
    Ok(Value::from(out))
}

/// The value at a path such as `a.b.0`.
fn attribute(item: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return item.get_item(path) };
    path.split('.').try_fold(item.clone(), |value, name| match name.parse::<usize>() {
        Ok(index) => value.get_item_by_index(index),
        Err(_) => value.get_attr(name),
    })
}

fn replace(_: &mut State, value: &Value, given: &Arguments) -> Result<Value, Error> {
    let text = text_of(value)?;
    let (old, new) = (text_of(required(given, "old")?)?, text_of(required(given, "new")?)?);
    let count = given.integer("count")?.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let matches = text.matches(old.as_str()).take(count).count();
    check_bounds(text.len().saturating_add(matches.saturating_mul(new.len())), 0)?;
    Ok(Value::from(text.replacen(old.as_str(), &new, count)))
}

fn required<'a>(given: &'a Arguments, name: &str) -> Result<&'a Value, Error> {
    given.given(name).ok_or_else(|| Error::new(ErrorKind::MissingArgument, format!("'{name}' is missing")))
}

fn round(_: &mut State, value: &Value, given: &Arguments) -> Result<Value, Error> {
    let precision = given.integer("precision")?.unwrap_or(0);
    let Ok(digits @ -300..=300) = i32::try_from(precision) else { return Ok(value.clone()) };
    let scale = 10_f64.powi(digits);
    // Python rounds to an integer, which has no negative zero.
    let scaled = |round: fn(f64) -> f64| Ok(Value::from((round(f64::try_from(value.clone())? * scale) + 0.0) / scale));
    match given.text("method")?.unwrap_or("common") {
        "floor" => scaled(f64::floor),
        "ceil" => scaled(f64::ceil),
        "common" => match as_float(value) {
            None if digits >= 0 => Ok(value.clone()),
            None => Ok(whole_number((f64::try_from(value.clone())? * scale).round_ties_even() / scale)),
            // The nearest decimal number; formatting rounds exactly, and ties to even.
            Some(number) if digits >= 0 => {
                let places = usize::try_from(digits).unwrap_or_default();
                Ok(Value::from(format!("{number:.places$}").parse().unwrap_or(number)))
            }
            Some(number) => Ok(Value::from((number * scale).round_ties_even() / scale)),
        },
        method => Err(invalid(format!("round: unknown method '{method}'"))),
    }
}

fn file_size(bytes: f64, binary: bool) -> String {
    let (base, units) = if binary {
        (1024.0, ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"])
    } else {
        (1000.0, ["kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"])
    };
    if bytes == 1.0 {
        return "1 Byte".to_owned();
    }
    if bytes < base {
        return format!("{:.0} Bytes", bytes.trunc() + 0.0);
    }
    let mut scaled = bytes / base;
    let mut unit = units.iter();
    let mut name = unit.next();
    while scaled >= base
        && let Some(next) = unit.next()
    {
        scaled /= base;
        name = Some(next);
    }
    format!("{scaled:.1} {}", name.unwrap_or(&"YB"))
}
