//! Text in regular expressions and in Lark notation.

use serde_json::Value;

/// The regular expression that matches exactly this text.
pub fn escape(text: &str) -> String {
    let is_special = |ch: char| ch.is_ascii_punctuation() && !matches!(ch, '_' | '<' | '>');
    text.chars().flat_map(|ch| is_special(ch).then_some('\\').into_iter().chain([ch])).collect()
}

/// The text must match as a whole, so anchors at both ends add nothing.
pub(super) fn without_anchors(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    let escapes = |text: &str| text.len() - text.trim_end_matches('\\').len();
    regex.strip_suffix('$').filter(|rest| escapes(rest) % 2 == 0).unwrap_or(regex)
}

/// The literal in Lark notation that matches exactly this text.
pub(super) fn quote(text: &str) -> String {
    Value::from(text).to_string()
}
