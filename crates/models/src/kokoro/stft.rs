//! Short-time Fourier transforms of a few samples, as `torch.stft` and `torch.istft` compute them with a Hann window and
//! centred frames.

use std::f64::consts::TAU;
use std::sync::Mutex;

use crate::backend::Pool;

/// Frames of a task.
const TASK_FRAMES: usize = 256;

/// The part of a real number that is taken for zero beside it.
const ROUNDING: f32 = 2e-6;

#[derive(Debug)]
pub(super) struct Stft {
    size: usize,
    hop: usize,
    /// `[size]`
    window: Vec<f32>,
    /// Cosines and sines of the frequencies, each `[bins, size]`.
    cosines: Vec<f32>,
    sines: Vec<f32>,
}

impl Stft {
    /// `size` is even, and at least twice `hop`.
    pub fn new(size: usize, hop: usize) -> Self {
        let turn = |part: usize| TAU * (part % size) as f64 / size as f64;
        let table = |function: fn(f64) -> f64| -> Vec<f32> {
            let bins = 0..=size / 2;
            bins.flat_map(|bin| (0..size).map(move |index| function(turn(bin * index)) as f32)).collect()
        };
        let window = (0..size).map(|index| (0.5 - 0.5 * turn(index).cos()) as f32).collect();
        Self { size, hop, window, cosines: table(f64::cos), sines: table(f64::sin) }
    }

    fn bins(&self) -> usize {
        self.size / 2 + 1
    }

    /// Magnitudes and phases of each frame: `[signal / hop + 1, 2 · bins]`. The signal, of more than half a frame, is
    /// reflected at its ends.
    pub fn transform(&self, pool: &Pool, signal: &[f32]) -> Vec<f32> {
        let (half, width) = (self.size / 2, 2 * self.bins());
        let padded: Vec<f32> = (0..signal.len() + self.size).map(|index| reflected(signal, index, half)).collect();
        let frames = signal.len() / self.hop + 1;
        let mut out = vec![0.; frames * width];
        let chunks: Vec<_> = out.chunks_mut(TASK_FRAMES * width).map(Mutex::new).collect();
        pool.run(chunks.len(), |task| {
            let Some(Ok(mut chunk)) = chunks.get(task).map(|chunk| chunk.lock()) else { return };
            let starts = (task * TASK_FRAMES..).map(|frame| frame * self.hop);
            for (out, start) in chunk.chunks_exact_mut(width).zip(starts) {
                self.transform_frame(padded.get(start..start + self.size).unwrap_or_default(), out);
            }
        });
        drop(chunks);
        out
    }

    fn transform_frame(&self, frame: &[f32], out: &mut [f32]) {
        let bins = self.bins();
        let windowed: Vec<f32> = frame.iter().zip(&self.window).map(|(x, window)| x * window).collect();
        let product = |table: &[f32]| windowed.iter().zip(table).map(|(x, factor)| x * factor).sum::<f32>();
        let (magnitudes, phases) = out.split_at_mut(bins);
        let tables = self.cosines.chunks_exact(self.size).zip(self.sines.chunks_exact(self.size));
        for (bin, ((magnitude, phase), (cosines, sines))) in magnitudes.iter_mut().zip(phases).zip(tables).enumerate() {
            let real = product(cosines);
            // The sines of the first and the last frequency are zero. A frame at an end of the signal is symmetric, so that
            // its spectrum is real. Rounding must not turn its phase from π to −π.
            let imaginary = if bin == 0 || bin + 1 == bins { 0. } else { -product(sines) };
            let imaginary = if imaginary.abs() <= ROUNDING * real.abs() { 0. } else { imaginary };
            (*magnitude, *phase) = (real.hypot(imaginary), imaginary.atan2(real));
        }
    }

    /// The signal of complex spectra: `[frames, 2 · bins]`, real parts and imaginary parts. It has `(frames − 1) · hop`
    /// samples.
    pub fn inverse(&self, pool: &Pool, spectra: &[f32]) -> Vec<f32> {
        let width = 2 * self.bins();
        let frames = spectra.len() / width;
        let mut parts = vec![0.; frames * self.size];
        let chunks: Vec<_> = parts.chunks_mut(TASK_FRAMES * self.size).map(Mutex::new).collect();
        pool.run(chunks.len(), |task| {
            let Some(Ok(mut chunk)) = chunks.get(task).map(|chunk| chunk.lock()) else { return };
            let spectra = spectra.chunks_exact(width).skip(task * TASK_FRAMES);
            chunk.chunks_exact_mut(self.size).zip(spectra).for_each(|(out, spectrum)| self.invert_frame(spectrum, out));
        });
        drop(chunks);
        self.overlap_add(&parts)
    }

    fn invert_frame(&self, spectrum: &[f32], out: &mut [f32]) {
        let (reals, imaginaries) = spectrum.split_at(self.bins());
        out.fill(0.);
        let tables = self.cosines.chunks_exact(self.size).zip(self.sines.chunks_exact(self.size));
        for (bin, ((real, imaginary), (cosines, sines))) in reals.iter().zip(imaginaries).zip(tables).enumerate() {
            // All frequencies but the first and the last one occur twice.
            let factor = if bin == 0 || bin + 1 == self.bins() { 1. } else { 2. } / self.size as f32;
            let (real, imaginary) = (real * factor, imaginary * factor);
            for (out, (cosine, sine)) in out.iter_mut().zip(cosines.iter().zip(sines)) {
                *out += real * cosine - imaginary * sine;
            }
        }
        out.iter_mut().zip(&self.window).for_each(|(out, window)| *out *= window);
    }

    /// Adds windowed frames, and divides by the sum of squared windows.
    fn overlap_add(&self, parts: &[f32]) -> Vec<f32> {
        let frames = parts.len() / self.size;
        let length = frames.saturating_sub(1) * self.hop;
        let (mut sums, mut weights) = (vec![0.; length + self.size], vec![0.; length + self.size]);
        for (frame, part) in parts.chunks_exact(self.size).enumerate() {
            let sums = sums.iter_mut().zip(&mut weights).skip(frame * self.hop);
            for ((sum, weight), (part, window)) in sums.zip(part.iter().zip(&self.window)) {
                *sum += part;
                *weight += window * window;
            }
        }
        let samples = sums.iter().zip(&weights).skip(self.size / 2).take(length);
        samples.map(|(sum, weight)| if *weight > 1e-11 { sum / weight } else { 0. }).collect()
    }
}

/// Element `index` of a signal that is continued by reflection, with `half` elements before its start.
fn reflected(signal: &[f32], index: usize, half: usize) -> f32 {
    let last = signal.len().saturating_sub(1);
    let index = index.abs_diff(half);
    let index = if index > last { (2 * last).saturating_sub(index) } else { index };
    signal.get(index).copied().unwrap_or(0.)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The complex spectra of magnitudes and phases.
    fn complex(polar: &[f32], bins: usize) -> Vec<f32> {
        let convert = |frame: &[f32]| {
            let parts = |function: fn(f32) -> f32| -> Vec<f32> {
                (0..bins).map(|bin| frame[bin] * function(frame[bins + bin])).collect()
            };
            [parts(f32::cos), parts(f32::sin)].concat()
        };
        polar.chunks_exact(2 * bins).flat_map(convert).collect()
    }

    #[test]
    fn a_signal_survives_both_transforms() {
        let pool = Pool::new(2);
        for (size, hop, length) in [(20, 5, 3000), (8, 4, 96), (8, 2, 10)] {
            let stft = Stft::new(size, hop);
            let signal: Vec<f32> = (0..length).map(|i| (i as f32 * 0.3).sin() + (i as f32 * 1.1).cos()).collect();
            let polar = stft.transform(&pool, &signal);
            assert_eq!(polar.len(), (length / hop + 1) * (size + 2));
            let back = stft.inverse(&pool, &complex(&polar, size / 2 + 1));
            assert_eq!(back.len(), length / hop * hop);
            let error = back.iter().zip(&signal).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
            assert!(error < 1e-5, "{size}, {hop}: {error}");
        }
    }

    #[test]
    fn real_spectra_have_no_negative_zero() {
        let stft = Stft::new(8, 4);
        let polar = stft.transform(&Pool::new(1), &[-1.; 16]);
        assert_eq!(polar[5], std::f32::consts::PI, "the phase of a negative mean is π, not −π");
    }
}
