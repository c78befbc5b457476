//! How values are written where people read them.

/// Text that came from outside, for use inside a message: not longer than a line.
pub fn shorten(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", text.get(..cut).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Bytes in decimal units.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        1_000_000..1_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{}.{} GB", bytes / 1_000_000_000, bytes / 100_000_000 % 10),
    }
}

#[cfg(test)]
mod tests {
    use super::{shorten, size};

    #[test]
    fn what_is_longer_than_a_line_ends_with_an_ellipsis() {
        let line = "ä".repeat(80);
        assert_eq!(shorten(&line), line);
        assert_eq!(shorten(&format!("{line}b")), format!("{line}…"));
    }

    #[test]
    fn sizes_have_the_unit_that_keeps_them_short() {
        let cases = [(999, "999 B"), (1_999, "1 kB"), (123_456_789, "123 MB"), (12_345_678_900, "12.3 GB")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
    }
}
