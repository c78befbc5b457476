//! From the decoded packets of the tracks to one signal at 16 kHz.

use super::audio_file::AudioTrack;
use crate::error::AudioError;
use crate::info::SAMPLE_RATE;
use crate::resampler::Resampler;

/// The sample rates that are resampled; Hz.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;
/// Samples of a block that is passed on.
pub const BLOCK: usize = 16_000;

pub fn check_rate(rate: u32) -> Result<(), AudioError> {
    if RATES.contains(&rate) { Ok(()) } else { Err(AudioError::UnsupportedSampleRate { rate }) }
}

/// Trims, resamples and counts.
pub struct Signal {
    resampler: Option<Resampler>,
    /// The pause before the track, if it has not begun; seconds.
    delay: f64,
    /// The part of the track that is played; seconds.
    start: f64,
    length: Option<f64>,
    /// Frames of the track so far.
    at: u64,
    /// Samples that do not fill a block yet.
    output: Vec<f32>,
    samples: u64,
    max_samples: u64,
    max_seconds: u32,
    is_complete: bool,
}

type Sink<'a> = dyn FnMut(&[f32]) -> Result<(), AudioError> + 'a;

impl Signal {
    pub fn new(max_seconds: u32) -> Self {
        Self {
            resampler: None,
            delay: 0.0,
            start: 0.0,
            length: None,
            at: 0,
            output: Vec::new(),
            samples: 0,
            max_samples: u64::from(max_seconds) * u64::from(SAMPLE_RATE),
            max_seconds,
            is_complete: false,
        }
    }

    pub fn begin_track(&mut self, track: &AudioTrack) {
        self.delay = track.edit.delay;
        self.start = track.edit.start;
        self.length = track.edit.length;
        self.at = 0;
        self.is_complete = false;
    }

    /// True after the last sample of the edit; later packets can be skipped.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Appends the frames of a packet.
    pub fn push(&mut self, mono: &[f32], rate: u32, sink: &mut Sink<'_>) -> Result<(), AudioError> {
        let played = self.played(mono.len(), rate);
        let mono = mono.get(played).unwrap_or_default();
        if self.resampler.as_ref().is_none_or(|resampler| resampler.rate_in() != rate) {
            self.finish_resampler()?;
            check_rate(rate)?;
            self.resampler = Some(Resampler::new(rate, SAMPLE_RATE).map_err(|_| AudioError::DecoderStopped)?);
        }
        if self.delay > 0.0 {
            self.push_silence(sink)?;
        }
        if let Some(resampler) = &mut self.resampler {
            resampler.push(mono, &mut self.output).map_err(|_| AudioError::DecoderStopped)?;
        }
        if self.output.len() >= BLOCK { self.flush(sink) } else { Ok(()) }
    }

    /// Appends the pause before the track.
    fn push_silence(&mut self, sink: &mut Sink<'_>) -> Result<(), AudioError> {
        let mut rest = frames_of(std::mem::take(&mut self.delay), SAMPLE_RATE);
        while rest > 0 {
            let count = usize::try_from(rest).map_or(BLOCK, |rest| rest.min(BLOCK));
            self.output.resize(self.output.len() + count, 0.0);
            self.flush(sink)?;
            rest -= count as u64;
        }
        Ok(())
    }

    /// Passes on what is left. Returns the number of samples.
    pub fn finish(mut self, sink: &mut Sink<'_>) -> Result<u64, AudioError> {
        self.finish_resampler()?;
        self.flush(sink)?;
        Ok(self.samples)
    }

    /// The played part of the track's next `frames` frames.
    fn played(&mut self, frames: usize, rate: u32) -> std::ops::Range<usize> {
        let first = frames_of(self.start, rate).saturating_sub(self.at);
        let end = self.length.map_or(u64::MAX, |length| frames_of(self.start + length, rate)).saturating_sub(self.at);
        self.at += frames as u64;
        self.is_complete = end <= frames as u64;
        let within = |frame: u64| usize::try_from(frame).map_or(frames, |frame| frame.min(frames));
        within(first)..within(end).max(within(first))
    }

    fn finish_resampler(&mut self) -> Result<(), AudioError> {
        match self.resampler.take() {
            Some(mut resampler) => resampler.finish(&mut self.output).map_err(|_| AudioError::DecoderStopped),
            None => Ok(()),
        }
    }

    fn flush(&mut self, sink: &mut Sink<'_>) -> Result<(), AudioError> {
        self.samples += self.output.len() as u64;
        if self.samples > self.max_samples {
            return Err(AudioError::TooLong { max_seconds: self.max_seconds });
        }
        for block in self.output.chunks(BLOCK) {
            sink(block)?;
        }
        self.output.clear();
        Ok(())
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time is not negative, and one beyond the range of u64 saturates"
)]
fn frames_of(seconds: f64, rate: u32) -> u64 {
    (seconds * f64::from(rate)).round() as u64
}
