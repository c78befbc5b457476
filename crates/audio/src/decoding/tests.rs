//! Each format of tests/fixtures/audio. `speech.flac` has the sentence that the others were made of.

use std::io::Cursor;

use super::{decode, measure};
use crate::error::AudioError;
use crate::info::AudioInfo;

const HOUR: u32 = 3600;

fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(outpost_testing::fixtures::fixture("audio").join(name)).unwrap()
}

fn decode_bytes(bytes: &[u8], max_seconds: u32) -> Result<Vec<f32>, AudioError> {
    let mut samples = Vec::new();
    let count = decode(Cursor::new(bytes), max_seconds, &mut |block| {
        samples.extend_from_slice(block);
        Ok(())
    })?;
    assert_eq!(count, samples.len() as u64);
    Ok(samples)
}

fn measure_bytes(bytes: &[u8], max_seconds: u32) -> Result<AudioInfo, AudioError> {
    measure(Cursor::new(bytes), max_seconds)
}

/// The correlation of two signals, the second one moved by `lag` samples.
fn correlation(a: &[f32], b: &[f32], lag: isize) -> f64 {
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (at, a) in a.iter().enumerate() {
        let Some(b) = at.checked_add_signed(lag).and_then(|at| b.get(at)) else { continue };
        let (a, b) = (f64::from(*a), f64::from(*b));
        ab += a * b;
        aa += a * a;
        bb += b * b;
    }
    ab / (aa * bb).sqrt().max(1e-9)
}

fn best_lag(a: &[f32], b: &[f32], near: isize) -> (isize, f64) {
    let all = (near - 40..=near + 40).map(|lag| (lag, correlation(a, b, lag)));
    all.max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap()
}

/// Decodes a file and compares it with the sentence from `start` seconds on. Returns the lag and correlation.
fn compare(name: &str, start: f64, near: isize) -> (AudioInfo, Vec<f32>, isize, f64) {
    let bytes = fixture(name);
    let info = measure_bytes(&bytes, HOUR).unwrap_or_else(|error| panic!("{name}: {error}"));
    let samples = decode_bytes(&bytes, HOUR).unwrap_or_else(|error| panic!("{name}: {error}"));
    let speech = decode_bytes(&fixture("speech.flac"), HOUR).unwrap();
    let (lag, correlation) = best_lag(&samples, &speech[(start * 16_000.0) as usize..], near);
    println!("{name}: {info:?}, {} samples, lag {lag}, correlation {correlation:.4}", samples.len());
    (info, samples, lag, correlation)
}

type WholeFile = (&'static str, &'static str, &'static str, u32, u32, f64, isize, i64);

/// Name, container, codec, rate, channels, least correlation, delay that the file does not tell, greatest difference of
/// the length (samples at 16 kHz).
const WHOLE: [WholeFile; 18] = [
    ("speech.flac", "flac", "flac", 16_000, 1, 1.0, 0, 0),
    ("ulaw.wav", "wave", "pcm_mulaw", 8_000, 1, 0.95, 0, 1),
    ("ima-adpcm.wav", "wave", "adpcm_ima_wav", 11_025, 1, 0.95, 0, 2700),
    ("ms-adpcm.wav", "wave", "adpcm_ms", 8_000, 1, 0.95, 0, 2100),
    ("stereo-mp3-44k.mp3", "mp3", "mp3", 44_100, 2, 0.97, 0, 1),
    ("mono-mp3-16k.mp3", "mp3", "mp3", 16_000, 1, 0.94, 0, 1),
    ("vorbis.ogg", "ogg", "vorbis", 22_050, 1, 0.94, 0, 1),
    ("opus-silk.ogg", "ogg", "opus", 48_000, 1, 0.90, 0, 1),
    ("opus-hybrid.ogg", "ogg", "opus", 48_000, 1, 0.95, 0, 1),
    ("opus-celt-stereo.ogg", "ogg", "opus", 48_000, 2, 0.97, 0, 1),
    ("aac.m4a", "isomp4", "aac", 44_100, 1, 0.92, 0, 16),
    ("fragmented.mp4", "isomp4", "aac", 48_000, 1, 0.9, -341, 700),
    ("video.mp4", "isomp4", "aac", 44_100, 1, 0.92, 0, 16_000),
    ("alac.m4a", "isomp4", "alac", 8_000, 1, 0.95, 0, 1),
    ("vorbis.webm", "matroska", "vorbis", 16_000, 1, 0.94, 0, 1024),
    ("media-recorder.webm", "matroska", "opus", 48_000, 1, 0.92, 0, 330),
    ("chained.ogg", "ogg", "vorbis", 16_000, 1, 0.94, 0, 1024),
    ("aac.aac", "aac", "aac", 16_000, 1, 0.9, -1024, 2048),
];

#[test]
fn every_format_decodes_to_the_same_sentence() {
    let speech = decode_bytes(&fixture("speech.flac"), HOUR).unwrap();
    let mut wrong = Vec::new();
    for (name, container, codec, rate, channels, least, delay, length) in WHOLE {
        let (info, samples, found, correlation) = compare(name, 0.0, delay);
        assert_eq!((info.codec.as_str(), info.sample_rate, info.channels), (codec, rate, channels), "{name}");
        assert_eq!(info.container, container, "{name}");
        let longer = samples.len() as i64 - speech.len() as i64;
        let measured = info.samples() as i64 - samples.len() as i64;
        if (found - delay).abs() > 1 || correlation < least - 1e-6 || longer.abs() > length || measured.abs() > 1024 {
            wrong
                .push(format!("{name}: moved by {found}, {correlation:.3}, {longer} longer, measured {measured} more"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn short_files_of_large_formats_decode() {
    for (name, rate, channels, length) in [
        ("float-48k.wav", 48_000, 1, 0.1),
        ("extensible-24bit-96k-stereo.wav", 96_000, 2, 0.05),
        ("eight-channels-192k.wav", 192_000, 8, 0.01),
        ("surround.flac", 16_000, 6, 0.25),
        ("surround-opus.ogg", 48_000, 6, 0.5),
        ("pcm.aiff", 8_000, 1, 0.5),
        ("pcm.caf", 8_000, 1, 0.5),
    ] {
        let (info, samples, lag, correlation) = compare(name, 0.8, 0);
        assert_eq!((info.sample_rate, info.channels), (rate, channels), "{name}");
        assert!((samples.len() as f64 - length * 16_000.0).abs() <= 1.0, "{name}: {} samples", samples.len());
        assert!(lag.abs() <= 1 && correlation > 0.85, "{name}: lag {lag}, correlation {correlation}");
    }
    assert!(decode_bytes(&fixture("cover.mp3"), HOUR).unwrap().len() >= 8000, "after a large tag");
}

#[test]
fn what_is_not_supported_is_named() {
    let refused = |name: &str| {
        let bytes = fixture(name);
        let error = measure_bytes(&bytes, HOUR).unwrap_err();
        assert_eq!(decode_bytes(&bytes, HOUR).unwrap_err(), error, "{name}");
        error.to_string()
    };
    assert!(refused("ac3.mkv").contains("the codec AC-3 is not supported (matroska); send WAV"));
    assert!(refused("surround-aac.m4a").contains("aac with 6 channels"), "{}", refused("surround-aac.m4a"));
    assert!(refused("no-sound.mp4").contains("no audio track"), "{}", refused("no-sound.mp4"));
    assert!(refused("windows-media.wma").contains("not supported (ASF: WMA or WMV); send WAV"));
}

#[test]
fn what_is_not_audio_is_refused() {
    for bytes in [
        b"Hello, this is a text and not audio. ".repeat(1000),
        b"\x89PNG\r\n\x1a\n".iter().copied().chain((0..50_000_u32).map(|at| ((at * at) >> 7) as u8)).collect(),
        vec![0; 100_000],
        vec![0xFF; 100_000],
        b"RIFF".to_vec(),
        vec![7],
    ] {
        let error = measure_bytes(&bytes, HOUR).unwrap_err();
        assert!(matches!(error, AudioError::NotAudio | AudioError::NoSamples), "{error:?}");
        assert!(decode_bytes(&bytes, HOUR).is_err());
    }
    assert_eq!(measure_bytes(&[], HOUR), Err(AudioError::EmptyFile));
}

#[test]
fn a_file_that_breaks_off_gives_what_is_there() {
    for (name, ..) in WHOLE {
        let bytes = fixture(name);
        let whole = decode_bytes(&bytes, HOUR).unwrap();
        let half = decode_bytes(&bytes[..bytes.len() * 6 / 10], HOUR);
        // These keep their index at the end.
        if ["aac.m4a", "alac.m4a", "video.mp4"].contains(&name) {
            assert!(half.is_err(), "{name}");
            continue;
        }
        let half = half.unwrap_or_else(|error| panic!("{name}: {error}"));
        let ratio = half.len() as f64 / whole.len() as f64;
        assert!((0.3..0.95).contains(&ratio), "{name}: {ratio}");
    }
}

#[test]
fn a_limit_of_the_length_is_kept() {
    for (name, ..) in WHOLE {
        let bytes = fixture(name);
        assert_eq!(measure_bytes(&bytes, 1), Err(AudioError::TooLong { max_seconds: 1 }), "{name}");
        assert_eq!(decode_bytes(&bytes, 1), Err(AudioError::TooLong { max_seconds: 1 }), "{name}");
    }
}

/// A mono WAV file of 32-bit floats.
fn float_wav(rate: u32, samples: &[f32], declared: u32) -> Vec<u8> {
    let mut file = b"RIFF\xFF\xFF\xFF\xFFWAVEfmt \x10\0\0\0\x03\0\x01\0".to_vec();
    file.extend(rate.to_le_bytes());
    file.extend(rate.wrapping_mul(4).to_le_bytes());
    file.extend(b"\x04\0\x20\0data");
    file.extend(declared.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}

#[test]
fn samples_that_are_no_numbers_are_silence() {
    let samples = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.25, 7.0, -1e30].repeat(100);
    let decoded = decode_bytes(&float_wav(16_000, &samples, 2400), HOUR).unwrap();
    assert_eq!(decoded, [0.0, 0.0, 0.0, 0.25, 1.0, -1.0].repeat(100));
}

#[test]
fn a_length_without_data_is_not_believed() {
    for declared in [u32::MAX, 0x7FFF_FFFF, 1 << 20] {
        let bytes = float_wav(16_000, &[0.5; 800], declared);
        assert_eq!(measure_bytes(&bytes, HOUR).unwrap().samples(), 800);
        assert_eq!(decode_bytes(&bytes, HOUR).unwrap().len(), 800);
    }
    assert_eq!(measure_bytes(&float_wav(16_000, &[], 4_000_000), HOUR), Err(AudioError::NoSamples));
    assert_eq!(decode_bytes(&float_wav(16_000, &[], 4_000_000), HOUR), Err(AudioError::NoSamples));
}

#[test]
fn odd_sample_rates_are_refused() {
    for rate in [0, 1, 999, 768_001, u32::MAX] {
        let bytes = float_wav(rate, &[0.5; 800], 3200);
        let error = decode_bytes(&bytes, HOUR).unwrap_err();
        assert!(matches!(error, AudioError::UnsupportedSampleRate { .. } | AudioError::NotAudio), "{rate}: {error}");
    }
    for rate in [1000, 11_111, 767_999] {
        let decoded = decode_bytes(&float_wav(rate, &vec![0.5; rate as usize], 4 * rate), HOUR).unwrap();
        assert_eq!(decoded.len(), 16_000, "{rate}");
    }
}

/// An MP4 file of one track whose sound begins this many thousandths of a second after the picture. The `moov` box must be the
/// last one.
fn delayed(mut file: Vec<u8>, millis: u32) -> Vec<u8> {
    let find = |file: &[u8], kind: &[u8]| file.windows(4).rposition(|found| found == kind).unwrap();
    let list = find(&file, b"elst");
    for kind in [&b"moov"[..], b"trak", b"edts", b"elst"] {
        let at = find(&file, kind) - 4;
        let length = u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) + 12;
        file[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }
    // The number of edits, and an edit without media.
    file[list + 11] += 1;
    let pause = [millis, u32::MAX, 1 << 16].map(u32::to_be_bytes).concat();
    file.splice(list + 12..list + 12, pause);
    file
}

#[test]
fn a_pause_before_the_sound_is_silence() {
    let whole = fixture("aac.m4a");
    let later = delayed(whole.clone(), 2500);
    let (samples, expected) = (decode_bytes(&later, HOUR).unwrap(), decode_bytes(&whole, HOUR).unwrap());
    assert!(samples[..40_000].iter().all(|sample| *sample == 0.0) && samples[40_000..] == expected);
    let seconds = |file: &[u8]| measure_bytes(file, HOUR).unwrap().seconds;
    assert!((seconds(&later) - seconds(&whole) - 2.5).abs() < 1e-9);
    let long = delayed(whole, 4_000_000);
    assert!(matches!(measure_bytes(&long, HOUR), Err(AudioError::TooLong { .. })));
    assert!(matches!(decode_bytes(&long, HOUR), Err(AudioError::TooLong { .. })));
}
