//! Measures the repetitiveness of a text.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// The length of a text in bytes over its length after compression with zlib; 0 for an empty text.
pub fn compression_ratio(text: &str) -> f32 {
    if text.is_empty() {
        return 0.;
    }
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing into a vector does not fail.
    let compressed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).map_or(1, |bytes| bytes.len());
    text.len() as f32 / compressed.max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::compression_ratio;

    #[test]
    fn repetitions_have_a_high_ratio() {
        assert!(compression_ratio("A sentence that says something new.") < 1.2);
        assert!(compression_ratio(&"again and ".repeat(20)) > 2.4);
        assert_eq!(compression_ratio(""), 0.);
    }
}
