//! Convolutions over time, channels last, with a dilation.
//!
//! An output is the product of its window with the weights. A window consists of one contiguous segment of the padded
//! input for each tap, or of a single one without dilation. As in [`Conv2d`](crate::Conv2d), products read windows in
//! place; inputs are padded, and rounded to bf16 if the weights require it, strip by strip.

use std::ops::Range;

use crate::buffer::SharedSlice;
use crate::channel_activation::ScaledActivation;
use crate::gemm::activations::{RowLayout, Strip, round_to_bf16, uses_bf16_pairs};
use crate::pack::FLOATS;
use crate::rows::by_rows;
use crate::{Activations, DType, Error, Linear, Pool, matmul_all};

/// Elements of a strip, unless one output needs more.
const STRIP_ELEMENTS: usize = 1 << 18;

/// The shape of a convolution over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv1dShape {
    /// Input and output channels.
    pub inputs: usize,
    pub outputs: usize,
    /// Taps.
    pub kernel: usize,
    pub stride: usize,
    /// The distance between two taps.
    pub dilation: usize,
    /// Zeros before and after the input.
    pub padding: [usize; 2],
}

impl Conv1dShape {
    /// Input channels, padded to whole spans of floats.
    fn padded_channels(&self) -> usize {
        self.inputs.next_multiple_of(FLOATS)
    }

    /// Padded inputs from the first to the last tap of a window.
    fn reach(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }

    /// Outputs for an input of `length` steps; `None` if no window fits.
    pub fn output(&self, length: usize) -> Option<usize> {
        let padded = length.checked_add(self.padding[0])?.checked_add(self.padding[1])?;
        let reach = self.kernel.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)?;
        Some(padded.checked_sub(reach)? / self.stride + 1)
    }
}

/// A convolution over time and its weights.
#[derive(Debug)]
pub struct Conv1d {
    shape: Conv1dShape,
    weight: Linear,
}

impl Conv1d {
    /// Packs the weights. `bytes` are `[outputs, inputs, kernel]` floats of `dtype`, as in PyTorch; `bias` is `[outputs]`.
    ///
    /// # Errors
    /// If a size is zero, the type is quantised, or a length does not match.
    pub fn new(
        pool: &Pool,
        dtype: DType,
        shape: Conv1dShape,
        bytes: &[u8],
        bias: Option<&[f32]>,
    ) -> Result<Self, Error> {
        let Conv1dShape { inputs, outputs, kernel, stride, dilation, .. } = shape;
        let (channels, size) = (shape.padded_channels(), dtype.block_bytes());
        let row_bytes = inputs.saturating_mul(kernel).saturating_mul(size);
        let is_valid = [inputs, kernel, stride, dilation].iter().all(|size| *size > 0) && !dtype.is_quantised();
        let (Some(total), true) = (row_bytes.checked_mul(outputs), is_valid) else {
            return Err(Error::Shape { dtype, n: outputs, k: inputs.saturating_mul(kernel) });
        };
        if bytes.len() != total {
            return Err(Error::Length { expected: total, found: bytes.len() });
        }
        let weight = Linear::pack(pool, dtype, outputs, kernel * channels, |first, out| {
            let rows = bytes[first * row_bytes..].chunks_exact(row_bytes);
            for (row, out) in rows.zip(out.chunks_exact_mut(kernel * channels * size)) {
                for (index, element) in row.chunks_exact(size).enumerate() {
                    let offset = (index % kernel * channels + index / kernel) * size;
                    out[offset..offset + size].copy_from_slice(element);
                }
            }
            Ok::<(), Error>(())
        })?;
        let weight = if let Some(bias) = bias { weight.with_bias(bias)? } else { weight };
        Ok(Self { shape, weight })
    }

    /// Bytes of the packed weights.
    pub fn packed_bytes(dtype: DType, shape: &Conv1dShape) -> usize {
        Linear::packed_bytes(dtype, shape.outputs, shape.kernel * shape.padded_channels())
    }

    pub fn shape(&self) -> &Conv1dShape {
        &self.shape
    }

    /// Computes outputs of the convolution of `x`, `[length, inputs]`, or of what `activation` makes of it; padding stays
    /// zero. `out` is `[outputs in the range, outputs]`. The result does not depend on how outputs are split into ranges.
    ///
    /// # Panics
    /// If lengths do not match, or the outputs do not exist.
    pub fn forward_range(
        &self,
        pool: &Pool,
        x: &[f32],
        activation: Option<ScaledActivation<'_>>,
        range: Range<usize>,
        out: &mut [f32],
    ) {
        let Conv1dShape { inputs, outputs, kernel, stride, padding, .. } = self.shape;
        assert!(x.len().is_multiple_of(inputs), "x is [length, {inputs}]");
        let count = self.shape.output(x.len() / inputs).unwrap_or(0);
        assert!(range.start <= range.end && range.end <= count, "{range:?} of {count} outputs");
        assert_eq!(out.len(), range.len() * outputs, "outputs are [length, {outputs}]");
        assert!(activation.is_none_or(|activation| activation.channels() == inputs), "factors are [{inputs}]");
        if activation.is_none() && kernel == 1 && stride == 1 && padding == [0, 0] && inputs.is_multiple_of(FLOATS) {
            return self.weight.forward(pool, &x[range.start * inputs..range.end * inputs], range.len(), out);
        }
        let strip_outputs = (STRIP_ELEMENTS / (stride * self.shape.padded_channels())).max(1);
        for (first, out) in range.clone().step_by(strip_outputs).zip(out.chunks_mut(strip_outputs * outputs)) {
            self.forward_strip(pool, x, activation, first..range.end.min(first + strip_outputs), out);
        }
    }

    fn forward_strip(
        &self,
        pool: &Pool,
        x: &[f32],
        activation: Option<ScaledActivation<'_>>,
        range: Range<usize>,
        out: &mut [f32],
    ) {
        let Conv1dShape { kernel, stride, dilation, .. } = self.shape;
        let channels = self.shape.padded_channels();
        let steps = range.start * stride..(range.end - 1) * stride + self.shape.reach();
        let segments = if dilation == 1 { 1 } else { kernel };
        let layout = RowLayout {
            row_stride: stride * channels,
            segment_stride: dilation * channels,
            segments,
            ..RowLayout::ONE_SEGMENT
        };
        let mut floats = Vec::new();
        let strip = if uses_bf16_pairs(self.weight.dtype(), pool.isa()) {
            let mut pairs = pool.buffers().take_pairs();
            self.pad(pool, x, steps, &mut pairs, |x, out| match &activation {
                Some(activation) => activation.apply_pixels(pool.isa(), x, out),
                None => round_to_bf16(pool.isa(), x, out),
            });
            Strip::Pairs(pairs)
        } else {
            floats = pool.buffers().take_floats();
            self.pad(pool, x, steps, &mut floats, |x, out| match &activation {
                Some(activation) => activation.apply_pixels(pool.isa(), x, out),
                None => out.copy_from_slice(x),
            });
            Strip::Floats(&floats)
        };
        let windows = Activations::windows(pool, strip, [1, range.len()], kernel * channels, layout);
        matmul_all(&windows, &mut [(&self.weight, out)]);
        drop(windows);
        pool.buffers().recycle_floats(floats);
    }

    /// Writes these steps of the padded input to `strip`. `write` gets inputs and the output.
    fn pad<T: Copy + Default + Send>(
        &self,
        pool: &Pool,
        x: &[f32],
        steps: Range<usize>,
        strip: &mut Vec<T>,
        write: impl Fn(&[f32], &mut [T]) + Sync,
    ) {
        let Conv1dShape { inputs, padding: [before, _], .. } = self.shape;
        let (channels, length) = (self.shape.padded_channels(), x.len() / inputs);
        strip.resize(steps.len() * channels, T::default());
        let shared = SharedSlice::new(strip);
        by_rows(pool, steps.len(), channels, |first, count| {
            // SAFETY: no other task accesses these steps.
            let out = unsafe { shared.get(first * channels, count * channels) };
            // The steps of the padded input, and those of them that are not padding.
            let padded = steps.start + first..steps.start + first + count;
            let start = padded.start.clamp(before, before + length);
            let end = padded.end.clamp(before, before + length);
            let (left, rest) = out.split_at_mut((start - padded.start).min(count) * channels);
            let (middle, right) = rest.split_at_mut((end - start) * channels);
            left.fill(T::default());
            right.fill(T::default());
            let x = &x[(start - before) * inputs..(end - before) * inputs];
            if inputs == channels {
                return write(x, middle);
            }
            for (x, out) in x.chunks_exact(inputs).zip(middle.chunks_exact_mut(channels)) {
                let (out, zeros) = out.split_at_mut(inputs);
                write(x, out);
                zeros.fill(T::default());
            }
        });
    }
}
