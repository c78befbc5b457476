//! Elementwise operations, and modulation by vectors that depend on the timestep and the prompt.

use candle_core::{Result as ArrayResult, Tensor as Array};

use super::device::{Candle, tensor_like};
use super::host;
use super::norms::layer_norm;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::Activation;
use crate::error::Result;

/// The largest magnitude of the inputs of [`Activation::ClampedSwiglu`].
const SWIGLU_LIMIT: f64 = 7.;

/// `x += y`
pub fn add(candle: &Candle, x: &mut Tensor<Candle>, y: &Tensor<Candle>) -> Result<()> {
    checks::lengths(x, y)?;
    x.data = (&x.data + y.data.reshape(x.data.shape())?)?;
    candle.pause()
}

/// `x *= y`
pub fn multiply_by(candle: &Candle, x: &mut Tensor<Candle>, y: &Tensor<Candle>) -> Result<()> {
    checks::lengths(x, y)?;
    x.data = (&x.data * y.data.reshape(x.data.shape())?)?;
    candle.pause()
}

/// `x *= factor`
pub fn multiply(candle: &Candle, x: &mut Tensor<Candle>, factor: f32) -> Result<()> {
    x.data = x.data.affine(f64::from(factor), 0.)?;
    candle.pause()
}

/// `x /= divisor`, rounded like a division.
pub fn divide(candle: &Candle, x: &mut Tensor<Candle>, divisor: f32) -> Result<()> {
    let divisor = Array::new(divisor, candle.device())?;
    x.data = x.data.broadcast_div(&divisor)?;
    candle.pause()
}

/// `1 / (1 + e^−x)`
pub fn sigmoid(x: &Array) -> ArrayResult<Array> {
    (x.neg()?.exp()? + 1.)?.recip()
}

/// `x / (1 + exp(-1.702 x))`
fn quick_gelu(x: &Array) -> ArrayResult<Array> {
    (x * 1.702)?.silu()?.affine(1. / 1.702, 0.)
}

/// `activation(x)`, multiplied by `factors` if there are any.
pub fn activated(candle: &Candle, activation: Activation, x: &Array, factors: Option<&Array>) -> Result<Array> {
    if candle.computes_on_host(x) {
        return host::activated(candle, activation, x, factors);
    }
    let y = match activation {
        Activation::Silu => x.silu()?,
        Activation::Gelu => x.gelu_erf()?,
        Activation::GeluTanh => x.gelu()?,
        Activation::QuickGelu => quick_gelu(x)?,
        Activation::Relu => x.relu()?,
        Activation::SquaredRelu => x.relu()?.sqr()?,
        Activation::Sigmoid => sigmoid(x)?,
        Activation::ClampedSwiglu => quick_gelu(&x.minimum(SWIGLU_LIMIT)?)?,
    };
    Ok(match (activation, factors) {
        (_, None) => y,
        (Activation::ClampedSwiglu, Some(factors)) => y.mul(&(factors.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)? + 1.)?)?,
        (_, Some(factors)) => y.mul(factors)?,
    })
}

pub fn activate(
    candle: &Candle,
    activation: Activation,
    x: &mut Tensor<Candle>,
    factors: Option<&Tensor<Candle>>,
) -> Result<()> {
    factors.map_or(Ok(()), |factors| checks::lengths(x, factors))?;
    let factors = factors.map(|factors| factors.data.reshape(x.data.shape())).transpose()?;
    x.data = activated(candle, activation, &x.data, factors.as_ref())?;
    candle.pause()
}

/// The vectors at `index` of each image: `[images, 1, channels]`.
fn vectors_at(x: &Tensor<Candle>, vectors: &Tensor<Candle>, index: usize) -> Result<Array> {
    checks::modulation(x, vectors, &[index])?;
    let vectors = vectors.data.narrow(1, index * x.channels, x.channels)?;
    Ok(vectors.reshape((x.images, 1, x.channels))?)
}

/// `x · (1 + scale) + shift`; `x`: `[images, pixels, channels]`.
fn modulated(x: &Array, shift: &Array, scale: &Array) -> ArrayResult<Array> {
    x.broadcast_mul(&(scale + 1.)?)?.broadcast_add(shift)
}

pub fn modulate(
    candle: &Candle,
    x: &mut Tensor<Candle>,
    vectors: &Tensor<Candle>,
    [shift, scale]: [usize; 2],
) -> Result<()> {
    let [shift, scale] = [vectors_at(x, vectors, shift)?, vectors_at(x, vectors, scale)?];
    x.data = modulated(&x.by_image()?, &shift, &scale)?.reshape(x.data.shape())?;
    candle.pause()
}

pub fn modulated_norm(
    candle: &Candle,
    epsilon: f32,
    x: &Tensor<Candle>,
    vectors: &Tensor<Candle>,
    [shift, scale]: [usize; 2],
) -> Result<Tensor<Candle>> {
    let [shift, scale] = [vectors_at(x, vectors, shift)?, vectors_at(x, vectors, scale)?];
    let [ones, zeros] = candle.ones_and_zeros(x.channels)?;
    let normed = layer_norm(&x.by_image()?, &ones, &zeros, epsilon)?;
    let out = tensor_like(x, x.channels, &modulated(&normed, &shift, &scale)?)?;
    candle.pause()?;
    Ok(out)
}

/// `x += gate · y`
pub fn add_gated(
    candle: &Candle,
    x: &mut Tensor<Candle>,
    y: &Tensor<Candle>,
    vectors: &Tensor<Candle>,
    gate: usize,
) -> Result<()> {
    checks::lengths(x, y)?;
    let gate = vectors_at(x, vectors, gate)?;
    let images = x.by_image()?;
    let y = y.data.reshape(images.shape())?.broadcast_mul(&gate)?;
    x.data = (images + y)?.reshape(x.data.shape())?;
    candle.pause()
}
