//! Convolutions over time, computed some outputs at a time, and the adaptive norms before them.

use outpost_kernels::{self as kernels, Conv1d, ScaleShift, ScaledActivation};

use super::device::{CHUNK_ELEMENTS, Cpu};
use super::norms;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::time_convolutions::{AdaIn, ChannelActivation, TimeConvolutions};
use crate::backend::types::{Conv1dShape, DType};
use crate::error::{ModelError, Result};
use crate::weights::Rows;

/// The scales and offsets of each text, and the activation.
struct Activations<'a> {
    factors: Vec<ScaleShift>,
    activation: kernels::ChannelActivation<'a>,
}

impl<'a> Activations<'a> {
    fn new(cpu: &Cpu, AdaIn { norm, activation }: &'a AdaIn<'_, Cpu>, x: &Tensor<Cpu>) -> Result<Self> {
        let factors = norms::factors(cpu, &norms::kernel(norm, None), x, None)?;
        let activation = match *activation {
            ChannelActivation::LeakyRelu(slope) => kernels::ChannelActivation::LeakyRelu(slope),
            ChannelActivation::Snake { alphas, inverses }
                if [alphas, inverses].iter().all(|v| v.len() == x.channels) =>
            {
                kernels::ChannelActivation::Snake { alphas, inverses }
            }
            ChannelActivation::Snake { alphas, .. } => {
                let (found, channels) = (alphas.len(), x.channels);
                return Err(ModelError::Compute(format!("{found} parameters do not fit {channels} channels")));
            }
        };
        Ok(Self { factors, activation })
    }

    fn per_text(&self) -> impl Iterator<Item = ScaledActivation<'_>> {
        self.factors.iter().map(|factors| ScaledActivation::new(factors, self.activation))
    }
}

fn convolve<'a>(
    cpu: &Cpu,
    conv: &Conv1d,
    x: &Tensor<Cpu>,
    activations: impl Iterator<Item = Option<ScaledActivation<'a>>>,
) -> Result<Tensor<Cpu>> {
    let shape = *conv.shape();
    let count = checks::conv1d(&shape, x)?;
    let mut out = cpu.alloc([x.images, count, 1, shape.outputs]);
    let steps = cpu.matmul_rows(shape.outputs * shape.inputs * shape.kernel).min(count);
    for ((x, out), activation) in x.per_image().zip(out.per_image_mut()).zip(activations) {
        for (first, out) in (0..count).step_by(steps).zip(out.chunks_mut(steps * shape.outputs)) {
            conv.forward_range(&cpu.pool, x, activation, first..count.min(first + steps), out);
            cpu.pause()?;
        }
    }
    Ok(out)
}

impl TimeConvolutions for Cpu {
    type Conv1d = Conv1d;

    fn read_conv1d(&self, weight: &Rows<'_>, shape: Conv1dShape, bias: Option<&[f32]>) -> Result<Conv1d> {
        Ok(Conv1d::new(&self.pool, weight.dtype, shape, &weight.bytes()?, bias)?)
    }

    fn conv1d_bytes(&self, dtype: DType, shape: &Conv1dShape) -> usize {
        Conv1d::packed_bytes(dtype, shape)
    }

    fn conv1d(&self, conv: &Conv1d, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        convolve(self, conv, x, std::iter::repeat_n(None, x.images))
    }

    fn adain(&self, norm: &AdaIn<'_, Self>, x: &Tensor<Self>) -> Result<Tensor<Self>> {
        let activations = Activations::new(self, norm, x)?;
        let mut out = self.alloc(x.shape());
        let chunk = (CHUNK_ELEMENTS * self.pool.threads()).next_multiple_of(x.channels.max(1));
        for ((x, out), activation) in x.per_image().zip(out.per_image_mut()).zip(activations.per_text()) {
            for (x, out) in x.chunks(chunk).zip(out.chunks_mut(chunk)) {
                activation.apply(&self.pool, x, out);
                self.pause()?;
            }
        }
        Ok(out)
    }

    /// Does not materialise the input of the convolution.
    fn adain_conv1d(&self, norm: &AdaIn<'_, Self>, x: &Tensor<Self>, conv: &Conv1d) -> Result<Tensor<Self>> {
        let activations = Activations::new(self, norm, x)?;
        convolve(self, conv, x, activations.per_text().map(Some))
    }
}
