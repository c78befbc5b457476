//! Values as text, as Python's `str` and `repr` write them.

use std::fmt::Write;

use minijinja::Error;
use minijinja::value::{Value, ValueKind};

use super::arguments::invalid;

/// Max bytes of the text of one value. A list that contains itself many times over has a text far larger than itself.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// Max levels of lists and objects inside each other.
pub const MAX_DEPTH: usize = 128;

/// `str(value)`. Undefined values are empty, as in Jinja2.
pub fn text_of(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => {
            let mut out = String::new();
            write_repr(&mut out, value, 0)?;
            Ok(out)
        }
    }
}

/// The number, if it is a floating point number.
pub fn as_float(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok())?
}

/// `repr` of a float: the shortest digits that read back as the number, with an exponent below 1e-4 and from 1e16 on.
pub fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    match scientific.split_once('e').and_then(|(digits, exponent)| Some((digits, exponent.parse::<i32>().ok()?))) {
        Some((digits, exponent)) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        _ => {
            let text = number.to_string();
            if text.contains('.') { text } else { text + ".0" }
        }
    }
}

/// `repr(value)`.
fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    check_bounds(out.len(), depth)?;
    match value.kind() {
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => match as_float(value) {
            Some(number) => out.push_str(&float(number)),
            None => out.push_str(&value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ")") } else { ('[', "]") };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                if count > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item?, depth + 1)?;
                count += 1;
            }
            out.push_str(if value.is_tuple() && count == 1 { ",)" } else { close });
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        ValueKind::Undefined => out.push_str("Undefined"),
        // True, False, None, and objects that have no counterpart in JSON.
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// Fails for a text that is too long or a value that is nested too deeply.
pub fn check_bounds(bytes: usize, depth: usize) -> Result<(), Error> {
    if bytes > MAX_TEXT_BYTES {
        return Err(invalid(format!("the text of a value exceeds {MAX_TEXT_BYTES} bytes")));
    }
    if depth > MAX_DEPTH {
        return Err(invalid(format!("a value has more than {MAX_DEPTH} levels")));
    }
    Ok(())
}

fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == quote => out.extend(['\\', quote]),
            _ if is_printable(character) => out.push(character),
            _ => {
                let code = u32::from(character);
                let _ = match code {
                    0..=0xFF => write!(out, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Whether Python's `repr` writes the character as it is. Python's tables also exclude unassigned characters.
pub fn is_printable(character: char) -> bool {
    let is_format = matches!(u32::from(character),
        0xAD | 0x600..=0x605 | 0x61C | 0x200B..=0x200F | 0x202A..=0x202E | 0x2060..=0x206F | 0xE000..=0xF8FF
        | 0xFEFF | 0xFFF0..=0xFFFB | 0xFFFE | 0xFFFF | 0xE0000..=0x0010_FFFF);
    character == ' ' || !(character.is_control() || character.is_whitespace() || is_format)
}

/// Python's `str.isspace` of one character.
pub fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// The lines of `str.splitlines`, each with the bytes that end it.
pub fn lines(text: &str) -> Vec<(&str, &str)> {
    let ends_line = |character: char| {
        matches!(character, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(ends_line) {
        let (line, after) = rest.split_at(at);
        let end = if after.starts_with("\r\n") { 2 } else { after.chars().next().map_or(0, char::len_utf8) };
        let (end, next) = after.split_at(end);
        lines.push((line, end));
        rest = next;
    }
    if !rest.is_empty() {
        lines.push((rest, ""));
    }
    lines
}
