//! Packs segments of speech into windows, frame by frame. All positions are frames.

use std::ops::Range;

use super::segments::{Change, SegmentFinder};
use super::voice::{FRAME, Frame};

/// The longest window: 30 seconds.
pub const MAX_FRAMES: usize = 480_000 / FRAME;
/// Padding before and after the speech of a window: half a second.
pub const PADDING: usize = 32;
/// A window ends in a pause that is longer: 5 seconds.
const MAX_PAUSE: usize = 312;
/// The part of a full window in which the longest pause is looked for: its last 10 seconds.
const PREFERRED: usize = 625;
/// A window is at least so long if there is a pause later: 5 seconds.
const MIN_FRAMES: usize = 312;
/// The part of a window in which the quietest place is looked for if there is no pause: its last 8 seconds.
const QUIET: usize = 500;
/// The length of a quiet place: 0.1 seconds.
const QUIET_FRAMES: usize = 6;

/// A window to be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    pub frames: Range<usize>,
    pub speech: Vec<Range<usize>>,
}

#[derive(Default)]
pub struct Packer {
    finder: SegmentFinder,
    /// The number of frames so far.
    at: usize,
    /// The beginning of the open window.
    start: Option<usize>,
    /// The speech of the open window.
    segments: Vec<Range<usize>>,
    /// The beginning of the speech that has not ended yet.
    speech: Option<usize>,
    /// The energies of the last [`MAX_FRAMES`] frames; a ring.
    energies: Vec<f32>,
    /// The end of the last window.
    last_end: usize,
}

impl Packer {
    /// Takes the next frame. Returns the window that is complete with it.
    pub fn push(&mut self, frame: Frame) -> Option<Cut> {
        let slot = self.at % MAX_FRAMES;
        match self.energies.get_mut(slot) {
            Some(energy) => *energy = frame.energy,
            None => self.energies.push(frame.energy),
        }
        self.at += 1;
        match self.finder.push(frame.score) {
            Some(Change::Begun(begin)) => {
                let begin = begin.max(self.last_end);
                self.speech = Some(begin);
                self.start.get_or_insert(begin.saturating_sub(PADDING).max(self.last_end));
            }
            Some(Change::Ended(end)) => {
                // Speech may have ended before the window was cut in it.
                self.segments.extend(self.speech.take().map(|begin| begin..end).filter(|speech| !speech.is_empty()));
                self.start = self.start.filter(|_| !self.segments.is_empty());
            }
            None => {}
        }
        let start = self.start?;
        let pause_since = self.segments.last().filter(|_| self.speech.is_none()).map(|last| last.end);
        if pause_since.is_some_and(|since| self.at - since >= MAX_PAUSE) {
            return self.finish();
        }
        if self.at - start < MAX_FRAMES {
            return None;
        }
        match self.speech {
            None => self.finish(),
            Some(speech) => Some(self.cut(start, speech)),
        }
    }

    /// Ends the open window after its last speech.
    pub fn finish(&mut self) -> Option<Cut> {
        self.segments.extend(self.speech.take().map(|begin| begin..self.at).filter(|speech| !speech.is_empty()));
        let start = self.start.take().filter(|_| !self.segments.is_empty())?;
        let speech = std::mem::take(&mut self.segments);
        let last = speech.last().map_or(start, |last| last.end);
        self.last_end = (last + PADDING).min(start + MAX_FRAMES).min(self.at);
        Some(Cut { frames: start..self.last_end, speech })
    }

    /// The first frame whose samples may still be needed.
    pub fn needed_from(&self) -> usize {
        // Speech begins some frames before it is noticed.
        self.start.unwrap_or_else(|| self.at.saturating_sub(2 * PADDING).max(self.last_end))
    }

    /// Cuts a full window in the middle of speech.
    fn cut(&mut self, start: usize, speech: usize) -> Cut {
        let (end, next) = match self.best_pause(start, speech) {
            Some(pause) if pause.len() > 2 * PADDING => (pause.start + PADDING, pause.end - PADDING),
            Some(pause) => {
                let middle = pause.start.midpoint(pause.end);
                (middle, middle)
            }
            None => {
                let quiet = self.quietest(start);
                (quiet, quiet)
            }
        };
        let mut segments = std::mem::take(&mut self.segments);
        segments.push(speech..self.at);
        let within = |range: &Range<usize>, from: usize, to: usize| range.start.max(from)..range.end.min(to);
        let cut = segments.iter().map(|segment| within(segment, start, end)).filter(|segment| !segment.is_empty());
        let cut = Cut { frames: start..end, speech: cut.collect() };
        // Speech that continues is not in the list of ended segments.
        segments.pop();
        let rest = segments.iter().map(|segment| within(segment, next, self.at)).filter(|segment| !segment.is_empty());
        self.segments = rest.collect();
        self.speech = Some(speech.max(next));
        self.start = Some(next);
        self.last_end = end;
        cut
    }

    /// The longest pause of the last 10 seconds, or the last one before.
    fn best_pause(&self, start: usize, speech: usize) -> Option<Range<usize>> {
        let ends = self.segments.iter().map(|segment| segment.end);
        let begins = self.segments.iter().skip(1).map(|segment| segment.start).chain([speech]);
        let pauses: Vec<Range<usize>> = ends.zip(begins).map(|(end, begin)| end..begin).collect();
        let preferred = pauses.iter().filter(|pause| pause.start + PREFERRED >= self.at);
        let earlier = || pauses.iter().rev().find(|pause| pause.start >= start + MIN_FRAMES);
        preferred.max_by_key(|pause| pause.len()).or_else(earlier).cloned()
    }

    /// The middle of the quietest tenth of a second of the last 8 seconds.
    fn quietest(&self, start: usize) -> usize {
        let from = (self.at - QUIET.min(self.at)).max(start + 1);
        let level = |first: &usize| -> f32 { (*first..first + QUIET_FRAMES).map(|frame| self.energy(frame)).sum() };
        let quietest = (from..self.at.saturating_sub(QUIET_FRAMES)).min_by(|a, b| level(a).total_cmp(&level(b)));
        quietest.map_or(self.at, |first| first + QUIET_FRAMES / 2)
    }

    fn energy(&self, frame: usize) -> f32 {
        self.energies.get(frame % MAX_FRAMES).copied().unwrap_or_default()
    }
}
