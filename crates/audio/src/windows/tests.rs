//! Windows of random signals, and of recorded speech.

use std::io::Cursor;
use std::ops::Range;

use outpost_testing::fixtures::fixture;
use proptest::prelude::*;

use super::splitter::{MAX_WINDOW, Window, WindowSplitter};
use super::voice::{FRAME, VoiceDetector};

/// Takes loud frames for speech.
struct Loudness;

impl VoiceDetector for Loudness {
    fn score(&mut self, frame: &[f32; FRAME]) -> f32 {
        if frame.iter().any(|sample| sample.abs() > 0.5) { 1.0 } else { 0.0 }
    }
}

fn split(samples: &[f32], block: usize, detector: Option<Box<dyn VoiceDetector>>) -> Vec<Window> {
    let mut splitter = detector.map_or_else(WindowSplitter::default, WindowSplitter::with_detector);
    let mut windows = Vec::new();
    for block in samples.chunks(block) {
        windows.extend(splitter.push(block));
        assert!(splitter.buffered() <= 60 * 16_000 + 16_000 + block.len(), "{} samples kept", splitter.buffered());
    }
    windows.extend(splitter.finish());
    windows
}

fn split_loud(samples: &[f32], block: usize) -> Vec<Window> {
    split(samples, block, Some(Box::new(Loudness)))
}

/// A signal of alternating pauses and speech, in hundredths of seconds. Speech has quiet places.
fn signal(parts: &[usize]) -> Vec<f32> {
    let part = |(number, length): (usize, &usize)| {
        let amplitude = if number % 2 == 1 { 0.9_f32 } else { 0.001 };
        (0..length * 160).map(move |at| if at % 7 < 3 { amplitude } else { -amplitude * 0.5 })
    };
    parts.iter().enumerate().flat_map(part).collect()
}

/// The speech that lasts at least 5 whole frames.
fn speech(parts: &[usize]) -> Vec<Range<usize>> {
    let (mut at, mut speech) = (0, Vec::new());
    for (number, length) in parts.iter().enumerate() {
        let end = at + length * 160;
        if number % 2 == 1 && end - at >= 6 * FRAME {
            speech.push(at..end);
        }
        at = end;
    }
    speech
}

fn check(samples: &[f32], parts: &[usize], windows: &[Window]) {
    for window in windows {
        assert!(window.samples.len() <= MAX_WINDOW, "{} samples", window.samples.len());
        let range = window.start..window.start + window.samples.len();
        assert_eq!(window.samples, samples[range.clone()], "the samples are those of the file");
        for speech in &window.speech {
            assert!(range.start <= speech.start && speech.start < speech.end && speech.end <= range.end);
        }
        assert!(!window.speech.is_empty());
    }
    for pair in windows.windows(2) {
        assert!(pair[0].start + pair[0].samples.len() <= pair[1].start, "windows overlap");
    }
    let covers =
        |at: usize| windows.iter().any(|window| (window.start..window.start + window.samples.len()).contains(&at));
    for range in speech(parts) {
        assert!(range.clone().step_by(80).all(covers), "{range:?} is not covered");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn windows_cover_all_speech_in_order(
        parts in prop::collection::vec(prop_oneof![1_usize..60, 20_usize..400, 500_usize..4500], 1..24),
        block in prop_oneof![1_usize..600, 10_000_usize..100_000],
    ) {
        let samples = signal(&parts);
        let windows = split_loud(&samples, usize::MAX);
        check(&samples, &parts, &windows);
        prop_assert_eq!(windows, split_loud(&samples, block));
    }
}

#[test]
fn speech_that_ended_before_a_window_was_cut_opens_no_other() {
    // A window is full before it is noticed that the speech has ended.
    let parts = [1, 1, 1, 1, 47, 49, 30, 31, 339, 2475, 26];
    let samples = signal(&parts);
    check(&samples, &parts, &split_loud(&samples, 1000));
}

#[test]
fn a_short_signal_with_speech_is_one_window() {
    for parts in [[2000, 100, 900], [0, 3000, 0], [2900, 50, 50], [0, 10, 10]] {
        let samples = signal(&parts);
        let windows = split_loud(&samples, 1000);
        assert_eq!(windows.len(), 1, "{parts:?}");
        assert_eq!((windows[0].start, windows[0].samples.len()), (0, samples.len()), "{parts:?}");
    }
    assert!(split_loud(&signal(&[3000]), 1000).is_empty());
    assert!(split_loud(&[], 1000).is_empty());
    assert!(split_loud(&signal(&[100_000]), 1000).is_empty());
}

#[test]
fn long_pauses_are_left_out_and_short_ones_are_cut() {
    // 10 s of speech, 20 s of silence, 25 s of speech, a pause of 1 s, 25 s of speech.
    let windows = split_loud(&signal(&[0, 1000, 2000, 2500, 100, 2500]), 1000);
    let seconds: Vec<_> = windows
        .iter()
        .map(|window| [window.start, window.start + window.samples.len()].map(|at| at as f64 / 16_000.0))
        .collect();
    assert_eq!(seconds.len(), 3, "{seconds:?}");
    let expected = [[0.0, 10.5], [29.5, 55.5], [55.5, 81.0]];
    for (found, expected) in seconds.iter().flatten().zip(expected.iter().flatten()) {
        assert!((found - expected).abs() < 0.05, "{seconds:?}");
    }
}

#[test]
fn without_a_pause_the_cut_is_at_the_quietest_place() {
    let mut samples = signal(&[0, 6000]);
    let quiet = 26 * 16_000..26 * 16_000 + 1600;
    for sample in &mut samples[quiet.clone()] {
        *sample *= 0.6;
    }
    let windows = split_loud(&samples, 1000);
    let end = windows[0].samples.len();
    assert!(quiet.contains(&end), "{end} is not in {quiet:?}");
    assert_eq!(windows[1].start, end);
}

fn sentence() -> Vec<f32> {
    let path = fixture("audio/speech.flac");
    let mut samples = Vec::new();
    crate::decoding::decode(Cursor::new(std::fs::read(path).unwrap()), 60, &mut |block| {
        samples.extend_from_slice(block);
        Ok(())
    })
    .unwrap();
    samples
}

/// White noise.
fn noise(length: usize, amplitude: f32) -> Vec<f32> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..length).map(|_| amplitude * next()).collect()
}

#[test]
fn speech_is_found_when_loud_quiet_and_in_noise() {
    let speech = sentence();
    for (gain, noise_level) in [(1.0, 0.0), (0.03, 0.0), (0.003, 0.0), (1.0, 0.01), (0.1, 0.003)] {
        // The sentence between 20 and 23 seconds of 40.
        let mut samples = noise(40 * 16_000, noise_level);
        for (sample, speech) in samples[20 * 16_000..].iter_mut().zip(&speech) {
            *sample += gain * speech;
        }
        let windows = split(&samples, 4000, None);
        assert_eq!(windows.len(), 1, "gain {gain}, noise {noise_level}");
        let (first, last) = (windows[0].speech[0].start, windows[0].speech.last().unwrap().end);
        // The sentence begins after 0.2 seconds and lasts about 2.5.
        assert!((316_000..328_000).contains(&first), "gain {gain}, noise {noise_level}: {first}");
        assert!((355_000..375_000).contains(&last), "gain {gain}, noise {noise_level}: {last}");
    }
}

#[test]
fn silence_and_noise_are_no_speech() {
    assert!(split(&vec![0.0; 60 * 16_000], 4000, None).is_empty());
    assert!(split(&noise(60 * 16_000, 0.001), 4000, None).is_empty());
    assert!(split(&noise(60 * 16_000, 0.3), 4000, None).is_empty());
}
