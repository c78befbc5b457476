//! The samples of windows.

use std::ops::Range;

use super::packing::{Cut, MAX_FRAMES, Packer};
use super::segments::{Change, SegmentFinder};
use super::voice::{EarshotDetector, FRAME, Frame, VoiceDetector, energy};

/// Samples of the longest window: 30 seconds at 16 kHz.
pub const MAX_WINDOW: usize = MAX_FRAMES * FRAME;

/// A piece of a file that contains speech.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// The index of the first sample in the file.
    pub start: usize,
    /// At most [`MAX_WINDOW`] samples at 16 kHz, as they are in the file.
    pub samples: Vec<f32>,
    /// Where the speech is: indices of samples of the file.
    pub speech: Vec<Range<usize>>,
}

/// Cuts a signal into windows that do not overlap and together contain all its speech.
///
/// A window ends in a pause if there is one in 30 seconds, or else at the quietest place of the last seconds. Pauses of
/// more than 5 seconds are left out. A signal of at most 30 seconds with speech is one window, unchanged, as the
/// reference implementations take it. Keeps about 31 seconds of samples.
pub struct WindowSplitter {
    detector: Box<dyn VoiceDetector>,
    packer: Packer,
    /// The frames of the first 30 seconds, while the signal may end with them. `None` after that.
    held_back: Option<Vec<Frame>>,
    /// Samples from `first` on.
    samples: Vec<f32>,
    first: usize,
    /// Samples that were scored.
    scored: usize,
}

impl Default for WindowSplitter {
    fn default() -> Self {
        Self::with_detector(Box::new(EarshotDetector::default()))
    }
}

impl WindowSplitter {
    pub fn with_detector(detector: Box<dyn VoiceDetector>) -> Self {
        Self {
            detector,
            packer: Packer::default(),
            held_back: Some(Vec::new()),
            samples: Vec::new(),
            first: 0,
            scored: 0,
        }
    }

    /// Takes the next samples of the signal. Returns the windows that are complete.
    pub fn push(&mut self, samples: &[f32]) -> Vec<Window> {
        let mut windows = Vec::new();
        for samples in samples.chunks(FRAME) {
            self.samples.extend_from_slice(samples);
            if self.first + self.samples.len() > MAX_WINDOW {
                for frame in self.held_back.take().unwrap_or_default() {
                    windows.extend(self.pack(frame));
                }
            }
            while let Some(frame) = self.next_frame() {
                windows.extend(self.take_frame(frame));
            }
            self.forget();
        }
        windows
    }

    /// Returns the windows of the rest of the signal.
    pub fn finish(mut self) -> Vec<Window> {
        let end = self.first + self.samples.len();
        let mut windows = Vec::new();
        if self.scored < end {
            // The last frame is filled up with silence.
            let missing = FRAME - (end - self.scored);
            self.samples.extend(std::iter::repeat_n(0.0, missing));
            if let Some(frame) = self.next_frame() {
                windows.extend(self.take_frame(frame));
            }
            self.samples.truncate(end - self.first);
        }
        if let Some(frames) = self.held_back.take() {
            windows.extend(self.whole(&frames));
        } else if let Some(cut) = self.packer.finish() {
            windows.push(self.window(&cut));
        }
        windows
    }

    fn next_frame(&mut self) -> Option<Frame> {
        let at = self.scored - self.first;
        let samples: &[f32; FRAME] = self.samples.get(at..at + FRAME)?.try_into().ok()?;
        self.scored += FRAME;
        Some(Frame { score: self.detector.score(samples), energy: energy(samples) })
    }

    fn take_frame(&mut self, frame: Frame) -> Option<Window> {
        if let Some(held_back) = &mut self.held_back {
            held_back.push(frame);
            return None;
        }
        self.pack(frame)
    }

    fn pack(&mut self, frame: Frame) -> Option<Window> {
        self.packer.push(frame).map(|cut| self.window(&cut))
    }

    /// All samples as one window, if there is speech in them.
    fn whole(&mut self, frames: &[Frame]) -> Option<Window> {
        let length = self.samples.len();
        let (mut finder, mut begun, mut speech) = (SegmentFinder::default(), None, Vec::new());
        for frame in frames {
            match finder.push(frame.score) {
                Some(Change::Begun(begin)) => begun = Some(begin * FRAME),
                Some(Change::Ended(end)) => speech.extend(begun.take().map(|begin| begin..(end * FRAME).min(length))),
                None => {}
            }
        }
        speech.extend(begun.map(|begin| begin..length));
        let samples = std::mem::take(&mut self.samples);
        (!speech.is_empty()).then_some(Window { start: 0, samples, speech })
    }

    fn window(&self, cut: &Cut) -> Window {
        let end = self.first + self.samples.len();
        let in_samples = |frames: &Range<usize>| (frames.start * FRAME).min(end)..(frames.end * FRAME).min(end);
        let range = in_samples(&cut.frames);
        let samples = self.samples.get(range.start - self.first..range.end - self.first).unwrap_or_default();
        Window { start: range.start, samples: samples.to_vec(), speech: cut.speech.iter().map(in_samples).collect() }
    }

    /// The number of samples that are kept.
    #[cfg(test)]
    pub fn buffered(&self) -> usize {
        self.samples.len()
    }

    /// Forgets samples that no window will need.
    fn forget(&mut self) {
        if self.held_back.is_some() {
            return;
        }
        let needed = self.packer.needed_from() * FRAME - self.first;
        // Moving the rest at every frame would take long.
        if needed >= self.samples.len() / 2 {
            self.samples.drain(..needed);
            self.first += needed;
        }
    }
}
