//! Voice activity: how likely each 16 ms of a signal is speech.

use earshot::Detector;

/// Samples of a frame: 16 ms at 16 kHz.
pub const FRAME: usize = 256;

/// The level that quiet signals are amplified to; the greatest recent amplitude.
const TARGET_PEAK: f32 = 0.5;
/// The greatest amplification. Noise of a good microphone stays below speech with it.
const MAX_GAIN: f32 = 100.0;
/// The factor per frame by which the greatest recent amplitude decays: to a tenth in about 9 seconds.
const PEAK_DECAY: f32 = 0.996;

/// A frame's properties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// How likely it is speech; 0 to 1.
    pub score: f32,
    /// The sum of squares.
    pub energy: f32,
}

/// Says how likely a frame of [`FRAME`] samples is speech; 0 to 1.
pub trait VoiceDetector: Send {
    fn score(&mut self, frame: &[f32; FRAME]) -> f32;
}

/// The network of the crate `earshot`, on a signal whose level is evened out, so that a quiet voice is heard, too.
pub struct EarshotDetector {
    detector: Box<Detector>,
    peak: f32,
}

impl Default for EarshotDetector {
    fn default() -> Self {
        Self { detector: Box::default(), peak: 0.0 }
    }
}

impl VoiceDetector for EarshotDetector {
    fn score(&mut self, frame: &[f32; FRAME]) -> f32 {
        let loudest = frame.iter().fold(0.0_f32, |loudest, sample| loudest.max(sample.abs()));
        self.peak = loudest.max(self.peak * PEAK_DECAY);
        let gain = if self.peak > 0.0 { (TARGET_PEAK / self.peak).min(MAX_GAIN) } else { 1.0 };
        let frame = frame.map(|sample| (sample * gain).clamp(-1.0, 1.0));
        self.detector.predict_f32(&frame)
    }
}

pub fn energy(frame: &[f32; FRAME]) -> f32 {
    frame.iter().map(|sample| sample * sample).sum()
}
