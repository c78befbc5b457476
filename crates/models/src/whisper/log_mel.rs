//! Log-mel spectrograms, following transformers' `WhisperFeatureExtractor`.

use std::fmt;
use std::sync::Arc;

use realfft::{RealFftPlanner, RealToComplex};

use super::config::WhisperConfig;
use super::mel_filters::{FREQUENCIES, MelFilters};
use crate::error::{ModelError, Result};

/// Samples a second.
pub const SAMPLE_RATE: usize = 16_000;
/// Samples of a frame.
const FRAME: usize = 400;
/// Samples from a frame to the next.
const HOP: usize = 160;
/// Frames between two pauses.
const FRAMES_PER_PAUSE: usize = 200;
/// The lowest power of a band.
const MIN_POWER: f32 = 1e-10;
/// Bands are at most this far below the loudest one, as a power of ten.
const RANGE: f32 = 8.;
/// Larger samples are not audio. Their power would overflow.
const MAX_SAMPLE: f32 = 1e6;

/// Computes the spectrograms of windows. Clones share the tables.
#[derive(Clone)]
pub struct LogMel {
    filters: MelFilters,
    frames: usize,
    fft: Arc<dyn RealToComplex<f32>>,
    /// A periodic Hann window.
    window: Vec<f32>,
}

/// The spectrogram of a window of audio.
#[derive(Clone, Debug, PartialEq)]
pub struct LogMelSpectrogram {
    mels: usize,
    /// `[frames, mels]`
    values: Vec<f32>,
}

impl LogMelSpectrogram {
    /// Mel bands.
    pub fn mels(&self) -> usize {
        self.mels
    }

    /// Frames, of 10 ms each.
    pub fn frames(&self) -> usize {
        self.values.len() / self.mels.max(1)
    }

    /// `[frames, mels]`
    pub fn values(&self) -> &[f32] {
        &self.values
    }
}

impl LogMel {
    /// For windows of the length that `config` has. `filters` are those of the checkpoint; `None`: Slaney's.
    pub fn new(config: &WhisperConfig, filters: Option<&MelFilters>) -> Self {
        let filters = filters.cloned().unwrap_or_else(|| MelFilters::slaney(config.mels));
        let angle = |index: usize| std::f64::consts::TAU * index as f64 / FRAME as f64;
        Self {
            filters,
            frames: config.frames(),
            fft: RealFftPlanner::new().plan_fft_forward(FRAME),
            window: (0..FRAME).map(|index| (0.5 - 0.5 * angle(index).cos()) as f32).collect(),
        }
    }

    /// Samples of a window: 480,000 are 30 seconds.
    pub fn max_samples(&self) -> usize {
        self.frames * HOP
    }

    /// The spectrogram of a window. `samples` are 16,000 a second, from -1 to 1. A shorter window is padded with silence. Calls
    /// `pause` about every millisecond.
    ///
    /// # Errors
    /// If there are more than [`Self::max_samples`] samples, or one is not finite or very large.
    pub fn compute(&self, samples: &[f32], pause: &dyn Fn() -> Result<()>) -> Result<LogMelSpectrogram> {
        let (mels, max) = (self.filters.bands(), self.max_samples());
        if samples.len() > max {
            let count = samples.len();
            return Err(ModelError::Parameters(format!("a window has {count} samples; at most {max} are allowed")));
        }
        // NaN is in no range.
        if samples.iter().any(|sample| !(-MAX_SAMPLE..=MAX_SAMPLE).contains(sample)) {
            return Err(ModelError::Parameters("the audio has samples that are not finite or very large".to_owned()));
        }
        let mut values = vec![MIN_POWER.log10(); self.frames * mels];
        let mut frame = self.fft.make_input_vec();
        let (mut spectrum, mut scratch) = (self.fft.make_output_vec(), self.fft.make_scratch_vec());
        let mut power = [0.; FREQUENCIES];
        // All later frames are silent.
        let sounding = self.frames.min((samples.len() + FRAME / 2).div_ceil(HOP));
        for (index, bands) in values.chunks_exact_mut(mels.max(1)).take(sounding).enumerate() {
            if index % FRAMES_PER_PAUSE == 0 {
                pause()?;
            }
            self.read_frame(samples, index, &mut frame);
            let computed = self.fft.process_with_scratch(&mut frame, &mut spectrum, &mut scratch);
            computed.map_err(|error| ModelError::Compute(error.to_string()))?;
            power.iter_mut().zip(&spectrum).for_each(|(power, value)| *power = value.norm_sqr());
            self.filters.apply(&power, bands);
            bands.iter_mut().for_each(|band| *band = band.max(MIN_POWER).log10());
        }
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        values.iter_mut().for_each(|value| *value = (value.max(max - RANGE) + 4.) / 4.);
        Ok(LogMelSpectrogram { mels, values })
    }

    /// Multiplies a frame by the window. Frames are centred on multiples of [`HOP`]; the signal is mirrored at both ends.
    fn read_frame(&self, samples: &[f32], index: usize, frame: &mut [f32]) {
        let (start, end) = ((index * HOP).checked_sub(FRAME / 2), self.max_samples());
        let inside = start.filter(|start| start + FRAME <= end).and_then(|start| samples.get(start..start + FRAME));
        if let Some(inside) = inside {
            frame.iter_mut().zip(inside).zip(&self.window).for_each(|((out, sample), weight)| *out = sample * weight);
            return;
        }
        for (offset, (out, weight)) in frame.iter_mut().zip(&self.window).enumerate() {
            let position = (index * HOP + offset).abs_diff(FRAME / 2);
            let position = if position < end { position } else { (2 * end).saturating_sub(2 + position) };
            *out = samples.get(position).map_or(0., |sample| sample * weight);
        }
    }
}

impl fmt::Debug for LogMel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogMel")
            .field("bands", &self.filters.bands())
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}
