//! `outpost audio-decoder`, as the server starts it.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outpost::audio::{AudioDecoder, AudioError};

fn fixture(name: &str) -> PathBuf {
    outpost_testing::fixtures::fixture("audio").join(name)
}

fn decoder() -> AudioDecoder {
    AudioDecoder::new(env!("CARGO_BIN_EXE_outpost").into())
}

fn temporary(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

fn decode(file: &File, max_seconds: u32) -> Result<usize, AudioError> {
    let mut count = 0;
    for samples in decoder().decode(file, max_seconds)? {
        let samples = samples?;
        assert!(samples.len() <= 16_000);
        count += samples.len();
    }
    Ok(count)
}

#[test]
fn files_are_measured_and_decoded_whatever_their_position() {
    for name in ["stereo-mp3-44k.mp3", "opus-hybrid.ogg", "video.mp4", "speech.flac", "media-recorder.webm"] {
        let mut file = File::open(fixture(name)).unwrap();
        file.seek(SeekFrom::End(0)).unwrap();
        let info = decoder().probe(&file, 100).unwrap();
        let decoded = decode(&file, 100).unwrap();
        assert!((info.samples() as i64 - decoded as i64).abs() <= 1024, "{name}: {info:?}, {decoded} samples");
        assert_eq!(decoder().probe(&file, 1), Err(AudioError::TooLong { max_seconds: 1 }));
        assert_eq!(decode(&file, 1), Err(AudioError::TooLong { max_seconds: 1 }));
    }
}

#[test]
fn errors_come_from_the_process() {
    for (content, error) in [
        (b"".as_slice(), AudioError::EmptyFile),
        (b"no audio, just text", AudioError::NotAudio),
        (&[0; 100_000], AudioError::NotAudio),
    ] {
        let file = temporary(content);
        assert_eq!(decoder().probe(&file, 100), Err(error.clone()));
        assert_eq!(decode(&file, 100), Err(error));
    }
    let nothing = AudioDecoder::new("/nonexistent".into());
    assert!(matches!(nothing.probe(&temporary(b"x"), 1), Err(AudioError::NotStarted { .. })));
    let other = AudioDecoder::new("/bin/false".into());
    assert!(matches!(other.probe(&temporary(b"x"), 1), Err(AudioError::NotStarted { .. })));
}

/// A mono WAV file of 8 bits.
fn wav(rate: u32, samples: usize) -> Vec<u8> {
    let mut file = b"RIFF\xFF\xFF\xFF\xFFWAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    file.extend(rate.to_le_bytes());
    file.extend(rate.to_le_bytes());
    file.extend(b"\x01\0\x08\0data\xFF\xFF\xFF\xFF");
    file.extend(vec![0x80; samples]);
    file
}

#[test]
fn a_reader_that_stops_ends_the_process() {
    let file = temporary(&wav(8000, 8000 * 3600));
    let mut samples = decoder().decode(&file, 4000).unwrap();
    assert_eq!(samples.next().unwrap().unwrap().len(), 16_000);
    // The process is blocked by the full pipe, and the drop waits for its end.
    drop(samples);
}

/// A program that stops itself, as the decoder does on a signal.
fn stopped_program(folder: &Path) -> PathBuf {
    let program = folder.join("stopped");
    std::fs::write(&program, "#!/bin/sh\nkill -STOP $$\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn a_stopped_process_does_not_hold_up_a_server_that_stops() {
    let folder = tempfile::tempdir().unwrap();
    let decoder = AudioDecoder::new(stopped_program(folder.path()));
    let file = temporary(b"x");
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| decoder.clone().probe(&file, 1));
        let decoded = scope.spawn(|| decoder.decode(&file, 1).unwrap().next().unwrap());
        std::thread::sleep(Duration::from_millis(300));
        decoder.stop();
        assert_eq!(measured.join().unwrap(), Err(AudioError::TimedOut));
        assert_eq!(decoded.join().unwrap(), Err(AudioError::TimedOut));
    });
}

#[test]
fn an_hour_is_measured_and_decoded_whole() {
    let file = temporary(&wav(8000, 8000 * 3600));
    assert!((decoder().probe(&file, 3600).unwrap().seconds - 3600.0).abs() < 0.001);
    assert_eq!(decode(&file, 3600), Ok(3600 * 16_000));
    assert_eq!(decode(&file, 3599), Err(AudioError::TooLong { max_seconds: 3599 }));
}

/// Changes a few places of a file: bits, bytes, lengths, its end.
fn mutate(bytes: &mut Vec<u8>, random: &mut impl FnMut(usize) -> usize) {
    for _ in 0..=random(4) {
        // Headers are near the beginning and, in MP4, near the end.
        let length = bytes.len();
        let at = match random(4) {
            0 => random(length),
            1 => length - 1 - random(length.min(1500)),
            _ => random(length.min(600)),
        };
        match random(6) {
            0 => bytes[at] ^= 1 << random(8),
            1 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFF][random(5)],
            2 => {
                let end = length.min(at + 4);
                bytes[at..end].fill([0, 0xFF, 0x7F][random(3)]);
            }
            3 => bytes.truncate(at.max(1)),
            4 => {
                let part = bytes[at..length.min(at + 1 + random(64))].to_vec();
                bytes.splice(at..at, part);
            }
            _ => {
                bytes.drain(at..length.min(at + random(8)));
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
}

/// `OUTPOST_AUDIO_MUTATIONS` sets the number of changed files per format.
#[test]
fn damaged_files_end_with_samples_or_an_error() {
    let rounds: usize = std::env::var("OUTPOST_AUDIO_MUTATIONS").map_or(2, |rounds| rounds.parse().unwrap());
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let (mut decoded, mut refused, mut stopped) = (0, 0, 0);
    let folder = std::fs::read_dir(fixture("")).unwrap();
    for path in folder.map(|entry| entry.unwrap().path()) {
        let whole = std::fs::read(&path).unwrap();
        for round in 0..rounds {
            let mut bytes = whole.clone();
            mutate(&mut bytes, &mut random);
            let file = temporary(&bytes);
            for outcome in [decoder().probe(&file, 60).map(|_| 0), decode(&file, 60)] {
                match outcome {
                    Ok(_) => decoded += 1,
                    Err(AudioError::DecoderStopped) => {
                        println!("{} round {round}: the decoder stopped", path.display());
                        stopped += 1;
                    }
                    Err(error) => {
                        assert!(!error.is_internal() && error != AudioError::TimedOut, "{}: {error}", path.display());
                        refused += 1;
                    }
                }
            }
        }
    }
    println!("{decoded} decoded, {refused} refused, {stopped} stopped");
    assert!(decoded > 0 && refused > 0);
}
