//! Estimates memory.

use super::KokoroModel;
use super::config::KokoroConfig;
use super::tensor_names::{KokoroWeights, Part};
use crate::backend::{Conv1dShape, DType, TimeConvolutions};
use crate::safetensors::ModelFolder;
use crate::weights::{Footprint, Weights};

/// Factor for free buffers and the kernels' scratch.
const OVERHEAD: f64 = 1.2;
/// Bytes of the kernels' scratch of each thread, and of tables.
const SCRATCH_BYTES: usize = 4 << 20;

impl<B: TimeConvolutions> KokoroModel<B> {
    /// The memory that the weights take on a device if those of the decoder are rounded to `precision`.
    pub fn footprint(folder: &ModelFolder, backend: &B, precision: Option<DType>) -> Footprint {
        let mut footprint = Footprint::default();
        for (part, precision) in [(Part::Text, None), (Part::Decoder, precision)] {
            let source = KokoroWeights { folder, part };
            for name in source.names() {
                let (Some(shape), Some(stored)) = (source.shape(&name), source.dtype(&name)) else { continue };
                let dtype = precision.filter(|_| shape.len() > 1).unwrap_or(stored);
                let (weights, loading) = match *shape.as_slice() {
                    [outputs, inputs] => {
                        let loading = backend.loading_bytes(dtype, outputs, inputs);
                        (backend.linear_bytes(dtype, outputs, inputs), loading)
                    }
                    [outputs, inputs, kernel] => {
                        let shape = Conv1dShape { inputs, outputs, kernel, stride: 1, dilation: 1, padding: [0; 2] };
                        // Transposed convolutions are rearranged as floats.
                        let elements = outputs * inputs * kernel;
                        (backend.conv1d_bytes(dtype, &shape), 3 * elements * size_of::<f32>())
                    }
                    _ => {
                        let elements: usize = shape.iter().product();
                        (elements * size_of::<f32>(), elements * stored.block_bytes())
                    }
                };
                footprint.weights += weights as u64;
                footprint.loading = footprint.loading.max(loading as u64);
            }
        }
        footprint
    }

    /// An upper bound of the bytes that speaking a text of `tokens` tokens and `frames` frames takes.
    pub fn synthesis_bytes(&self, backend: &B, tokens: usize, frames: usize) -> u64 {
        let elements = self.config.text_elements(tokens).max(self.config.vocoder_elements(frames));
        let scratch = (1 + backend.pool().threads()) * SCRATCH_BYTES;
        ((elements * size_of::<f32>()) as f64 * OVERHEAD) as u64 + scratch as u64
    }
}

impl KokoroConfig {
    /// Floats of encoding a text: hidden states, queries, keys and values, also in blocks, and the hidden layer of the
    /// feed-forward network; or the inputs and gates of an LSTM.
    fn text_elements(&self, tokens: usize) -> usize {
        let albert = 9 * self.albert.width + self.albert.inner;
        let lstm = 4 * (self.hidden + self.style) + 4 * self.hidden;
        tokens.next_multiple_of(64) * albert.max(lstm)
    }

    /// Floats of the last stage of the vocoder, which has the most: the sum of features, the input of a residual block,
    /// the outputs of its two convolutions, and the mean. Also the signal and its spectra.
    fn vocoder_elements(&self, frames: usize) -> usize {
        let vocoder = &self.vocoder;
        let samples = frames * self.frame_samples();
        let steps = |index: usize| samples / (vocoder.hop * vocoder.rate_after(index)) + 1;
        let stages = (0..vocoder.upsampling.len()).map(|index| {
            // The result of an upsampling is cut off at both ends, which takes a copy.
            5 * steps(index) * vocoder.channels_after(index)
        });
        let spectra = (samples / vocoder.hop + 1) * 2 * (vocoder.bins() + vocoder.fft_size);
        stages.max().unwrap_or(0) + spectra + 4 * samples
    }
}
