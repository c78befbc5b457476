//! Each format, read again by our own decoder.

use std::io::Cursor;

use super::audio_encoder::{AudioEncoder, AudioFormat};
use super::sample_bytes::{ENCODER_RATE, to_bytes};
use crate::decoding::{decode, measure};
use crate::info::SAMPLE_RATE;
use crate::resampler::Resampler;

/// A voice-like signal: harmonics of a gliding tone in syllables.
fn voice(length: usize) -> Vec<f32> {
    let mut phase = 0.0_f32;
    let sample = |at: usize| {
        let time = at as f32 / ENCODER_RATE as f32;
        phase += std::f32::consts::TAU * (140.0 + 30.0 * (3.0 * time).sin()) / ENCODER_RATE as f32;
        let syllable = (7.0 * time).sin().max(0.0);
        let tone: f32 = (1..20).map(|harmonic| (phase * harmonic as f32).sin() / harmonic as f32).sum();
        0.25 * syllable * tone
    };
    (0..length).map(sample).collect()
}

fn encode(format: AudioFormat, signal: &[f32], block: usize, length: Option<u64>) -> Vec<u8> {
    let mut encoder = AudioEncoder::new(format, length).unwrap();
    let mut bytes = Vec::new();
    for block in signal.chunks(block) {
        bytes.extend(encoder.push(block).unwrap());
    }
    bytes.extend(encoder.finish().unwrap());
    bytes
}

fn decoded(bytes: &[u8]) -> Vec<f32> {
    let mut samples = Vec::new();
    decode(Cursor::new(bytes), 3600, &mut |block| {
        samples.extend_from_slice(block);
        Ok(())
    })
    .unwrap();
    samples
}

fn resampled(signal: &[f32]) -> Vec<f32> {
    let (mut resampler, mut output) = (Resampler::new(ENCODER_RATE, SAMPLE_RATE).unwrap(), Vec::new());
    resampler.push(signal, &mut output).unwrap();
    resampler.finish(&mut output).unwrap();
    output
}

/// The signal-to-noise ratio in decibels with the second signal delayed, or the first one if it is negative.
fn ratio(reference: &[f32], other: &[f32], delay: isize) -> f64 {
    let (reference, delay) = (reference.get((-delay).max(0) as usize..).unwrap_or_default(), delay.max(0) as usize);
    let (mut signal, mut noise) = (0.0, 0.0);
    for (a, b) in reference.iter().zip(other.get(delay..).unwrap_or_default()) {
        signal += f64::from(*a).powi(2);
        noise += f64::from(a - b).powi(2);
    }
    10.0 * (signal / noise.max(1e-12)).log10()
}

#[test]
fn every_format_is_read_again() {
    let signal = voice(5 * ENCODER_RATE as usize + 77);
    let expected = resampled(&signal);
    // The delay of MP3 is not a whole number of samples at 16 kHz, which limits the ratio.
    // Format, codec, least ratio, delay, greatest difference of the length (samples at 16 kHz).
    for (format, codec, least, most_delay, length) in [
        (AudioFormat::Wav, "pcm_s16le", 60.0, 0, 0),
        (AudioFormat::Flac, "flac", 60.0, 0, 0),
        (AudioFormat::Opus, "opus", 3.5, 2, 1),
        (AudioFormat::Mp3, "mp3", 20.0, 400, 1600),
    ] {
        let bytes = encode(format, &signal, 1000, None);
        let info = measure(Cursor::new(&bytes), 3600).unwrap();
        assert_eq!(info.codec, codec);
        let samples = decoded(&bytes);
        let best = (-40..=most_delay + 40).map(|delay| (ratio(&expected, &samples, delay), delay));
        let (ratio, delay) = best.max_by(|(a, _), (b, _)| a.total_cmp(b)).unwrap();
        println!("{format:?}: {} bytes, {ratio:.1} dB, delay {delay}, {} samples", bytes.len(), samples.len());
        assert!(ratio >= least && (-2..=most_delay).contains(&delay), "{format:?}: {ratio:.1} dB at {delay}");
        let longer = samples.len() as i64 - expected.len() as i64;
        assert!((0..=length).contains(&longer), "{format:?}: {longer} samples more");
    }
    assert_eq!(encode(AudioFormat::Pcm, &signal, 999, None), to_bytes(&signal));
}

#[test]
fn lossless_formats_keep_every_sample() {
    let mut noise = 1_u32;
    let mut random = move || {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (noise >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let signals = [
        voice(20_000),
        vec![0.0; 10_000],
        (0..9000).map(|_| random()).collect(),
        (0..9000).map(|at| if at % 2 == 0 { 1.0 } else { -1.0 }).collect(),
        vec![0.5],
        vec![1.0, -1.0, 0.0],
    ];
    for (number, signal) in signals.iter().enumerate() {
        let wav = decoded(&encode(AudioFormat::Wav, signal, 777, Some(signal.len() as u64)));
        for length in [None, Some(signal.len() as u64)] {
            assert_eq!(decoded(&encode(AudioFormat::Flac, signal, 777, length)), wav, "signal {number}");
        }
    }
}

#[test]
fn bytes_do_not_depend_on_the_blocks() {
    let signal = voice(30_000);
    for format in AudioFormat::ALL {
        assert!(encode(format, &signal, 333, None) == encode(format, &signal, 30_000, None), "{format:?}");
    }
}

#[test]
fn what_is_no_sample_and_no_audio_does_no_harm() {
    let wild = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30].repeat(3000);
    for format in AudioFormat::ALL {
        assert!(!encode(format, &wild, 100, None).is_empty());
        encode(format, &[], 100, None);
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert_eq!("aac".parse::<AudioFormat>(), Err("must be one of mp3, opus, flac, wav, pcm".to_owned()));
}

#[test]
fn a_known_length_is_written() {
    let exact = encode(AudioFormat::Wav, &[0.0; 100], 100, Some(100));
    assert_eq!(
        (exact.len(), &exact[4..8], &exact[40..44]),
        (244, [236, 0, 0, 0].as_slice(), [200, 0, 0, 0].as_slice())
    );
    let open = encode(AudioFormat::Wav, &[0.0; 100], 100, None);
    assert_eq!((&open[4..8], &open[40..44]), ([0xFF; 4].as_slice(), [0xFF; 4].as_slice()));
}
