//! From the scores of frames to segments of speech.

/// The score at which speech begins.
const BEGIN_SCORE: f32 = 0.6;
/// The score below which it may have ended.
const END_SCORE: f32 = 0.35;
/// Frames below it after which it has ended: 0.25 seconds. A shorter pause is within a sentence.
const END_FRAMES: usize = 16;
/// Frames in a row at which speech begins: 80 milliseconds. Clicks are shorter.
const BEGIN_FRAMES: usize = 5;

/// A change of the state at the frame that was pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Speech has begun with this frame, an earlier one.
    Begun(usize),
    /// Speech has ended before this frame, an earlier one.
    Ended(usize),
}

/// Finds where speech begins and ends, with hysteresis.
#[derive(Default)]
pub struct SegmentFinder {
    /// The number of frames so far.
    at: usize,
    is_speech: bool,
    /// Frames in a row that speak for a change.
    run: usize,
}

impl SegmentFinder {
    pub fn push(&mut self, score: f32) -> Option<Change> {
        let (speaks_for_change, needed) =
            if self.is_speech { (score < END_SCORE, END_FRAMES) } else { (score >= BEGIN_SCORE, BEGIN_FRAMES) };
        self.at += 1;
        self.run = if speaks_for_change { self.run + 1 } else { 0 };
        if self.run < needed {
            return None;
        }
        let since = self.at - self.run;
        self.run = 0;
        self.is_speech = !self.is_speech;
        Some(if self.is_speech { Change::Begun(since) } else { Change::Ended(since) })
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, SegmentFinder};

    #[test]
    fn short_bursts_and_pauses_change_nothing() {
        let mut finder = SegmentFinder::default();
        let mut scores = vec![0.0; 10];
        scores.extend([0.9, 0.9, 0.9, 0.9, 0.0]);
        scores.extend([0.9; 20]);
        scores.extend([0.1; 15]);
        scores.extend([0.4; 5]);
        scores.extend([0.1; 20]);
        let changes: Vec<_> = scores.into_iter().filter_map(|score| finder.push(score)).collect();
        assert_eq!(changes, [Change::Begun(15), Change::Ended(55)]);
    }
}
