//! Convolutions over time.

use super::context::Context;
use crate::backend::{AdaIn, Conv1dShape, DType, Tensor, TimeConvolutions};
use crate::error::{ModelError, Result};
use crate::weights::Rows;

/// A convolution over time.
#[derive(Debug)]
pub(crate) struct Conv1d<B: TimeConvolutions>(B::Conv1d);

impl<B: TimeConvolutions> Conv1d<B> {
    /// Reads the weights, `[outputs, inputs, kernel]`; `bias` is `[outputs]`.
    pub fn read(backend: &B, weight: &Rows<'_>, shape: Conv1dShape, bias: Option<&[f32]>) -> Result<Self> {
        Ok(Self(backend.read_conv1d(weight, shape, bias)?))
    }

    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        ctx.conv1d(&self.0, x)
    }

    /// `conv(activation(norm(x)))`
    pub fn forward_adain(&self, ctx: &Context<'_, B>, norm: &AdaIn<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        ctx.adain_conv1d(norm, x, &self.0)
    }
}

/// The shape of a transposed convolution over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConvTranspose1dShape {
    pub inputs: usize,
    pub outputs: usize,
    /// Taps, at least the stride.
    pub kernel: usize,
    pub stride: usize,
    /// Outputs that are cut off at each end.
    pub padding: usize,
}

impl ConvTranspose1dShape {
    /// Inputs that contribute to an output.
    fn taps(&self) -> usize {
        self.kernel.div_ceil(self.stride)
    }

    /// The convolution that computes `stride` neighbouring outputs together.
    pub fn conv(&self) -> Conv1dShape {
        let Self { inputs, outputs, stride, .. } = *self;
        let padding = [self.taps().saturating_sub(1); 2];
        Conv1dShape { inputs, outputs: stride * outputs, kernel: self.taps(), stride: 1, dilation: 1, padding }
    }
}

/// A transposed convolution over time.
///
/// Output `i · stride + j` of the whole convolution gets input `i` times tap `j`. All outputs between two multiples of the
/// stride depend on the same inputs, so they are the channels of an ordinary convolution, whose taps are in reverse
/// order.
#[derive(Debug)]
pub(crate) struct ConvTranspose1d<B: TimeConvolutions> {
    shape: ConvTranspose1dShape,
    conv: Conv1d<B>,
}

impl<B: TimeConvolutions> ConvTranspose1d<B> {
    /// `weight` is `[inputs, outputs, kernel]`, `bias` is `[outputs]`. The weights are rounded to `precision`.
    pub fn new(
        backend: &B,
        shape: ConvTranspose1dShape,
        weight: &[f32],
        bias: &[f32],
        precision: Option<DType>,
    ) -> Result<Self> {
        let ConvTranspose1dShape { inputs, outputs, kernel, stride, .. } = shape;
        if inputs * outputs * kernel != weight.len() || bias.len() != outputs || stride == 0 || weight.is_empty() {
            return Err(ModelError::Checkpoint(format!("{} weights do not fit {shape:?}", weight.len())));
        }
        let taps = shape.taps();
        let mut bytes = Vec::with_capacity(stride * outputs * inputs * taps * size_of::<f32>());
        for (phase, output) in (0..stride).flat_map(|phase| (0..outputs).map(move |output| (phase, output))) {
            for (input, tap) in (0..inputs).flat_map(|input| (0..taps).rev().map(move |tap| (input, tap))) {
                let tap = phase + stride * tap;
                let index = (input * outputs + output) * kernel + tap;
                let weight = if tap < kernel { weight.get(index).copied() } else { None };
                bytes.extend(weight.unwrap_or(0.).to_le_bytes());
            }
        }
        let rows = Rows::from_bytes(DType::F32, stride * outputs * inputs, taps, bytes)?;
        let rows = if let Some(dtype) = precision { rows.rounded(dtype) } else { rows };
        let conv = Conv1d::read(backend, &rows, shape.conv(), Some(&bias.repeat(stride)))?;
        Ok(Self { shape, conv })
    }

    /// Upsamples one text: `[1, (tokens − 1) · stride + kernel − 2 · padding, 1, outputs]`.
    pub fn forward(&self, ctx: &Context<'_, B>, x: &Tensor<B>) -> Result<Tensor<B>> {
        let ConvTranspose1dShape { outputs, kernel, stride, padding, .. } = self.shape;
        let length = (x.rows().saturating_sub(1) * stride + kernel).checked_sub(2 * padding);
        let Some(length) = length.filter(|_| x.images == 1) else {
            return Err(ModelError::Compute(format!("{:?} does not take a tensor of {:?}", self.shape, x.shape())));
        };
        let y = self.conv.forward(ctx, x)?;
        let rows = y.rows() * stride;
        let y = ctx.reshape(y, [1, rows, 1, outputs])?;
        ctx.rows(&y, padding..padding + length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Backend, Cpu};

    #[test]
    fn a_transposed_convolution_scatters_each_input() {
        let cpu = Cpu::new(2);
        let ctx = Context::new(&cpu);
        for (kernel, stride, padding) in [(20, 10, 5), (12, 6, 3), (3, 2, 1), (4, 4, 0), (7, 3, 2)] {
            let shape = ConvTranspose1dShape { inputs: 3, outputs: 5, kernel, stride, padding };
            let value = |index: usize| (index as f32 * 0.7).sin();
            let weight: Vec<f32> = (0..15 * kernel).map(value).collect();
            let bias: Vec<f32> = (0..5).map(|index| index as f32).collect();
            let x: Vec<f32> = (100..100 + 3 * 8).map(value).collect();
            let mut whole: Vec<f32> = (0..5 * (7 * stride + kernel)).map(|index| bias[index % 5]).collect();
            for (step, tap) in (0..8).flat_map(|step| (0..kernel).map(move |tap| (step, tap))) {
                for (input, output) in (0..3).flat_map(|input| (0..5).map(move |output| (input, output))) {
                    let product = x[step * 3 + input] * weight[(input * 5 + output) * kernel + tap];
                    whole[(step * stride + tap) * 5 + output] += product;
                }
            }
            let layer = ConvTranspose1d::new(&cpu, shape, &weight, &bias, None).unwrap();
            let found = layer.forward(&ctx, &cpu.tensor(&x, [1, 8, 1, 3]).unwrap()).unwrap();
            let expected = &whole[5 * padding..whole.len() - 5 * padding];
            assert_eq!(found.data().len(), expected.len());
            let error = found.data().iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
            assert!(error < 1e-5, "{shape:?}: {error}");
            assert!(ConvTranspose1d::new(&cpu, shape, &weight[1..], &bias, None).is_err());
        }
    }
}
