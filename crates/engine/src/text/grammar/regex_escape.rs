//! Text in regular expressions.

/// The regular expression that matches exactly this text.
pub fn escape(text: &str) -> String {
    let is_special = |ch: char| ch.is_ascii_punctuation() && !matches!(ch, '_' | '<' | '>');
    text.chars().flat_map(|ch| is_special(ch).then_some('\\').into_iter().chain([ch])).collect()
}
