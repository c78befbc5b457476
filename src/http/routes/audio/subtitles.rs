//! Subtitles in the formats SubRip and WebVTT, as OpenAI's API has them.

use std::fmt::Write;

use crate::engine::Segment;

/// SubRip: numbered segments, milliseconds after a comma.
pub fn srt(segments: &[Segment]) -> String {
    let mut text = String::new();
    for (index, segment) in segments.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}\n{}\n", index + 1, cue(segment, ','));
        text.push('\n');
    }
    text
}

/// WebVTT: a header, and milliseconds after a point.
pub fn vtt(segments: &[Segment]) -> String {
    let mut text = "WEBVTT\n\n".to_owned();
    for segment in segments {
        text.push_str(&cue(segment, '.'));
        text.push_str("\n\n");
    }
    text
}

/// The times of a segment and its text.
fn cue(segment: &Segment, point: char) -> String {
    let (start, end) = (time(segment.start, point), time(segment.end, point));
    // An arrow in the text would look like a line of times, and an empty line like the end.
    let text = segment.text.trim().replace("-->", "->");
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    format!("{start} --> {end}\n{}", lines.join("\n"))
}

/// `00:00:00.000`; hours may have more digits.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time is not negative, and one beyond the range of u64 saturates"
)]
fn time(seconds: f64, point: char) -> String {
    let millis = (seconds * 1000.0).round() as u64;
    let (hours, minutes) = (millis / 3_600_000, millis / 60_000 % 60);
    format!("{hours:02}:{minutes:02}:{:02}{point}{:03}", millis / 1000 % 60, millis % 1000)
}

#[cfg(test)]
mod tests {
    use super::{Segment, srt, time, vtt};

    fn segments() -> [Segment; 2] {
        let segment = |start, end, text: &str| Segment { start, end, text: text.to_owned(), ..Segment::default() };
        [segment(0.0, 2.5, " Look --> there."), segment(3661.0396, 7200.0, " A line.\n\n Another.")]
    }

    #[test]
    fn srt_has_numbers_and_commas() {
        let expected = "1\n00:00:00,000 --> 00:00:02,500\nLook -> there.\n\n\
                        2\n01:01:01,040 --> 02:00:00,000\nA line.\n Another.\n\n";
        assert_eq!(srt(&segments()), expected);
        assert_eq!(srt(&[]), "");
    }

    #[test]
    fn vtt_has_a_header_and_points() {
        let expected = "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nLook -> there.\n\n\
                        01:01:01.040 --> 02:00:00.000\nA line.\n Another.\n\n";
        assert_eq!(vtt(&segments()), expected);
        assert_eq!(vtt(&[]), "WEBVTT\n\n");
    }

    #[test]
    fn times_are_rounded_to_milliseconds() {
        assert_eq!(time(0.0006, '.'), "00:00:00.001");
        assert_eq!(time(-1.0, '.'), "00:00:00.000");
        assert_eq!(time(360_000.0, ','), "100:00:00,000");
    }
}
