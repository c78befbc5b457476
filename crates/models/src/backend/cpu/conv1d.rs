//! Convolutions over time, computed some outputs at a time, and the adaptive norms before them.

use outpost_kernels::{self as kernels, Conv1d, ScaleShift, ScaledActivation};

use super::device::{CHUNK_ELEMENTS, Cpu};
use super::norms;
use crate::backend::checks;
use crate::backend::interface::{AdaIn, Backend, ChannelActivation, Tensor};
use crate::error::{ModelError, Result};

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

pub fn forward(cpu: &Cpu, conv: &Conv1d, x: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    convolve(cpu, conv, x, std::iter::repeat_n(None, x.images))
}

/// `conv(activation(norm(x)))`
pub fn adain_forward(cpu: &Cpu, norm: &AdaIn<'_, Cpu>, x: &Tensor<Cpu>, conv: &Conv1d) -> Result<Tensor<Cpu>> {
    let activations = Activations::new(cpu, norm, x)?;
    convolve(cpu, conv, x, activations.per_text().map(Some))
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

/// `activation(norm(x))`
pub fn adain(cpu: &Cpu, norm: &AdaIn<'_, Cpu>, x: &Tensor<Cpu>) -> Result<Tensor<Cpu>> {
    let activations = Activations::new(cpu, norm, x)?;
    let mut out = cpu.alloc(x.shape());
    let chunk = (CHUNK_ELEMENTS * cpu.pool.threads()).next_multiple_of(x.channels.max(1));
    for ((x, out), activation) in x.per_image().zip(out.per_image_mut()).zip(activations.per_text()) {
        for (x, out) in x.chunks(chunk).zip(out.chunks_mut(chunk)) {
            activation.apply(&cpu.pool, x, out);
            cpu.pause()?;
        }
    }
    Ok(out)
}
