//! JSON on one line, for every format in which a line is a record: JSON Lines, newline-delimited JSON and the `data:`
//! lines of server-sent events.
//!
//! JSON allows U+0085, U+2028 and U+2029 in strings, but readers that split text by Unicode's rules (Python's
//! `splitlines()`, which httpx uses for lines) end a line there. So they are escaped. The other characters at which
//! such readers split are control characters, which JSON always escapes.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// Appends `value` to `out`, without a line break at the end.
pub fn write<W: Write>(out: W, value: &impl Serialize) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, OneLine))
}

/// `value` without a line break at the end.
pub fn to_string(value: &impl Serialize) -> serde_json::Result<String> {
    let mut line = Vec::new();
    write(&mut line, value)?;
    // Only whole characters are replaced.
    String::from_utf8(line).map_err(|error| serde_json::Error::io(io::Error::other(error)))
}

/// Compact JSON without any character that ends a line.
struct OneLine;

impl Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        write_on_one_line(writer, fragment)
    }

    /// Raw JSON, which a model or a client may have written with line breaks between values.
    fn write_raw_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        write_on_one_line(writer, fragment)
    }
}

fn write_on_one_line<W: ?Sized + Write>(writer: &mut W, text: &str) -> io::Result<()> {
    let mut rest = text;
    while let Some((at, end, replacement)) = next_break(rest) {
        let (before, after) = (rest.get(..at).unwrap_or_default(), rest.get(end..).unwrap_or_default());
        writer.write_all(before.as_bytes())?;
        writer.write_all(replacement.as_bytes())?;
        rest = after;
    }
    writer.write_all(rest.as_bytes())
}

/// The first character that ends a line: where it begins and ends, and what stands for it.
fn next_break(text: &str) -> Option<(usize, usize, &'static str)> {
    let bytes = text.as_bytes();
    let mut from = 0;
    loop {
        let rest = bytes.get(from..)?;
        let at = from + rest.iter().position(|byte| matches!(byte, b'\n' | b'\r' | 0xC2 | 0xE2))?;
        match bytes.get(at..)? {
            // Raw line breaks can only stand between values.
            [b'\n' | b'\r', ..] => return Some((at, at + 1, " ")),
            [0xC2, 0x85, ..] => return Some((at, at + 2, "\\u0085")),
            [0xE2, 0x80, 0xA8, ..] => return Some((at, at + 3, "\\u2028")),
            [0xE2, 0x80, 0xA9, ..] => return Some((at, at + 3, "\\u2029")),
            _ => from = at + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;
    use serde_json::{Value, json};

    use super::to_string;

    #[test]
    fn no_character_of_a_value_ends_its_line() {
        let value = json!({ "a\u{2028}b": "\u{85}\u{2029}é–\u{2027}\u{c2}\u{b}\u{1c}\r\n", "n": [1.5, null] });
        let line = to_string(&value).unwrap();
        let expected = r#"{"a\u2028b":"\u0085\u2029é–‧Â\u000b\u001c\r\n","n":[1.5,null]}"#;
        assert_eq!(line, expected);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), value);
    }

    #[test]
    fn raw_json_becomes_one_line_and_keeps_its_numbers() {
        let raw = RawValue::from_string("{\n\"z\": \"a\u{2028}\\n\",\r\n\"a\": 1e3}".to_owned()).unwrap();
        assert_eq!(to_string(&raw).unwrap(), "{ \"z\": \"a\\u2028\\n\",  \"a\": 1e3}");
    }
}
