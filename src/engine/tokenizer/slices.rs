//! Long texts in slices: tokenising one slice takes little memory, and the rest can be left undone.
//!
//! The tokenizers of the supported models join nothing across the space between two words, so a cut before such a space
//! changes no token. A text without one is cut anywhere; its tokens still stand for exactly its bytes.

/// A longer text is cut into slices of at most this many bytes.
pub const LONGEST: usize = 32 << 10;
/// A slice is cut at the first space between words after this many bytes.
const SHORTEST: usize = 16 << 10;

/// Cuts `text`; the slices joined are the text.
pub fn slices(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (slice, after) = rest.split_at_checked(cut(rest)).unwrap_or((rest, ""));
        rest = after;
        Some(slice).filter(|slice| !slice.is_empty())
    })
}

/// Where the first slice ends.
fn cut(text: &str) -> usize {
    if text.len() <= LONGEST {
        return text.len();
    }
    let between_words = |three: &[u8]| matches!(three, [before, b' ', after] if before.is_ascii_alphanumeric() && after.is_ascii_alphabetic());
    let window = text.as_bytes().get(SHORTEST..LONGEST).unwrap_or_default();
    match window.windows(3).position(between_words) {
        Some(at) => SHORTEST + at + 1,
        None => text.floor_char_boundary(LONGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, SHORTEST, slices};

    #[test]
    fn slices_joined_are_the_text_and_none_is_too_long() {
        let words = "two words, and 3 more. ".repeat(9000);
        for text in [words.as_str(), &"a".repeat(100_001), &"🦀é".repeat(30_000), &" ".repeat(70_000), "short", ""] {
            assert_eq!(slices(text).collect::<String>(), text);
            assert!(slices(text).all(|slice| slice.len() <= LONGEST));
        }
        assert_eq!(slices("").count(), 0);
        assert!(slices(&words).skip(1).all(|slice| slice.starts_with(' ')));
        assert!(slices(&words).count() <= words.len() / SHORTEST + 1);
    }
}
