//! Formatting of values for people to read.

use std::borrow::Cow;
use std::io::{self, Write};

/// Truncates untrusted text to 80 characters for use in a message.
pub fn shorten(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Alternatives as `a, b or c`.
pub fn one_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

/// A number with separators: `12,431`.
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut separated = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            separated.push(',');
        }
        separated.push(digit);
    }
    separated
}

/// Bytes in decimal units.
pub fn format_bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{}.{} GB", bytes / 1_000_000_000, bytes / 100_000_000 % 10),
    }
}

/// Escapes untrusted text for one line of a terminal: control characters and bidirectional controls become escapes such
/// as `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

fn escape(text: &str, kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let acts = |c: char| (c.is_control() || turns(c)) && !kept(c);
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if acts(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    Cow::Owned(safe)
}

/// A writer that escapes control characters except line breaks and tabs. All command output goes through it, because
/// names, paths and error causes may come from an untrusted file.
pub struct SanitizedWriter<W>(pub W);

impl<W: Write> Write for SanitizedWriter<W> {
    /// Consumes all of `bytes`. A character must not be split across calls; `write!` never splits one.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(escape(&text, |c| matches!(c, '\n' | '\t')).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{SanitizedWriter, format_bytes, format_count, one_line, one_of, shorten};

    #[test]
    fn what_would_command_a_terminal_is_shown_instead() {
        let cases = [
            ("plain é 漢字\tx\n", "plain é 漢字\tx\n"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", r"\u{1b}[2J\u{1b}]0;title\u{7}"),
            ("\u{9b}31m\u{7f}\r\0", r"\u{9b}31m\u{7f}\u{d}\u{0}"),
            ("fdp.\u{202e}exe\u{2066}", r"fdp.\u{202e}exe\u{2066}"),
        ];
        for (text, shown) in cases {
            let mut out = SanitizedWriter(Vec::new());
            write!(out, "{text}").unwrap();
            assert_eq!(String::from_utf8(out.0).unwrap(), shown);
            assert_eq!(one_line(text), shown.replace('\n', r"\u{a}").replace('\t', r"\u{9}"));
        }
        let mut out = SanitizedWriter(Vec::new());
        out.write_all(b"\xff\x1b").unwrap();
        assert_eq!(String::from_utf8(out.0).unwrap(), "\u{fffd}\\u{1b}");
    }

    #[test]
    fn what_is_longer_than_a_line_ends_with_an_ellipsis() {
        let line = "ä".repeat(80);
        assert_eq!(shorten(&line), line);
        assert_eq!(shorten(&format!("{line}b")), format!("{line}…"));
    }

    #[test]
    fn numbers_are_separated_by_thousands() {
        for (count, text) in [(0, "0"), (999, "999"), (12_431, "12,431"), (1_000_000, "1,000,000")] {
            assert_eq!(format_count(count), text);
        }
    }

    #[test]
    fn alternatives_are_joined_with_or() {
        assert_eq!([one_of(&["a"]), one_of(&["a", "b"]), one_of(&["a", "b", "c"])], ["a", "a or b", "a, b or c"]);
    }

    #[test]
    fn sizes_have_the_unit_that_keeps_them_short() {
        let cases = [(999, "999 B"), (1_999, "1 kB"), (123_456_789, "123 MB"), (12_345_678_900, "12.3 GB")];
        for (bytes, text) in cases {
            assert_eq!(format_bytes(bytes), text);
        }
    }
}
