//! Conversion of the sample rate, in blocks and without delay.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler as _, WindowFunction};

/// The shortest block of the FFT; frames. Shorter ones make the filter too short.
const MIN_BLOCK: usize = 1024;
/// Blocks per second of audio. A block's length is the length of the filter.
const BLOCKS_PER_SECOND: usize = 20;

/// Converts a mono signal from one sample rate to another. The output begins with the input's first sample and has
/// exactly `input length × output rate / input rate` samples, rounded.
pub struct Resampler {
    /// `None` if the rates are equal.
    fft: Option<Fft<f32>>,
    rate_in: u32,
    rate_out: u32,
    /// Samples that do not fill a block yet.
    pending: Vec<f32>,
    /// A block of output.
    block: Vec<f32>,
    /// The samples of the filter's delay that are still to be left out.
    delay: usize,
    consumed: u64,
    produced: u64,
}

impl Resampler {
    /// Fails only for rates of zero.
    pub fn new(rate_in: u32, rate_out: u32) -> Result<Self, String> {
        let mut resampler = Self {
            fft: None,
            rate_in,
            rate_out,
            pending: Vec::new(),
            block: Vec::new(),
            delay: 0,
            consumed: 0,
            produced: 0,
        };
        if rate_in != rate_out {
            let (input, output) = (usize::try_from(rate_in), usize::try_from(rate_out));
            let (Ok(input), Ok(output)) = (input, output) else { return Err("the rate is too high".to_owned()) };
            let block = block_length(input, output);
            let window = WindowFunction::BlackmanHarris2;
            let fft = Fft::new_custom(input, output, block, 1, 1, window, FixedSync::Both);
            let fft = fft.map_err(|error| error.to_string())?;
            resampler.delay = fft.output_delay();
            resampler.block = vec![0.0; fft.output_frames_max()];
            resampler.fft = Some(fft);
        }
        Ok(resampler)
    }

    pub fn rate_in(&self) -> u32 {
        self.rate_in
    }

    /// Appends to `output` what `samples` complete.
    pub fn push(&mut self, samples: &[f32], output: &mut Vec<f32>) -> Result<(), String> {
        self.consumed += samples.len() as u64;
        let Some(block) = self.fft.as_ref().map(|fft| fft.input_frames_next()) else {
            output.extend_from_slice(samples);
            return Ok(());
        };
        self.pending.extend_from_slice(samples);
        let mut at = 0;
        while self.pending.len() - at >= block {
            self.convert(at, block, output)?;
            at += block;
        }
        self.pending.drain(..at);
        Ok(())
    }

    /// Appends the rest of the signal to `output`.
    pub fn finish(&mut self, output: &mut Vec<f32>) -> Result<(), String> {
        if self.fft.is_none() {
            return Ok(());
        }
        let length = self.output_length();
        while self.produced < length {
            let rest = self.pending.len();
            self.convert(0, rest, output)?;
            self.pending.clear();
        }
        // The last block may be longer than the signal.
        let excess = usize::try_from(self.produced - length).unwrap_or_default();
        output.truncate(output.len().saturating_sub(excess));
        self.produced = length;
        Ok(())
    }

    /// The length of the whole output for what was pushed so far.
    fn output_length(&self) -> u64 {
        let product = u128::from(self.consumed) * u128::from(self.rate_out);
        let rounded = (product + u128::from(self.rate_in) / 2) / u128::from(self.rate_in);
        u64::try_from(rounded).unwrap_or(u64::MAX)
    }

    /// Converts `length` pending samples from `at`; zeros follow them to the block's end.
    fn convert(&mut self, at: usize, length: usize, output: &mut Vec<f32>) -> Result<(), String> {
        let Some(fft) = &mut self.fft else { return Ok(()) };
        let indexing = Indexing { partial_len: Some(length), ..Indexing::default() };
        let samples = self.pending.get(at..at + length).unwrap_or_default();
        let frames = self.block.len();
        let input = InterleavedSlice::new(samples, 1, length).map_err(|error| error.to_string())?;
        let mut block = InterleavedSlice::new_mut(&mut self.block, 1, frames).map_err(|error| error.to_string())?;
        let (_, written) =
            fft.process_into_buffer(&input, &mut block, Some(&indexing)).map_err(|error| error.to_string())?;
        let skipped = self.delay.min(written);
        self.delay -= skipped;
        output.extend_from_slice(self.block.get(skipped..written).unwrap_or_default());
        self.produced += (written - skipped) as u64;
        Ok(())
    }
}

/// The length of a block of input: a whole number of blocks at both rates, and an even one, so that the filter's delay is
/// a whole number of samples.
fn block_length(rate_in: usize, rate_out: usize) -> usize {
    let (mut divisor, mut rest) = (rate_in, rate_out);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    let unit = 2 * (rate_in / divisor.max(1)).max(1);
    (rate_in / BLOCKS_PER_SECOND).max(MIN_BLOCK).next_multiple_of(unit)
}

#[cfg(test)]
mod tests {
    use super::Resampler;

    fn resample(signal: &[f32], rate_in: u32, rate_out: u32, block: usize) -> Vec<f32> {
        let mut resampler = Resampler::new(rate_in, rate_out).unwrap();
        let mut output = Vec::new();
        for block in signal.chunks(block) {
            resampler.push(block, &mut output).unwrap();
        }
        resampler.finish(&mut output).unwrap();
        output
    }

    fn sine(frequency: f64, rate: u32, length: usize) -> Vec<f32> {
        let step = std::f64::consts::TAU * frequency / f64::from(rate);
        (0..length).map(|at| (step * at as f64).sin() as f32).collect()
    }

    /// The mean square in decibels.
    fn level(signal: &[f32]) -> f64 {
        let sum: f64 = signal.iter().map(|sample| f64::from(*sample).powi(2)).sum();
        10.0 * (sum / signal.len() as f64).log10()
    }

    #[test]
    fn length_is_exact_and_independent_of_blocks() {
        for rate in [1000, 8000, 11_025, 16_000, 22_050, 44_100, 44_101, 48_000, 96_000, 192_000, 767_999] {
            let signal = sine(220.0, rate, 3 * rate as usize / 2 + 7);
            let whole = resample(&signal, rate, 16_000, usize::MAX);
            let expected = (signal.len() as f64 * 16_000.0 / f64::from(rate)).round();
            assert_eq!(whole.len() as f64, expected, "{rate} Hz");
            assert_eq!(whole, resample(&signal, rate, 16_000, 997), "{rate} Hz");
        }
    }

    #[test]
    fn nothing_is_delayed() {
        for rate in [8000, 22_050, 44_100, 48_000, 96_000] {
            let output = resample(&sine(440.0, rate, 2 * rate as usize), rate, 16_000, 4096);
            let expected = sine(440.0, 16_000, output.len());
            let difference: Vec<f32> = output.iter().zip(&expected).map(|(a, b)| a - b).collect();
            let inner = &difference[1600..difference.len() - 1600];
            assert!(level(inner) < -80.0, "{rate} Hz: {} dB", level(inner));
        }
    }

    #[test]
    fn frequencies_above_the_output_are_removed() {
        for rate in [22_050, 44_100, 48_000, 192_000] {
            for frequency in (8_300..rate / 2).step_by(1000) {
                let output = resample(&sine(f64::from(frequency), rate, rate as usize), rate, 16_000, 4096);
                let inner = &output[1600..output.len() - 1600];
                assert!(level(inner) < -63.0, "{frequency} Hz at {rate} Hz: {} dB", level(inner));
            }
        }
    }

    #[test]
    fn a_short_signal_keeps_its_level() {
        let output = resample(&[0.5; 100], 48_000, 16_000, 10);
        assert_eq!(output.len(), 33);
        assert!((output[16] - 0.5).abs() < 0.05, "{}", output[16]);
        assert!(resample(&[], 48_000, 16_000, 10).is_empty());
    }
}
