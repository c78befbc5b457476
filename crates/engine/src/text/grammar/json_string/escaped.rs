//! A terminal's pattern as it appears in a JSON string.
//!
//! Quotation marks, backslashes and control characters are escaped, each in one way: the one in which JSON is usually
//! written, and in which chat templates write it. No other character is escaped.

use std::fmt::Write as _;

use super::pattern::Pattern;

/// Every text, as it appears in a JSON string, as a regular expression.
const EVERY_TEXT: &str = r#"([^"\\\x00-\x1f]|\\(["\\bfnrt]|u00[01][0-9a-f]))*"#;
/// A backslash, as a regular expression.
const BACKSLASH: &str = r"\x{5c}";

/// The pattern as a terminal in Lark notation.
pub fn terminal(pattern: &Pattern) -> String {
    if let Some(regex) = regex(pattern) {
        return format!("/{regex}/");
    }
    let join = |parts: &[Pattern], separator: &str| {
        let parts: Vec<String> = parts.iter().map(terminal).collect();
        format!("({})", parts.join(separator))
    };
    match pattern {
        Pattern::Class(_) => String::new(),
        Pattern::Concat(parts) => join(parts, " "),
        Pattern::Or(parts) => join(parts, " | "),
        Pattern::And(parts) => join(parts, " & "),
        Pattern::Not(inner) if **inner == Pattern::NOTHING => format!("/{EVERY_TEXT}/"),
        Pattern::Not(inner) => format!("(~({}) & /{EVERY_TEXT}/)", terminal(inner)),
        Pattern::Repeat(inner, min, max) => format!("({}){}", terminal(inner), repetition(*min, *max)),
    }
}

/// The texts that begin with an escape, without its backslash, as a terminal in Lark notation. `None` if there are none.
pub fn terminal_after_backslash(pattern: &Pattern) -> Option<String> {
    let mut groups: Vec<(Pattern, Vec<char>)> = Vec::new();
    for first in escaped_characters() {
        let rest = pattern.after(first);
        match groups.iter_mut().find(|(known, _)| *known == rest) {
            _ if rest == Pattern::NOTHING => {}
            Some((_, characters)) => characters.push(first),
            None => groups.push((rest, vec![first])),
        }
    }
    let texts: Vec<String> = groups
        .iter()
        .map(|(rest, characters)| match regex(rest) {
            Some(rest) => format!("/{}{rest}/", escape_endings(characters)),
            None => format!("/{}/ {}", escape_endings(characters), terminal(rest)),
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join(" | "))
}

/// A terminal, followed by the backslash of the next one's first escape.
pub fn before_backslash(name: &str) -> String {
    format!("{name} /{BACKSLASH}/")
}

fn escaped_characters() -> impl Iterator<Item = char> {
    ('\0'..'\u{20}').chain(['"', '\\'])
}

/// The regular expression of a pattern, if one can express it.
fn regex(pattern: &Pattern) -> Option<String> {
    let all = |parts: &[Pattern]| parts.iter().map(regex).collect::<Option<Vec<_>>>();
    Some(match pattern {
        Pattern::Class(ranges) => class(ranges),
        Pattern::Concat(parts) if parts.is_empty() => "(?:)".to_owned(),
        Pattern::Concat(parts) => all(parts)?.concat(),
        Pattern::Or(parts) => format!("(?:{})", all(parts)?.join("|")),
        Pattern::And(_) | Pattern::Not(_) => return None,
        Pattern::Repeat(inner, min, max) => format!("(?:{}){}", regex(inner)?, repetition(*min, *max)),
    })
}

fn repetition(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

fn class(ranges: &[(char, char)]) -> String {
    let contains = |one: char| ranges.iter().any(|(from, to)| (*from..=*to).contains(&one));
    let escaped: Vec<char> = escaped_characters().filter(|one| contains(*one)).collect();
    let plain = plain_ranges(ranges);
    match (plain.is_empty(), escaped.is_empty()) {
        (true, true) => r"[^\x{0}-\x{10ffff}]".to_owned(),
        (_, true) => format!("[{plain}]"),
        (true, false) => format!("{BACKSLASH}{}", escape_endings(&escaped)),
        (false, false) => format!("(?:[{plain}]|{BACKSLASH}{})", escape_endings(&escaped)),
    }
}

/// The characters of the ranges that need no escape, for a class.
fn plain_ranges(ranges: &[(char, char)]) -> String {
    let mut class = String::new();
    let mut add = |from: u32, to: u32| {
        if from <= to {
            // Writing to a string cannot fail.
            let _ = write!(class, "\\x{{{from:x}}}-\\x{{{to:x}}}");
        }
    };
    for (from, to) in ranges {
        let (mut from, to) = (u32::from(*from).max(0x20), u32::from(*to));
        for hole in [u32::from('"'), u32::from('\\')] {
            if (from..=to).contains(&hole) {
                add(from, hole - 1);
                from = hole + 1;
            }
        }
        add(from, to);
    }
    class
}

/// The characters after the backslash in the escapes of these characters.
fn escape_endings(characters: &[char]) -> String {
    let ending = |one: &char| match one {
        '"' | '\\' => format!("\\{one}"),
        '\n' => "n".to_owned(),
        '\t' => "t".to_owned(),
        '\r' => "r".to_owned(),
        '\u{8}' => "b".to_owned(),
        '\u{c}' => "f".to_owned(),
        other => format!("u{:04x}", u32::from(*other)),
    };
    let endings: Vec<String> = characters.iter().map(ending).collect();
    format!("(?:{})", endings.join("|"))
}
