//! Operations of the CPU device that keep gradients: kernels compute both the results and the gradients.
//!
//! candle's graph of a layer consists of dozens of small operations with one thread, and of products with a dequantised
//! copy of each weight. Here products with their LoRA deltas, norms, rotations, gated activations and attention are one
//! node each. Other devices compute with candle's operations; unit tests compare both ways on the CPU.

use std::ops::Range;

use candle_core::Tensor as Array;
use outpost_kernels::{self as kernels, Qkv, TextAttention, activate_backward};

use super::device::Candle;
use super::gradient::{computed_from, computed_from_three, computed_from_two};
use super::host_array::host;
use crate::backend::interface::{Angles, Backend, Norm, Tensor};
use crate::backend::types::{Activation, AttentionShape, RopeLayout};
use crate::error::{ModelError, Result};

/// See [`Backend::norm`].
pub fn norm(candle: &Candle, norm: &Norm<Candle>, x: &Array) -> Result<Array> {
    let (x, kind, epsilon) = (x.contiguous()?, norm.kind, norm.epsilon);
    let mut out = vec![0.; x.elem_count()];
    let bias = norm.bias.as_ref().map(host).transpose()?;
    let kernel = kernels::Norm { kind, weight: &host(&norm.weight)?, bias: bias.as_deref(), epsilon };
    kernel.forward(candle.pool(), &host(&x)?, &mut out);
    let (handle, input, weight) = (candle.clone(), x.detach(), norm.weight.clone());
    computed_from(&x, out, x.shape(), move |gradient| {
        handle.pause()?;
        let mut of_x = vec![0.; gradient.len()];
        let kernel = kernels::Norm { kind, weight: &host(&weight)?, bias: None, epsilon };
        kernel.backward(handle.pool(), &host(&input)?, gradient, &mut of_x);
        handle.pause()?;
        Ok(of_x)
    })
}

/// See [`Backend::rope`].
pub fn rope(
    candle: &Candle,
    x: &Tensor<Candle>,
    heads: usize,
    layout: RopeLayout,
    Angles { cos, sin }: &Angles<Candle>,
) -> Result<Array> {
    let (data, width) = (x.data.contiguous()?, x.channels / heads);
    let mut out = host(&data)?.to_vec();
    kernels::rope(candle.pool(), &mut out, heads, width, layout, &host(&cos.data)?, &host(&sin.data)?);
    let (handle, cos, sin) = (candle.clone(), cos.data.clone(), sin.data.neg()?);
    computed_from(&data, out, data.shape(), move |gradient| {
        handle.pause()?;
        // A rotation's gradient is rotated back.
        let mut of_x = gradient.to_vec();
        kernels::rope(handle.pool(), &mut of_x, heads, width, layout, &host(&cos)?, &host(&sin)?);
        handle.pause()?;
        Ok(of_x)
    })
}

/// `activation(x)`, multiplied by `factors` if there are any.
pub fn activated(candle: &Candle, activation: Activation, x: &Array, factors: Option<&Array>) -> Result<Array> {
    let x = x.contiguous()?;
    let (mut out, handle, input) = (host(&x)?.to_vec(), candle.clone(), x.detach());
    let Some(factors) = factors else {
        kernels::activate(candle.pool(), activation, &mut out, None);
        return computed_from(&x, out, x.shape(), move |gradient| {
            handle.pause()?;
            let mut of_x = vec![0.; gradient.len()];
            activate_backward(handle.pool(), activation, (&host(&input)?, None), gradient, &mut of_x, None);
            handle.pause()?;
            Ok(of_x)
        });
    };
    let factors = factors.contiguous()?;
    kernels::activate(candle.pool(), activation, &mut out, Some(&host(&factors)?));
    let kept = factors.detach();
    computed_from_two([&x, &factors], out, x.shape(), move |gradient| {
        handle.pause()?;
        let [mut of_x, mut of_factors] = [(); 2].map(|()| vec![0.; gradient.len()]);
        let (x, factors) = (host(&input)?, host(&kept)?);
        let inputs = (&*x, Some(&*factors));
        activate_backward(handle.pool(), activation, inputs, gradient, &mut of_x, Some(&mut of_factors));
        handle.pause()?;
        Ok([of_x, of_factors])
    })
}

/// See [`Candle::text_attention`].
pub fn text_attention(
    candle: &Candle,
    texts: &[Range<usize>],
    (shape, sinks): (&AttentionShape, Option<&Array>),
    [q, k, v]: [&Array; 3],
) -> Result<Array> {
    let [q, k, v] = [q.contiguous()?, k.contiguous()?, v.contiguous()?];
    let sinks = sinks.map(|sinks| Ok::<_, ModelError>(host(sinks)?.to_vec())).transpose()?;
    let mut out = vec![0.; q.elem_count()];
    {
        let [queries, keys, values] = [host(&q)?, host(&k)?, host(&v)?];
        let x = Qkv { queries: &*queries, keys: &*keys, values: &*values };
        let attention = TextAttention { shape, sinks: sinks.as_deref(), texts };
        attention.forward(candle.pool(), x, &mut out, &mut || candle.pause())?;
    }
    let (handle, shape, texts, kept) = (candle.clone(), *shape, texts.to_vec(), [q.detach(), k.detach(), v.detach()]);
    computed_from_three([&q, &k, &v], out, q.shape(), move |gradient| {
        handle.pause()?;
        let [q, k, v] = &kept;
        let [queries, keys, values] = [host(q)?, host(k)?, host(v)?];
        let mut of = [&queries, &keys, &values].map(|x| vec![0.; x.len()]);
        let [of_queries, of_keys, of_values] = &mut of;
        let out = Qkv { queries: &mut of_queries[..], keys: &mut of_keys[..], values: &mut of_values[..] };
        let x = Qkv { queries: &*queries, keys: &*keys, values: &*values };
        let attention = TextAttention { shape: &shape, sinks: sinks.as_deref(), texts: &texts };
        attention.backward(handle.pool(), x, gradient, out, &mut || handle.pause())?;
        Ok(of)
    })
}
