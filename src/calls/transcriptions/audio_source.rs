//! The samples of an audio file, cut into windows for the engine.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::audio::{AudioDecoder, AudioError, SAMPLE_RATE, Window, WindowSplitter};
use crate::engine::{SpeechWindow, WindowSender};

/// Reads audio files of limited length. Its functions block.
#[derive(Clone, Debug)]
pub struct AudioSource {
    decoder: Option<AudioDecoder>,
    max_seconds: u32,
}

impl AudioSource {
    /// `program`: the `outpost` program; without it, nothing is decoded.
    pub fn new(program: Option<PathBuf>, max_seconds: u32) -> Self {
        Self { decoder: program.map(AudioDecoder::new), max_seconds }
    }

    /// Stops the processes that decode files.
    pub fn stop(&self) {
        self.decoder.iter().for_each(AudioDecoder::stop);
    }

    /// The length of the audio in milliseconds, rounded up.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a length is not negative, and one beyond the range of u64 saturates"
    )]
    pub fn measure(&self, file: &File) -> Result<u64, AudioError> {
        let info = self.decoder()?.probe(file, self.max_seconds)?;
        // A sum of packets may be off by a fraction of a microsecond.
        Ok((info.seconds * 1000.0 - 0.001).ceil().max(1.0) as u64)
    }

    /// Decodes the file and sends its windows, as the engine takes them. Ends early if the engine takes no more.
    /// `decoded`: audio that has been decoded, in milliseconds.
    pub fn send_windows(&self, file: &File, windows: &WindowSender, decoded: &AtomicU64) -> Result<(), AudioError> {
        let (mut splitter, mut samples) = (WindowSplitter::default(), 0);
        let send = |found: Vec<Window>| found.into_iter().all(|window| windows.send(speech_window(window)));
        for block in self.decoder()?.decode(file, self.max_seconds)? {
            let block = block?;
            samples += block.len() as u64;
            decoded.store(samples * 1000 / u64::from(SAMPLE_RATE), Ordering::Relaxed);
            // Hours of silence have no window whose sending would fail.
            if windows.is_cancelled() || !send(splitter.push(&block)) {
                return Ok(());
            }
        }
        send(splitter.finish());
        Ok(())
    }

    fn decoder(&self) -> Result<&AudioDecoder, AudioError> {
        let missing = || AudioError::NotStarted { reason: "the program is not configured".to_owned() };
        self.decoder.as_ref().ok_or_else(missing)
    }
}

fn speech_window(Window { start, samples, speech }: Window) -> SpeechWindow {
    let within = |range: Range<usize>| range.start.saturating_sub(start)..range.end.saturating_sub(start);
    SpeechWindow { start: start as u64, samples, speech: speech.into_iter().map(within).collect() }
}
