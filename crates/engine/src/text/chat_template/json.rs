//! JSON as Python's `json.dumps` writes it: the `tojson` of Hugging Face's transformers, on whose text models were trained.

use std::fmt::Write;

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::arguments::{Arguments, MAX_WIDTH, invalid};
use super::python::{as_float, check_bounds, float};

pub const PARAMETERS: &[&str] = &["ensure_ascii", "indent", "separators", "sort_keys"];

pub struct Format {
    ensure_ascii: bool,
    sort_keys: bool,
    /// What one level is indented by. `None`: all on one line.
    indent: Option<String>,
    /// Between items, and between a key and its value.
    separators: (String, String),
}

impl Default for Format {
    fn default() -> Self {
        let separators = (", ".to_owned(), ": ".to_owned());
        Self { ensure_ascii: false, sort_keys: false, indent: None, separators }
    }
}

impl Format {
    /// From the arguments of `tojson`, whose parameters are [`PARAMETERS`].
    pub fn from_arguments(given: &Arguments) -> Result<Self, Error> {
        let indent = match given.value("indent") {
            Some(text) if text.as_str().is_some_and(|text| text.len() <= MAX_WIDTH) => text.as_str().map(str::to_owned),
            Some(_) => given.width("indent")?.map(|width| " ".repeat(width)),
            None => None,
        };
        let separators = match given.value("separators") {
            Some(pair) => separators(pair)?,
            // Lines of their own need no space between items.
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        };
        let (ensure_ascii, sort_keys) = (given.is_true("ensure_ascii"), given.is_true("sort_keys"));
        Ok(Self { ensure_ascii, sort_keys, indent, separators })
    }

    pub fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut writer = Writer { format: self, out: String::new() };
        writer.value(value, 0)?;
        Ok(writer.out)
    }
}

fn separators(pair: &Value) -> Result<(String, String), Error> {
    let texts: Vec<String> = pair.try_iter()?.filter_map(|text| text.as_str().map(str::to_owned)).collect();
    match <[String; 2]>::try_from(texts) {
        Ok([items, keys]) if pair.len() == Some(2) && items.len().max(keys.len()) <= MAX_WIDTH => Ok((items, keys)),
        _ => Err(invalid("tojson: 'separators' must be two short strings, such as (',', ':')")),
    }
}

struct Writer<'a> {
    format: &'a Format,
    out: String,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_bounds(self.out.len(), depth)?;
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked().collect::<Result<Vec<Value>, Error>>()?;
                self.block('[', ']', items, depth, Self::value)?;
            }
            ValueKind::Map => {
                let mut fields = Vec::new();
                for key in value.try_iter()?.checked() {
                    let key = key?;
                    fields.push((key_text(&key)?, value.get_item(&key)?));
                }
                if self.format.sort_keys {
                    fields.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.block('{', '}', fields, depth, |writer, (key, value), depth| {
                    writer.string(key);
                    writer.out.push_str(&writer.format.separators.1);
                    writer.value(value, depth)
                })?;
            }
            kind => return Err(invalid(format!("tojson: a {kind} cannot be written as JSON"))),
        }
        Ok(())
    }

    /// Writes items with separators, or each on a line of its own.
    fn block<T>(
        &mut self,
        open: char,
        close: char,
        items: Vec<T>,
        depth: usize,
        mut write: impl FnMut(&mut Self, &T, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(&self.format.separators.0);
            }
            self.line(depth + 1);
            write(self, item, depth + 1)?;
        }
        if !items.is_empty() {
            self.line(depth);
        }
        self.out.push(close);
        Ok(())
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.format.indent {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                _ if character < ' ' || (self.format.ensure_ascii && !(' '..='~').contains(&character)) => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }
}

fn number(value: &Value) -> String {
    match as_float(value) {
        Some(number) if number.is_nan() => "NaN".to_owned(),
        Some(number) if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
        Some(number) => float(number),
        None => value.to_string(),
    }
}

/// Keys of other types become strings.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => Ok(number(key)),
        kind => Err(invalid(format!("tojson: a key cannot be a {kind}"))),
    }
}

/// JSON in the same format, for a value from outside a template.
pub fn spaced_json(value: &serde_json::Value) -> Result<String, Error> {
    Format::default().dumps(&Value::from(minijinja::value::Serde(value)))
}
