//! Voice activity: how likely each 16 ms of a signal is speech.
//!
//! earshot finds the speech. It runs 1,000 times as fast as real time in one thread without a runtime for ONNX models.
//! It takes a sudden beginning of noise for speech, so it is fed the first frame 60 times before the signal. Music
//! counts as speech: a window too much costs time, a window too few loses words.

use earshot::Detector;

/// Samples of a frame: 16 ms at 16 kHz.
pub const FRAME: usize = 256;

/// The level that signals are brought to; the greatest recent amplitude. Speech in noise is found best there.
const TARGET_PEAK: f32 = 0.12;
/// The greatest amplification. Noise of a good microphone stays below speech with it.
const MAX_GAIN: f32 = 100.0;
/// The factor per frame by which the greatest recent amplitude decays: to a tenth in about 9 seconds.
const PEAK_DECAY: f32 = 0.996;
/// Number of times that the first frame is fed to the detector before the signal. It takes a sudden beginning of noise
/// for speech.
const WARM_UP_FRAMES: usize = 60;

/// A frame's properties.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    /// Probability of speech, 0 to 1.
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
    is_warm: bool,
}

impl Default for EarshotDetector {
    fn default() -> Self {
        Self { detector: Box::default(), peak: 0.0, is_warm: false }
    }
}

impl VoiceDetector for EarshotDetector {
    fn score(&mut self, frame: &[f32; FRAME]) -> f32 {
        let loudest = frame.iter().fold(0.0_f32, |loudest, sample| loudest.max(sample.abs()));
        self.peak = loudest.max(self.peak * PEAK_DECAY);
        let gain = if self.peak > 0.0 { (TARGET_PEAK / self.peak).min(MAX_GAIN) } else { 1.0 };
        let frame = frame.map(|sample| (sample * gain).clamp(-1.0, 1.0));
        if !std::mem::replace(&mut self.is_warm, true) {
            self.warm_up(frame);
        }
        self.detector.predict_f32(&frame)
    }
}

impl EarshotDetector {
    /// Repeats the frame, every second time backwards, so that there is no jump.
    fn warm_up(&mut self, mut frame: [f32; FRAME]) {
        for _ in 0..WARM_UP_FRAMES {
            frame.reverse();
            self.detector.predict_f32(&frame);
        }
    }
}

pub fn energy(frame: &[f32; FRAME]) -> f32 {
    frame.iter().map(|sample| sample * sample).sum()
}
