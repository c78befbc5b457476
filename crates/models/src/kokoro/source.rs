//! The excitation of the vocoder: sines at the pitch and its overtones, and noise (Wang et al. 2019,
//! <https://arxiv.org/abs/1904.12088>).

use std::f32::consts::PI;

use super::config::VocoderConfig;
use crate::backend::{Backend, Pool};
use crate::error::Result;
use crate::weights::Loader;

/// Samples per second.
pub const SAMPLE_RATE: u32 = 24_000;
/// The pitch and its overtones.
const HARMONICS: usize = 9;
const SINE_AMPLITUDE: f32 = 0.1;
/// The amplitude of noise that is added to sines, and of noise where there is no pitch.
const VOICED_NOISE: f32 = 0.003;
const UNVOICED_NOISE: f32 = SINE_AMPLITUDE / 3.;
/// The pitch in Hz up to which speech is unvoiced.
const VOICED_THRESHOLD: f32 = 10.;

/// Merges the harmonics into one signal.
#[derive(Debug)]
pub(super) struct HarmonicSource {
    weights: [f32; HARMONICS],
    bias: f32,
    /// Samples for each value of the pitch.
    pitch_samples: usize,
}

impl HarmonicSource {
    pub fn load<B: Backend>(loader: &Loader<'_, B>, config: &VocoderConfig) -> Result<Self> {
        const STEM: &str = "decoder.generator.m_source.l_linear";
        let mut weights = [0.; HARMONICS];
        weights.copy_from_slice(&loader.values(STEM, &[1, HARMONICS])?);
        let bias = loader.bias(STEM, 1)?.iter().sum();
        Ok(Self { weights, bias, pitch_samples: config.pitch_samples() })
    }

    /// The excitation for a pitch in Hz. `noise` has a normal value for each sample.
    ///
    /// The reference adds noise to each harmonic. Their weighted sum is normal, too, so one value for each sample has the
    /// same effect.
    pub fn excitation(&self, pool: &Pool, pitch: &[f32], noise: &[f32]) -> Vec<f32> {
        let phases = self.phases(pitch);
        let noise_scale = self.weights.iter().map(|weight| weight * weight).sum::<f32>().sqrt();
        let mut out = vec![0.; pitch.len() * self.pitch_samples];
        let chunks = out.chunks_mut(self.pitch_samples).zip(noise.chunks(self.pitch_samples)).zip(pitch);
        let tasks: Vec<_> = chunks.map(std::sync::Mutex::new).collect();
        pool.run(tasks.len(), |index| {
            let Some(Ok(mut task)) = tasks.get(index).map(|task| task.lock()) else { return };
            let ((out, noise), pitch) = &mut *task;
            let is_voiced = **pitch > VOICED_THRESHOLD;
            for (sample, (out, noise)) in out.iter_mut().zip(noise.iter()).enumerate() {
                let (amplitude, noise_amplitude) =
                    if is_voiced { (SINE_AMPLITUDE, VOICED_NOISE) } else { (0., UNVOICED_NOISE) };
                let mut sum = self.bias + noise_amplitude * noise_scale * noise;
                if is_voiced {
                    let (before, after, position) = self.neighbours(index, sample, phases.len());
                    let harmonics = phases.get(before).zip(phases.get(after)).map(|pair| pair.0.iter().zip(pair.1));
                    for ((before, after), weight) in harmonics.into_iter().flatten().zip(&self.weights) {
                        let phase = before * (1. - position) + after * position;
                        sum += amplitude * phase.sin() * weight;
                    }
                }
                *out = sum.tanh();
            }
        });
        drop(tasks);
        out
    }

    /// The phases of the harmonics at the middle of each value of the pitch, in f32 like the reference.
    fn phases(&self, pitch: &[f32]) -> Vec<[f32; HARMONICS]> {
        let mut sums = [0f64; HARMONICS];
        let advance = |pitch: &f32| {
            let mut factor = 1.;
            sums.each_mut().map(|sum| {
                let cycles = (pitch * factor / SAMPLE_RATE as f32).rem_euclid(1.);
                factor += 1.;
                *sum += f64::from(cycles);
                *sum as f32 * 2. * PI * self.pitch_samples as f32
            })
        };
        pitch.iter().map(advance).collect()
    }

    /// The two values of the pitch between whose middles a sample is, and its position between them.
    fn neighbours(&self, index: usize, sample: usize, count: usize) -> (usize, usize, f32) {
        let position = (sample as f32 + 0.5) / self.pitch_samples as f32 - 0.5;
        match (position < 0., index) {
            (true, 0) => (0, 1.min(count - 1), 0.),
            (true, _) => (index - 1, index, position + 1.),
            (false, _) => (index, (index + 1).min(count - 1), position),
        }
    }
}
